"""Raises alerts in W&B, each once: W&B sends a mail for each that it gets, and has no key to recognise one by.

An alert's position is stored as begun before it is raised. After a kill meanwhile it is not raised
again, because a person would be called twice for one cause, but counted as left out. The exporter
``webhook`` does the same.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any

from otel_bridge.exporter import WriterMemory
from otel_bridge.records import Alert

_THROUGH = "alerts/through"
_BEGUN = "alerts/begun"
UNKNOWN_OUTCOME = (
    "alerts that may not have arrived: the bridge was killed while it raised them"
)
_log = logging.getLogger("otel_bridge.wandb")
# "Less than 64 characters" (Run.alert, wandb 0.31).
_MAX_TITLE_CHARS = 63
_NO_PAUSE_S = 0.001
"""wandb reads 0 as a minute between two alerts of one title, within which it drops the second."""


class WandbAlerts:
    """Raises the alerts of one open run.

    Args:
        run: ``wandb.Run``.
        memory: Keeps the last position that was raised, and the one that was begun; ``None``
            offline, where a new writer raises all of them again.

    Attributes:
        left_out: Alerts that may not have arrived: reason to count.
    """

    def __init__(self, run: Any, memory: WriterMemory | None) -> None:
        self._run = run
        self._memory = memory
        self.left_out: Counter[str] = Counter()

    def write(self, alerts: Sequence[Alert]) -> None:
        """Raise those of *alerts* that were not raised before."""
        memory = self._memory
        if memory is None:
            for alert in alerts:
                self._raise(alert)
            return
        for alert in alerts:
            position = str(alert.position).encode()
            if alert.position <= int(memory.get(_THROUGH) or 0):
                continue
            if memory.get(_BEGUN) == position:
                self.left_out[UNKNOWN_OUTCOME] += 1
                _log.warning(
                    "W&B: the alert %r may not have arrived; it is not raised again",
                    alert.title,
                )
            else:
                self._once(alert, memory, position)
            # Last, so that a kill before it finds the position as begun.
            memory.put(_THROUGH, position)

    def _once(self, alert: Alert, memory: WriterMemory, position: bytes) -> None:
        # Before the call: a kill during it must be seen by the next writer.
        memory.put(_BEGUN, position)
        try:
            self._raise(alert)
        except Exception:  # wandb did not take it
            memory.delete(_BEGUN)
            raise

    def _raise(self, alert: Alert) -> None:
        self._run.alert(
            alert.title[:_MAX_TITLE_CHARS],
            alert.text,
            level=alert.level.upper(),
            wait_duration=_NO_PAUSE_S,
        )
