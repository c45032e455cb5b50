"""Counts failures of single runs of a host: each is retried with backoff, and reported once."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

from otel_bridge.bridge.delivery.retry import Backoff
from otel_bridge.bridge.serving.discovery import deleted
from otel_bridge.errors import OtelBridgeError

LONGEST_S = 10.0


@dataclass(slots=True)
class _Failing:
    text: str = ""
    until_s: float = 0.0
    backoff: Backoff = field(default_factory=Backoff)


class RunFailures:
    """Holds the failures of each run until the run works again. For the host's thread.

    `count` is for any.

    Args:
        log_line: Takes one line for the log.

    Attributes:
        count: Number of failures so far, of all runs.
    """

    def __init__(self, log_line: Callable[[str], None]) -> None:
        self._log_line = log_line
        self._failing: dict[Path, _Failing] = {}
        self.count = 0

    def failed(self, path: Path, exc: BaseException) -> float:
        """Count a failure of the run at *path*; the same failure is reported once.

        Of a bug the log gets the traceback; an error of this package says by itself what to do.

        Returns:
            Seconds until the run is due again: doubling, up to `LONGEST_S`.
        """
        self.count += 1
        failing = self._failing.setdefault(path, _Failing())
        wait_s = min(failing.backoff.failed(), LONGEST_S)
        failing.until_s = time.monotonic() + wait_s
        is_expected = isinstance(exc, OtelBridgeError)
        # An expected error says what to do; any other is a bug, whose place is needed.
        details = str(exc) if is_expected else "".join(traceback.format_exception(exc))
        self._report(
            failing,
            f"{type(exc).__name__}: {exc}",
            f"{path.name}: tried again: {details}",
        )
        return wait_s

    def report(self, path: Path, line: str) -> None:
        """Write *line* to the log, unless it is the last line that was written of this run.

        Not counted: a folder that another bridge has is not a failure.
        """
        self._report(self._failing.setdefault(path, _Failing()), line, line)

    def due(self, path: Path) -> bool:
        """Return whether the run may be tried now."""
        failing = self._failing.get(path)
        return failing is None or time.monotonic() >= failing.until_s

    def works(self, path: Path) -> None:
        """Forget the failures of a run that works."""
        self._failing.pop(path, None)

    def forget_deleted(self, listed: Collection[Path]) -> None:
        """Forget the failures of runs whose folder was deleted and is not in *listed*."""
        for path in deleted(self._failing, listed):
            del self._failing[path]

    def try_all(self) -> None:
        """Make every run due now."""
        for failing in self._failing.values():
            failing.until_s = 0.0

    def _report(self, failing: _Failing, key: str, line: str) -> None:
        if failing.text != key:
            failing.text = key
            self._log_line(line)
