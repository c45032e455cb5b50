"""Recorder that numbers, encodes and appends the records of one process. No thread, no socket.

Thread-safe by a re-entrant lock: a record that a signal handler or finaliser logs inside a call on
its own thread is queued and written after the outer record. Fork-safe: a child begins as a new
process with its first record.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from time import time_ns
from typing import Final

from otel_bridge import semconv
from otel_bridge.emit.arguments import counts_unknown, role_of, unix_ns
from otel_bridge.emit.bridge_process.starter import BridgeStarter
from otel_bridge.emit.drops import Drops
from otel_bridge.emit.encode.log_record import event
from otel_bridge.emit.encode.protobuf import Attribute
from otel_bridge.emit.encode.reductions import with_reductions
from otel_bridge.emit.encode.row import RowEncoder
from otel_bridge.emit.encode.values import (
    FoundMedia,
    distinct,
    flatten,
    flatten_all,
    holds_nothing,
    to_step,
)
from otel_bridge.emit.live_registry import count_unclosed, forget_unclosed
from otel_bridge.emit.media.log import MediaLog
from otel_bridge.emit.process_segment import Checkpoint, MakeHeader, ProcessSegment
from otel_bridge.errors import JournalError, JournalFullError, SegmentClosedError, any_error
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.frames import HEAD_BYTES, Signal
from otel_bridge.journal.quota import Quota
from otel_bridge.records import key_of

_METRICS: Final = int(Signal.METRICS)
# A deleted folder or an ended bridge is noticed within this second (docs/guarantees.md).
_CHECK_EVERY_NS: Final = 1_000_000_000
# Bounds the memory of a signal handler that logs again and again inside one call.
_MAX_WAITING: Final = 10_000
# Configs, counts of drops and ends are still accepted at the limit of the directory.
_REFUSED_WHEN_FULL: Final = frozenset({int(Signal.METRICS), int(Signal.TRACES)})


class Recorder:
    """Appends one process's records to its segments.

    Twenty-six attributes, because `log()` is one body that uses most of them in each call.

    Args:
        folder: The run folder; created here.
        make_header: Callable that makes the header of a new instance.
        starter: Starter that ensures a running bridge.
        quota: Limit of the base folder.
        segment_bytes: Size at which a segment is closed.
        role: Role of the resource.
        media: Limits of media; ``None`` for the default ones.
        merges_ranks: Whether the rows of all ranks become one, so that `reduce` of a row is sent.

    Raises:
        JournalError: The folder or the segment cannot be made.
    """

    def __init__(
        self,
        folder: RunFolder,
        make_header: MakeHeader,
        starter: BridgeStarter,
        quota: Quota,
        *,
        segment_bytes: int,
        role: str | None,
        media: MediaLog | None = None,
        merges_ranks: bool = False,
    ) -> None:
        self.folder = folder
        self.starter = starter
        self._quota = quota
        self._spent = 0
        self._room = 0
        self._segment = ProcessSegment(
            folder, make_header, segment_bytes=segment_bytes, at_worker_end=self.end
        )
        self._role = role
        self._media = media or MediaLog()
        self._merges_ranks = merges_ranks
        self._last_ns = 0
        self._steps: dict[str | None, int] = {}
        self._open_steps: set[str | None] = (
            set()
        )  # roles whose last row left its step open: ``commit=False``
        self._ending = False
        self._ended = False
        self.forked = False
        self._begin()
        self._checked_at = time_ns()
        self._check_again = self._checked_at + _CHECK_EVERY_NS
        self._segment.open(forked=False)

    def _begin(self) -> None:
        """Set the state of one instance."""
        # Re-entrant for signal handlers; new in a child, where a thread may have held the old one.
        self.lock = threading.RLock()
        self.drops = Drops()
        self._busy = False
        self._waiting: deque[Callable[[], object]] = deque()
        self._encoder = RowEncoder()
        self._names: tuple[object, ...] = ()
        self._seq: int = 0
        self._event_seq: int = 0
        self._closed = self._ended

    @counts_unknown
    def log_row(  # noqa: C901, PLR0912, PLR0915  # one body, in which every call counts
        self,
        values: object = None,
        step: object = None,
        commit: object = True,
        *,
        role: str | None = None,
        time_unix_ns: object = None,
        reduce: object = None,
        _now: int = 0,
        _own: int = 0,
    ) -> None:
        """Append a row. This is `Run.log` itself, so one body, in which every call counts.

        Args are those of `Run.log`; *_now*: the time of logging, if earlier than now; *_own*: the
        row's own time.
        """
        with self.lock:
            if reduce is not None and self._merges_ranks:
                values = with_reductions(values, reduce, self.drops.count)
            if commit is False or time_unix_ns is not None:
                self._log_open_or_timed_row(
                    values, step, role, commits=commit is not False, time_unix_ns=time_unix_ns
                )
                return
            role = None if role is None else self._other_role(role)
            if self._busy:
                self._enqueue(
                    self.log_row,
                    # Read now: the program may change its values before the queue is written.
                    flatten_all(values, self.drops.count),
                    step,
                    role=role,
                    _now=time_ns(),
                    _own=_own,
                )
                return
            if step is None and holds_nothing(values, self.drops.count):
                self._open_steps.discard(
                    role
                )  # an empty row has no step, but ends one that is open, as in W&B
                self._write_new_reasons()
                return
            seq = self._seq
            now = _now or time_ns()
            payload = None
            media: list[FoundMedia] = []
            again = False
            try:
                self._busy = True
                # One comparison for two rare cases: a due check, and a clock that did not advance.
                if not self._last_ns < now < self._check_again:
                    now = self._irregular(now)
                    # A check may have opened another segment, whose numbers begin anew.
                    seq = self._seq
                self._last_ns = now
                if type(step) is not int:
                    step = self._step_of(step, role)
                self._steps[role] = step
                if self._open_steps:
                    self._open_steps.discard(role)
                # Before the write: afterwards a signal handler may raise, and a number used twice
                # would lose a row.
                # An unused number is given back: the bridge would wait for its row.
                self._seq = seq + 1
                payload = self._encoded(values, now, step, role, seq + 1, own=_own, media=media)  # pyright: ignore[reportUnknownArgumentType]
                if payload is None:
                    self._seq = seq
                elif (writer := self._segment.writer) is None or self._closed:
                    # The rare way: a child opens its segment, or a full directory refuses the row.
                    self._seq = seq + self._append(_METRICS, payload, now)
                else:
                    # Nearly every row: neither `_append` nor a count of the directory is called.
                    writer.append(_METRICS, payload, now)
                    self._spent += HEAD_BYTES + len(payload)
                    if self._spent >= self._room:
                        self._use_room()
            except any_error() as exc:  # nothing of otel-bridge may end a training run
                self._seq = seq
                again = self._reopened_after(exc, payload)
            finally:
                self._busy = False
            if again:
                # As a row of the new segment, at the time of the call; *values* hold `reduce`.
                self.log_row(values, step, role=role, _now=now, _own=_own)  # pyright: ignore[reportUnknownArgumentType]
                return
            if media:
                # After their row: reading media may run code of the program that logs.
                put = partial(self._put_media, now, _own)
                self._waiting.append(
                    partial(self._do, self._media.append, media, step, role, self.drops.count, put)
                )
            if self._waiting:
                self._drain_queue()
            if self.drops.has_new_reason:
                self._write_new_reasons()

    log_row.__qualname__ = "Run.log"

    @counts_unknown
    def track_step_only(
        self,
        values: object = None,
        step: object = None,
        commit: object = True,
        *,
        role: object = None,
        time_unix_ns: object = None,  # noqa: ARG002  # as of `log_row`
        reduce: object = None,  # noqa: ARG002
    ) -> None:
        """Note the step of a row that is not written: `Run.log` of ranks above 0."""
        with self.lock:
            commits = commit is not False
            other_role = self._other_role(role)
            if step is not None or not holds_nothing(values, self.drops.count):
                # Rollouts and phases of this rank are recorded, and may take the next step.
                self._steps[other_role] = self._step_of(step, other_role)
            elif not commits:
                return
            (self._open_steps.discard if commits else self._open_steps.add)(other_role)
            self._write_new_reasons()

    def append(
        self, signal: int, payload: bytes, time_unix_ns: int | None = None, *, whole: bool = False
    ) -> None:
        """Append one encoded record; a *whole* one is a request with resources of its own."""
        self._do(self._record, signal, payload, time_unix_ns, whole)

    def event(self, name: str, pairs: Mapping[str, Attribute], body: Attribute = None) -> None:
        """Append a numbered event of otel-bridge."""
        self._do(self._event, name, pairs, body, time_ns())

    def next_event_seq(self) -> int:
        """Return the number of this process's next event, from 1."""
        with self.lock:
            self._event_seq += 1
            return self._event_seq

    def count_drop(self, reason: str, number: int = 1, key: str = "") -> None:
        """Count a drop; *key* is the dropped key."""
        with self.lock:
            self.drops.count(reason, number, key)
            self._write_new_reasons()

    def last_step(self, role: str | None) -> int | None:
        """Return the last step of *role* in this process."""
        return self._steps.get(None if role == self._role else role)

    def last_steps(self) -> dict[str | None, int]:
        """Return the last step of every role, the resource's by its name."""
        with self.lock:
            return {
                self._role if role is None else role: step for role, step in self._steps.items()
            }

    def go_on_from(self, steps: Mapping[str | None, int]) -> None:
        """Set the last steps to *steps*, by role."""
        with self.lock:
            own_steps = {role: step for role, step in steps.items() if role or not self._role}
            self._steps = {
                None if role == self._role else role: step for role, step in own_steps.items()
            }

    def flush(self) -> Checkpoint | None:
        """Append "write and retry now".

        Return the position of this record, ``None`` when nothing was ever appended.
        """
        with self.lock:
            # A forked child that has appended nothing stays unknown to the bridge.
            if self._segment.writer is not None:
                self.append(int(Signal.CONTROL), b"")
            return self._segment.checkpoint(self._seq)

    def end(self, status: str) -> Checkpoint | None:
        """Append the end of this process and release its segment.

        Return the position of the end.
        """
        with self.lock:
            if self._ended or self._segment.writer is None:
                self._ended = True
                self._closed = True
                return None
            if self._busy:  # from a signal handler inside a call: queued records and the end go before the outer record
                self._busy = False
                self._encoder = RowEncoder()
            # Else the end would go into a deleted file, whose writes succeed.
            if self._segment.is_lost():
                self._reopen()
            self._drain_queue()
            # Before the end, whose event follows the last counts of drops.
            count_unclosed(self.folder.run_id)
            # From here on the space that is reserved on a full disk may be used.
            self._ending = True
            self._do(self._write_end_event, status)
            self._ended = True
            self._closed = True
            checkpoint = self._segment.checkpoint(self._seq)
            self._segment.close()
            return checkpoint

    def after_fork(self) -> None:
        """Reset the recorder in a forked child.

        The child's first record opens a segment of its own.
        """
        forget_unclosed()
        self._begin()
        self.forked = True
        self._segment.close_inherited()

    def _do(self, write: Callable[..., object], *arguments: object) -> None:
        with self.lock:
            if self._busy:
                self._enqueue(self._do, write, *arguments)
                return
            must_repeat = False
            try:
                self._busy = True
                write(*arguments)
            except any_error() as exc:
                must_repeat = self._reopened_after(exc)
            finally:
                self._busy = False
            if must_repeat:
                self._do(write, *arguments)
            elif self._waiting:
                self._drain_queue()
            self._write_new_reasons()

    def _log_open_or_timed_row(
        self, values: object, step: object, role: object, *, commits: bool, time_unix_ns: object
    ) -> None:
        """Append a row that leaves its step open, unless it *commits*, or that has a time of its own."""
        own_ns = unix_ns(time_unix_ns, self.drops.count)
        other_role = self._other_role(role)
        if not commits and step is None and holds_nothing(values, self.drops.count):
            self._write_new_reasons()
            return
        self.log_row(values, step, role=other_role, _own=own_ns)
        if not commits:  # queued, like the row, inside another call
            self._do(self._open_steps.add, other_role)

    def _other_role(self, role: object) -> str | None:
        """Return *role* as text when it differs from the resource's role."""
        role_name = role_of(role)
        return None if role_name == self._role else role_name

    def _enqueue(
        self, write: Callable[..., object], *arguments: object, **keywords: object
    ) -> None:
        if len(self._waiting) >= _MAX_WAITING:
            self.drops.count("reentered", 1)
            return
        self._waiting.append(partial(write, *arguments, **keywords))

    def _drain_queue(self) -> None:
        while self._waiting:
            self._waiting.popleft()()

    def _encoded(
        self,
        values: object,
        now: int,
        step: int,
        role: str | None,
        seq: int,
        *,
        own: int,
        media: list[FoundMedia],
    ) -> bytes | None:
        """Encode a row, and add its media to *media*.

        Return ``None`` when no number of the row can be recorded.
        """
        numbers = flatten(values, self.drops.count, media)
        names = (role, *numbers)
        if names != self._names:  # most rows have the names of the previous row
            numbers = distinct(numbers, role or self._role, self.drops.count)
            # Names that collide are not remembered, so that the next row counts them again.
            self._names = names if len(numbers) == len(names) - 1 else ()
        return self._encoder.encode(numbers, now, step, role, seq, own_ns=own) if numbers else None

    def _put_media(
        self, now: int, own_ns: int, pairs: Mapping[str, Attribute], body: bytes
    ) -> bool:
        # Media are events, which a full directory accepts; they are refused as rows are.
        if self._closed and self._refuses(_METRICS):
            return False
        return self._event(semconv.EVENT_MEDIA, pairs, body, now, own=own_ns)

    def _record(self, signal: int, payload: bytes, time_unix_ns: int | None, whole: bool) -> None:
        if (
            self._ended
        ):  # an SDK that shuts down after the run collects once more, which is not a mistake
            self.drops.count("ended", 1)
            return
        now = time_ns()
        if not self._checked_at <= now < self._check_again:
            self._check(now)
        self._append(signal, payload, now if time_unix_ns is None else time_unix_ns, whole=whole)

    def _write_end_event(self, status: str) -> None:
        self._write_drops()
        self._event(
            semconv.EVENT_END, {semconv.RUN_STATUS: status, semconv.SEQ: self._seq}, None, time_ns()
        )
        self._append(
            int(Signal.CONTROL), b"", time_ns()
        )  # finish() waits for a writer that may pause or retry
        self.drops.notify()

    def _event(
        self, name: str, pairs: Mapping[str, Attribute], body: Attribute, now: int, *, own: int = 0
    ) -> bool:
        self._event_seq += 1
        numbered = {**pairs, semconv.EVENT_SEQ: self._event_seq}
        return self._append(
            int(Signal.LOGS), event(name, time_unix_ns=own or now, body=body, pairs=numbered), now
        )

    def _append(self, signal: int, payload: bytes, now: int, *, whole: bool = False) -> bool:
        if self._closed and self._refuses(signal):
            return False
        try:
            (self._segment.writer or self._segment.open(forked=self.forked)).append(
                signal, payload, now, whole=whole
            )
            self._spent += HEAD_BYTES + len(payload)
            self._use_room()
        except (
            SegmentClosedError
        ):  # the caller writes the record anew, with the numbers of a new segment
            raise
        except JournalError as exc:
            ends_full = signal == Signal.LOGS and isinstance(exc, JournalFullError) and self._ending
            if ends_full and self._segment.make_room():
                return self._append(signal, payload, now, whole=whole)
            if (
                signal != Signal.CONTROL
            ):  # a request to write now is not a record, so losing it loses nothing
                self.drops.count_failure(exc, payload)
            return False
        return True

    def _use_room(self, *, due: bool = False) -> None:
        """Add appended bytes to the quota.

        Count the directory again when *due*, or when they used up its room.
        """
        used_up = self._quota.took(self._spent)
        self._spent = 0
        if used_up or due:
            self._closed = self._ended or self._quota.full()
        self._room = self._quota.room

    def _step_of(self, step: object, role: str | None) -> int:
        # A step that is not a number is counted, and its row gets the step of a row without one.
        number = None if step is None else to_step(step, self.drops.count)
        if number is not None:
            return number
        last = self._steps.get(role)
        if last is None:
            return 0
        return last if role in self._open_steps else last + 1

    def _refuses(self, signal: int) -> bool:
        if self._ended:
            self.drops.count_after_end()
        elif signal in _REFUSED_WHEN_FULL:
            self.drops.count(self._quota.reason, 1)
        else:
            return False
        return True

    def _irregular(self, now: int) -> int:
        """Run due checks.

        Return the time of a row, which follows the last one even when the clock is set back.
        """
        # Also when the clock was set back, else the next check could be hours away.
        if not self._checked_at <= now < self._check_again:
            self._check(now)
        return max(now, self._last_ns + 1)

    def _check(self, now: int) -> None:
        # Before the checks: one that fails is not repeated with every row.
        self._checked_at = now
        self._check_again = now + _CHECK_EVERY_NS
        if self._ended:
            return
        # Before the bridge is ensured: its log needs the folder.
        if self._segment.is_lost():
            self._reopen()
        self._use_room(due=True)
        self.starter.ensure()
        if self.drops.due():
            self.drops.notify()
        # At each check, although printed once a minute: a kill loses the counts that were not
        # written.
        self._write_drops()

    def _write_drops(self) -> None:
        if counts := self.drops.unreported():
            keys = (
                {semconv.DROPPED_KEYS: dict(self.drops.first_keys)} if self.drops.first_keys else {}
            )
            if not self._event(semconv.EVENT_DROPPED, keys, dict(counts), time_ns()):
                self.drops.take_back_report()

    def _write_new_reasons(self) -> None:
        """Write the counts at once if a reason is new, unless the process has ended or is in another call.

        A process that makes no further call before a kill would otherwise have lost something with empty counts.
        """
        if self.drops.has_new_reason and not self._busy and not self._ended:
            self._do(self._write_drops)

    def _reopened_after(self, exc: Exception, payload: bytes | None = None) -> bool:
        """Return whether a new segment is open for the record that failed.

        Otherwise the record is counted.
        """
        if isinstance(exc, SegmentClosedError) and self._reopen():
            return True
        self.drops.count_failure(exc, payload)
        return False

    def _reopen(self) -> bool:
        """Continue as a new process, because the folder was deleted or the descriptor closed.

        Return whether it can.
        """
        # The numbers belong to the instance, and the new segment is of a new one.
        self._seq = 0
        self._event_seq = 0
        return self._segment.reopen(forked=self.forked)


# Rows that several calls fill, as those of W&B's ``commit=False``: each part is appended at once,
# the number last. A kill therefore loses no part: the bridge completes a row without a number when
# its process has ended.


@dataclass(slots=True)
class OpenRow:
    """Collects a row without a number.

    Attributes:
        role: Another role than the run's own.
        time_ns: Time of all its points; 0 before the first part.
        keys: Keys appended so far, as trackers show them.
    """

    role: str | None = None
    time_ns: int = 0
    keys: set[str] = field(default_factory=set[str])


class OpenRowRecorder(Recorder):
    """Records rows, also in parts. Nothing raises."""

    def add_part(self, row: OpenRow, values: Mapping[str, object], step: int) -> None:
        """Append *values* to *row*; a later value of a key replaces an earlier one.

        *step* may change until the end.
        """
        self._do(self._add_part, row, values, step)

    def end_row(self, row: OpenRow, step: int) -> None:
        """Append the number of *row*, and its final step; nothing happens without a part."""
        self._do(self._end_row, row, step)

    def _begin(self) -> None:
        super()._begin()
        self._part_names: tuple[str | None, ...] = ()
        self._part_keys: frozenset[str] = frozenset()

    def _add_part(self, row: OpenRow, values: Mapping[str, object], step: int) -> None:
        role = self._other_role(row.role)
        role_name = role or self._role
        now = time_ns()
        if not self._last_ns < now < self._check_again:
            now = self._irregular(now)
        # All parts have the time of the first one: the bridge joins them by it.
        time_ns_of_row = row.time_ns or now
        numbers = flatten(values, self.drops.count)
        if not numbers:
            return
        names = (role_name, *numbers)
        if names != self._part_names:  # most parts have the names of the previous one
            numbers = distinct(numbers, role_name, self.drops.count)
            self._part_names = names if len(numbers) == len(names) - 1 else ()
            self._part_keys = frozenset(key_of(role_name, key) for key in numbers)
        payload = self._encoder.encode_part(numbers, time_ns_of_row, step, role)
        if not row.time_ns:
            row.time_ns = time_ns_of_row
            self._last_ns = time_ns_of_row
        # Keys of a refused part are left out: the number would promise more values than arrive.
        if self._append(_METRICS, payload, now):
            row.keys |= self._part_keys

    def _end_row(self, row: OpenRow, step: int) -> None:
        if not row.keys:
            return
        role = self._other_role(row.role)
        self._steps[role] = step
        self._seq += 1
        payload = self._encoder.encode_number(len(row.keys), row.time_ns, step, role, self._seq)
        # Refused: the next row gets the number, and none is missing.
        if not self._append(_METRICS, payload, time_ns()):
            self._seq -= 1
