"""Raises alerts in W&B, each once: W&B sends a mail for each that it gets, and has no key to recognise one by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from otel_bridge.exporter import AlertsOnce, WriterMemory
from otel_bridge.records import Alert

# "Less than 64 characters" (Run.alert, wandb 0.31).
_MAX_TITLE_CHARS = 63
_NO_PAUSE_S = 0.001
"""wandb reads 0 as a minute between two alerts of one title, within which it drops the second."""


class WandbAlerts:
    """Raises the alerts of one open run.

    Args:
        run: ``wandb.Run``.
        memory: Memory of this destination; ``None`` offline, where a new writer raises all of them
            again.

    Attributes:
        left_out: Alerts that may not have arrived: reason to count.
    """

    def __init__(self, run: Any, memory: WriterMemory | None) -> None:
        self._run = run
        self.left_out: Counter[str] = Counter()
        self._once = AlertsOnce(memory, self.left_out) if memory is not None else None

    def write(self, alerts: Sequence[Alert]) -> None:
        """Raise those of *alerts* that were not raised before.

        Offline all of them are raised, because a new writer writes the whole directory again.
        Raises as `_raise`; the bridge then gives all of *alerts* again.
        """
        if self._once is not None:
            self._once.write(alerts, self._raise)
            return
        for alert in alerts:
            self._raise(alert)

    def _raise(self, alert: Alert) -> str:
        """Raise *alert*; return an empty text, because wandb queues it and reports nothing about it.

        Raises:
            Exception: wandb's own; the alert was not queued then, and is raised again.
        """
        self._run.alert(
            alert.title[:_MAX_TITLE_CHARS],
            alert.text,
            # wandb's levels are INFO, WARN and ERROR.
            level=alert.level.upper(),
            wait_duration=_NO_PAUSE_S,
        )
        return ""
