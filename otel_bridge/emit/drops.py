"""Drops of one process: counted by reason, printed on stderr at most once a minute."""

from __future__ import annotations

import time

from otel_bridge.emit.console import notify
from otel_bridge.emit.drop_reasons import drop_line, shown_key
from otel_bridge.errors import JournalError, JournalFullError
from otel_bridge.journal.frames import MAX_RECORD_BYTES

_NOTIFY_EVERY_S = 60.0


class Drops:
    """Counts the drops of one process. Not thread-safe: its owner locks.

    Attributes:
        counts: Reason to number of drops.
        first_keys: Reason to the first key dropped for this reason, in printable form.
        last_printed: Reason to the number in its last printed line.
        has_new_reason: Whether a reason was counted for the first time since the counts were last asked for.
    """

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.first_keys: dict[str, str] = {}
        self.has_new_reason = False
        self.last_printed: dict[str, int] = {}
        self._printed: dict[str, int] = {}
        self._reported: dict[str, int] = {}
        # At the last report that was written, and at the last one of an earlier instance.
        self._reported_before: dict[str, int] = {}
        self._of_earlier_instance: dict[str, int] = {}
        self._notify_again_s = 0.0
        self._end_is_reported = False

    def count(self, reason: str, number: int = 1, key: str = "") -> None:
        """Count *number* drops for *reason*; *key* is the first dropped key."""
        if key and reason not in self.first_keys:
            self.first_keys[reason] = shown_key(key)
        if reason not in self.counts:
            self.has_new_reason = True
        self.counts[reason] = self.counts.get(reason, 0) + number

    def count_after_end(self) -> None:
        """Count a record that arrives after `finish()`; the first one is reported."""
        self.count("ended")
        if not self._end_is_reported:
            self._end_is_reported = True
            notify(
                "a record arrived after finish() and was not recorded; call init() to begin a run again",
                always=True,
            )

    def count_failure(self, exc: Exception, payload: bytes | None = None) -> None:
        """Count a record that could not be appended, by the kind of *exc*.

        Errors of the segment are ``disk_full``, ``too_large`` (by its *payload*) or
        ``not_written``. Any other is an ``internal_error``: a bug, or code of the program's own
        objects. The first of these is reported at once, with the error: nothing else would show it.
        """
        if isinstance(exc, JournalFullError):
            self.count("disk_full")
        elif isinstance(exc, JournalError):
            self.count(
                "too_large"
                if payload and len(payload) > MAX_RECORD_BYTES
                else "not_written"
            )
        else:
            self.count("internal_error")
            if self.counts["internal_error"] == 1:
                notify(
                    f"a record was dropped: {type(exc).__name__}: {exc}", always=True
                )

    def due(self) -> bool:
        """Return whether there are new drops and the last report is at least a minute old."""
        return self.counts != self._printed and time.monotonic() >= self._notify_again_s

    def notify(self) -> None:
        """Print the drops since the last report, each with what to do; nothing without any."""
        lines: list[str] = []
        for reason, number in self.counts.items():
            new = number - self._printed.get(reason, 0)
            if new:
                lines.append(drop_line(reason, new, self.first_keys.get(reason, "")))
                self.last_printed[reason] = new
        self._printed = dict(self.counts)
        self._notify_again_s = time.monotonic() + _NOTIFY_EVERY_S
        if lines:
            notify(*lines, always=True)

    def unreported(self) -> dict[str, int] | None:
        """Return all counts of this instance for the event ``rl.dropped``, not those since the last event.

        ``None`` when they have not changed since the last call.
        """
        self.has_new_reason = False
        if self.counts == self._reported:
            return None
        self._reported_before = self._reported
        self._reported = dict(self.counts)
        counts: dict[str, int] = {}
        for reason, number in self.counts.items():
            earlier_number = self._of_earlier_instance.get(reason, 0)
            if number > earlier_number:
                counts[reason] = number - earlier_number
        return counts

    def take_back_report(self) -> None:
        """Undo the last `unreported`: its event was not written, and was not a record of the program either."""
        # Without the loss of the event itself, which its append has counted.
        self.counts = self._reported
        self._reported = self._reported_before
        self.has_new_reason = False

    def begin_instance(self) -> None:
        """Leave what was reported to the instance before, whose reports a bridge adds to those that follow."""
        self._of_earlier_instance = self._reported
