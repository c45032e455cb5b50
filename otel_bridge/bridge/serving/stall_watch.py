"""Determines whether the thread that reads run folders still runs: signs of life with each run, and failed rounds."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable

from otel_bridge.bridge.delivery.retry import Backoff

LONGEST_PAUSE_S = 5.0


class StallWatch:
    """Holds the heartbeat of one thread; may be read by any.

    Args:
        stall_s: Silence after which the thread counts as stalled.
        log_line: Takes one line for the log.

    Attributes:
        failures: Number of rounds that an exception ended.
        ended: Whether the thread has ended.
    """

    def __init__(self, stall_s: float, log_line: Callable[[str], None]) -> None:
        self._stall_s = stall_s
        self._log_line = log_line
        self._recorded_s = time.monotonic()
        self._where = ""
        self._backoff = Backoff()
        self._failure = ""
        self.failures = 0
        self.ended = False

    def record(self, run: str = "") -> None:
        """Store that the thread runs, and at which run."""
        self._recorded_s = time.monotonic()
        self._where = run

    def age_s(self) -> float:
        """Return the seconds since the last sign of life."""
        return time.monotonic() - self._recorded_s

    def end(self) -> None:
        """Mark the thread as ended."""
        self.ended = True

    def round_failed(self, exc: BaseException) -> float:
        """Count a round that *exc* ended, and report a new error; return the pause in seconds.

        The pause doubles up to `LONGEST_PAUSE_S`: the error may be of a disk that fails for hours,
        and the runs that work must still be served.
        """
        self.failures += 1
        text = f"{type(exc).__name__}: {exc}"
        # Once for each error: a disk that fails would write a traceback every few seconds.
        if text != self._failure:
            self._failure = text
            self._log_line(
                f"reading run folders failed, tried again: {''.join(traceback.format_exception(exc))}"
            )
        return min(self._backoff.failed(), LONGEST_PAUSE_S)

    def round_done(self) -> None:
        """Reset the failures after a round without an exception."""
        self._backoff.succeeded()
        self._failure = ""

    def warnings(self) -> list[str]:
        """Return why no run is delivered now, one line per reason; empty without a problem.

        A round that failed once or twice does not count, since the next one usually works.
        """
        if self.ended:
            return ["the thread that reads run folders has ended; restart the service"]
        reasons: list[str] = []
        if self.age_s() > self._stall_s:
            place = ""
            if self._where:
                place = f" at run {self._where}"
            reasons.append(
                f"the thread that reads run folders has stood still{place} for {self.age_s():.0f} s"
            )
        if self._failure and self._backoff.failures >= 3:
            reasons.append(f"reading run folders fails: {self._failure}")
        return reasons
