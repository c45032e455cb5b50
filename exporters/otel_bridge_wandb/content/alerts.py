"""Raises alerts in W&B, each once: W&B sends a mail for each that it gets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from otel_bridge.exporter import WriterMemory
from otel_bridge.records import Alert

_THROUGH: Final = "alerts/through"
_MAX_TITLE_CHARS: Final = 63
_NO_PAUSE_S: Final = 0.001
"""wandb reads 0 as a minute between two alerts of one title, within which it drops the second."""


class WandbAlerts:
    """Raises the alerts of one open run.

    Args:
        run: ``wandb.Run``.
        memory: Keeps the last position that was raised; ``None`` offline, where a new writer raises all of them again.
    """

    def __init__(self, run: Any, memory: WriterMemory | None) -> None:
        self._run, self._memory = run, memory

    def write(self, alerts: Sequence[Alert]) -> None:
        """Raise those of *alerts* that were not raised before."""
        through = 0 if self._memory is None else int(self._memory.get(_THROUGH) or 0)
        for alert in alerts:
            if alert.position > through:
                self._run.alert(
                    alert.title[:_MAX_TITLE_CHARS], alert.text, level=alert.level.upper(), wait_duration=_NO_PAUSE_S
                )
                if self._memory is not None:
                    self._memory.put(_THROUGH, str(alert.position).encode())
