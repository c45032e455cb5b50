"""Appends the records of one process within the limits of its directory, and checks what delivers them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import time_ns

from otel_bridge import semconv
from otel_bridge.emit.bridge_process.starter import BridgeStarter
from otel_bridge.emit.drops import Drops
from otel_bridge.emit.encode.log_record import event
from otel_bridge.emit.encode.protobuf import Attribute
from otel_bridge.emit.recording.process_segment import Checkpoint, ProcessSegment
from otel_bridge.errors import JournalError, JournalFullError, SegmentClosedError
from otel_bridge.journal.frames import HEAD_BYTES, Signal
from otel_bridge.journal.quota import Quota

_METRICS = int(Signal.METRICS)
_LOGS = int(Signal.LOGS)
_CONTROL = int(Signal.CONTROL)
# A deleted folder or an ended bridge is noticed within this second (docs/guarantees.md).
_CHECK_EVERY_NS = 1_000_000_000
# Configs, counts of drops and ends are still accepted at the limit of the directory.
_REFUSED_WHEN_FULL = frozenset({_METRICS, int(Signal.TRACES)})


class RecordAppender:
    """Appends and numbers the records of one process. Not thread-safe: its owner locks.

    Args:
        segment: Segment of the process; opened here.
        starter: Starter that ensures a running bridge.
        quota: Limit of the base folder.

    Attributes:
        drops: Counts of what was not recorded.
        rows: Number of rows appended by this instance.

    Raises:
        JournalError: The segment cannot be made.
    """

    def __init__(
        self, segment: ProcessSegment, starter: BridgeStarter, quota: Quota
    ) -> None:
        self.drops = Drops()
        self.rows = 0
        self._events = 0
        self._segment = segment
        self._starter = starter
        self._quota = quota
        self._last_ns = 0
        self._ending = False
        self._ended = False
        # Whether `_refuses` must be asked: the process has ended, or the directory is full.
        self._may_refuse = False
        self._checked_at = time_ns()
        self._check_again = self._checked_at + _CHECK_EVERY_NS
        segment.open()

    @property
    def is_open(self) -> bool:
        """Return whether a segment is open; a forked child opens its own with its first record."""
        return self._segment.writer is not None

    def begin_in_child(self) -> None:
        """Begin a forked child's own instance, whose first record opens a segment."""
        self.drops = Drops()
        self.rows = 0
        self._events = 0
        self._may_refuse = self._ended
        self._segment.close_inherited()

    def checkpoint(self) -> Checkpoint | None:
        """Return the position after the last record; ``None``: no segment is open."""
        return self._segment.checkpoint(self.rows)

    # --- records ----------------------------------------------------------------------------------

    def append_row(self, encode: Callable[[int], bytes], now: int) -> bool:
        """Append the row that *encode* makes with its number.

        Return whether it was appended, else it is counted, as `_append` says. Where the segment is
        gone, it is encoded again with the first number of a new one. What *encode* raises is
        raised, and spends no number.
        """
        payload = encode(self.rows + 1)
        # Before the write: afterwards a signal handler may raise, and a number used twice would
        # lose a row.
        self.rows += 1
        try:
            if self._append(_METRICS, payload, now):
                return True
        except SegmentClosedError as exc:
            self.rows -= 1
            return self._reopened_after(exc) and self.append_row(encode, now)
        # The next row gets the number: the bridge would wait for a row without it.
        self.rows -= 1
        return False

    def append_event(
        self,
        name: str,
        pairs: Mapping[str, Attribute],
        body: Attribute,
        now: int,
        own_ns: int = 0,
    ) -> bool:
        """Append a numbered event of *own_ns*, or of *now*.

        Return whether it was appended, else it is counted. Its number is spent all the same.
        """
        numbered = {**pairs, semconv.EVENT_SEQ: self.next_event_seq()}
        payload = event(name, time_unix_ns=own_ns or now, body=body, pairs=numbered)
        try:
            return self._append(_LOGS, payload, now)
        except SegmentClosedError as exc:
            return self._reopened_after(exc) and self.append_event(
                name, pairs, body, now, own_ns
            )

    def append(
        self, signal: int, payload: bytes, now: int, *, whole: bool = False
    ) -> bool:
        """Append one encoded record without a number; return whether it was appended."""
        try:
            return self._append(signal, payload, now, whole=whole)
        except SegmentClosedError as exc:
            return self._reopened_after(exc) and self.append(
                signal, payload, now, whole=whole
            )

    def append_other(
        self, signal: int, payload: bytes, time_unix_ns: int | None, whole: bool
    ) -> None:
        """Append a record that is neither a row nor an event of otel-bridge.

        After the end it is counted as ``ended``.
        """
        if self._ended:
            # An SDK that shuts down after the run collects once more, which is not worth a line.
            if whole:
                self.drops.count("ended", 1)
            else:
                self.drops.count_after_end()
            return
        now = time_ns()
        self._check_if_due(now)
        self.append(
            signal, payload, now if time_unix_ns is None else time_unix_ns, whole=whole
        )

    def append_media(
        self, now: int, own_ns: int, pairs: Mapping[str, Attribute], body: bytes
    ) -> bool:
        """Append media of a row; return whether they were appended, else they are counted."""
        # Media are events, which a full directory accepts; they are refused as rows are.
        if self._may_refuse and self._refuses(_METRICS):
            return False
        return self.append_event(semconv.EVENT_MEDIA, pairs, body, now, own_ns)

    def next_event_seq(self) -> int:
        """Return the number of this instance's next event, from 1."""
        self._events += 1
        return self._events

    def _append(
        self, signal: int, payload: bytes, now: int, *, whole: bool = False
    ) -> bool:
        """Append one encoded record. Return whether it was; otherwise it is counted.

        As ``ended``, as the limit of the directory, or as ``disk_full``, ``too_large`` or
        ``not_written``.

        Raises:
            SegmentClosedError: The segment is gone. The record must be written anew, with the
                numbers of a new segment.
        """
        if self._may_refuse and self._refuses(signal):
            return False
        try:
            writer = self._segment.writer or self._segment.open()
            writer.append(signal, payload, now, whole=whole)
        except SegmentClosedError:
            raise
        except JournalError as exc:
            ends_full = (
                signal == _LOGS and isinstance(exc, JournalFullError) and self._ending
            )
            if ends_full and self._segment.make_room():
                return self._append(signal, payload, now, whole=whole)
            # A request to write now is not a record, so losing it loses nothing.
            if signal != _CONTROL:
                self.drops.count_failure(exc, payload)
            return False
        if self._quota.took(HEAD_BYTES + len(payload)):
            self._may_refuse = self._ended or self._quota.full()
        return True

    def _refuses(self, signal: int) -> bool:
        """Return whether a record of *signal* is refused now, and count it.

        After the end all are, in a full directory rows and spans; configs, counts and ends are not.
        """
        if self._ended:
            self.drops.count_after_end()
        elif signal in _REFUSED_WHEN_FULL:
            self.drops.count(self._quota.reason, 1)
        else:
            return False
        return True

    # --- checks once a second ---------------------------------------------------------------------

    def time_of_row(self, logged_ns: int) -> int:
        """Run the checks that are due.

        Return a time for a row that follows that of the row before.
        """
        now = logged_ns
        # One comparison for two rare cases: a due check, and a clock that did not advance.
        if not self._last_ns < now < self._check_again:
            self._check_if_due(now)
            now = max(now, self._last_ns + 1)
        self._last_ns = now
        return now

    def _check_if_due(self, now: int) -> None:
        """Once a second: reopen a lost segment, look at the limits, ensure a bridge, report drops.

        Here, with the records of the program, since a trainer gets no thread. Nothing after the
        end. A segment or a bridge that cannot be had is tried again at the next check.
        """
        # Also when the clock was set back, else the next check could be hours away.
        if self._checked_at <= now < self._check_again:
            return
        # Before the checks: one that fails is not repeated with every row.
        self._checked_at = now
        self._check_again = now + _CHECK_EVERY_NS
        if self._ended:
            return
        # Before the bridge is ensured: its log needs the folder.
        self.reopen_if_lost()
        self._may_refuse = self._quota.full()
        self._starter.ensure()
        if self.drops.due():
            self.drops.notify()
        # At each check, although printed once a minute: a kill loses the counts that were not
        # written.
        self.write_drops()

    def write_drops(self) -> None:
        """Append the counts of drops, if they changed since the last time; nothing after the end.

        Counts that cannot be appended are due again; the failure itself does not count.
        """
        if not self._ended:
            # Before the counts are taken: they are those of an instance.
            self.reopen_if_lost()
        counts = self.drops.unreported()
        if counts is None or self._ended:
            return
        pairs: dict[str, Attribute] = {
            semconv.DROPPED_KEYS: dict(self.drops.first_keys) or None
        }
        if not self.append_event(semconv.EVENT_DROPPED, pairs, dict(counts), time_ns()):
            self.drops.take_back_report()

    # --- another segment, and the end -------------------------------------------------------------

    def reopen_if_lost(self) -> None:
        """Begin a new segment where the open one was moved or deleted: writes into it would succeed."""
        if self._segment.is_lost():
            self._reopen()

    def _reopened_after(self, exc: SegmentClosedError) -> bool:
        """Return whether a new segment is open for the record that failed.

        Otherwise it is counted as ``not_written``, and the next record tries again; as ``ended``
        where a signal handler has ended the run inside the record.
        """
        if self._reopen():
            return True
        if self._ended:
            self.drops.count_after_end()
        else:
            self.drops.count_failure(exc)
        return False

    def _reopen(self) -> bool:
        """Continue as a new process, because the folder was deleted or the descriptor closed.

        Return whether it can; if not, the next record tries again.
        """
        self.drops.begin_instance()
        # The numbers belong to the instance, and the new segment is of a new one.
        rows = self.rows
        self.rows = 0
        self._events = 0
        return self._segment.reopen(rows)

    def write_end(self, status: str) -> None:
        """Append the last counts of drops, then the end of the process with its number of rows.

        By that number the bridge knows that a row is missing. Where the end cannot be appended, the
        process counts as killed once its liveness lock is free.
        """
        # From here on the space that is reserved on a full disk may be used.
        self._ending = True
        self.write_drops()
        pairs: dict[str, Attribute] = {
            semconv.RUN_STATUS: status,
            semconv.SEQ: self.rows,
        }
        self.append_event(semconv.EVENT_END, pairs, None, time_ns())
        # finish() waits for a writer that may pause or retry.
        self.append(_CONTROL, b"", time_ns())
        self.drops.notify()

    def close(self) -> Checkpoint | None:
        """Accept no further record, and release the segment.

        Return the position of its end, ``None`` when no segment was open.
        """
        self._ended = True
        self._may_refuse = True
        checkpoint = self.checkpoint()
        self._segment.end()
        return checkpoint
