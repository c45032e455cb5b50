"""Enforces the wait between two W&B alerts of one title: ``alert(wait_duration=)``."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from otel_bridge.values.scalars import any_text

_DEFAULT_S = 60.0
"""W&B's own wait (0.31)."""
_MAX_TITLES = 10_000
"""Most titles whose waits are remembered: a program may make a title of each step."""


class AlertWaits:
    """Holds since when each title may be alerted again. Thread-safe.

    Args:
        clock: Seconds of a clock that does not go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next: dict[str, float] = {}
        # Of two threads with one title, one alert passes. Re-entrant for signal handlers.
        self._lock = threading.RLock()

    def passes(self, title: object, wait_duration: Any = None) -> bool:
        """Return whether an alert is due: the last one of its title is older than the wait that was given with it.

        In W&B its server keeps the wait (``wait_duration=`` of wandb 0.31); here no server is
        asked. Titles that raise as a text share one wait for each type.

        Args:
            title: Its title.
            wait_duration: Seconds or a ``timedelta`` until the next one of this title; otherwise a
                minute, as in W&B.
        """
        now = self._clock()
        key = any_text(title)
        with self._lock:
            if now < self._next.get(key, now):
                return False
            # Beyond it all waits end: the limit of the run still counts the alerts.
            if len(self._next) >= _MAX_TITLES:
                self._next.clear()
            self._next[key] = now + _seconds(wait_duration)
        return True


def _seconds(wait: Any) -> float:
    """Return seconds of a wait.

    The minute of W&B for ``None``, 0, and what is neither a number nor a ``timedelta``.
    """
    if isinstance(wait, timedelta):
        return wait.total_seconds()
    is_number = isinstance(wait, int | float) and not isinstance(wait, bool)
    if is_number and wait:
        return float(wait)
    return _DEFAULT_S
