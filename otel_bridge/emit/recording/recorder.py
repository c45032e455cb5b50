"""Recorder that encodes the records of one process. No thread, no socket.

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
from typing import cast

from otel_bridge.emit.arguments import counts_unknown, role_of, unix_ns
from otel_bridge.emit.bridge_process.starter import BridgeStarter
from otel_bridge.emit.drops import Drops
from otel_bridge.emit.encode.protobuf import Attribute
from otel_bridge.emit.encode.reductions import with_reductions
from otel_bridge.emit.encode.row import RowShape
from otel_bridge.emit.encode.values import (
    FoundMedia,
    Value,
    distinct,
    flatten,
    flatten_all,
    has_entries,
)
from otel_bridge.emit.live_registry import count_unclosed, forget_unclosed
from otel_bridge.emit.media.log import MediaLog
from otel_bridge.emit.recording.appender import RecordAppender
from otel_bridge.emit.recording.process_segment import (
    Checkpoint,
    MakeHeader,
    ProcessSegment,
)
from otel_bridge.emit.recording.steps import LastSteps
from otel_bridge.errors import any_error_but_signals
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.frames import Signal
from otel_bridge.journal.quota import Quota
from otel_bridge.records import key_of

_METRICS = int(Signal.METRICS)
# Bounds the memory of a signal handler that logs again and again inside one call.
_MAX_WAITING = 10_000


@dataclass(frozen=True, slots=True)
class RowRules:
    """Defines how the rows of one process are recorded.

    Attributes:
        role: Role of the resource.
        merges_ranks: Whether the rows of all ranks become one, so that `reduce` of a row is sent.
        are_recorded: Whether rows are recorded: those of ranks above 0 only count steps.
    """

    role: str | None
    merges_ranks: bool = False
    are_recorded: bool = True


@dataclass(slots=True)
class OpenRow:
    """Collects a row that several calls fill, as those of W&B's ``commit=False``.

    Each part is appended at once, the number last. A kill therefore loses no part: the bridge
    completes a row without a number when its process has ended.

    Attributes:
        role: Another role than the run's own.
        time_ns: Time of all its points; 0 before the first part.
        keys: Keys appended so far, as trackers show them.
    """

    role: str | None = None
    time_ns: int = 0
    keys: set[str] = field(default_factory=set[str])


class Recorder:
    """Records what one process logs.

    Args:
        folder: The run folder; created here.
        make_header: Callable that makes the header of a new instance.
        starter: Starter that ensures a running bridge.
        quota: Limit of the base folder.
        segment_bytes: Size at which a segment is closed.
        rules: What is recorded of rows.
        media: Limits of media.

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
        rules: RowRules,
        media: MediaLog,
    ) -> None:
        self.folder = folder
        self.starter = starter
        self._rules = rules
        self._media = media
        self._steps = LastSteps()
        self._begin()
        self._segment = ProcessSegment(
            folder, make_header, segment_bytes=segment_bytes, at_worker_end=self.end
        )
        self._appender = RecordAppender(self._segment, starter, quota)

    def _begin(self) -> None:
        """Set the state of one instance."""
        # Re-entrant for signal handlers; new in a child, where a thread may have held the old one.
        self._lock = threading.RLock()
        self._busy = False
        self._waiting: deque[Callable[[], object]] = deque()
        # Role and keys of the last row, if no two of its keys are one in trackers, and its shape.
        self._last_row: tuple[tuple[object, ...], RowShape] = ((), RowShape({}))

    @property
    def drops(self) -> Drops:
        """Return the counts of what this instance did not record."""
        return self._appender.drops

    @property
    def forked(self) -> bool:
        """Return whether this process is a forked child of the one that began the run."""
        return self._segment.forked

    @counts_unknown
    def log_row(
        self,
        values: object = None,
        step: object = None,
        commit: object = True,
        *,
        role: object = None,
        time_unix_ns: object = None,
        reduce: object = None,
    ) -> None:
        """Append a row. This is `Run.log` itself, and the arguments are those of it.

        Values are read here only inside another call, as of a signal handler; else where the row is
        written, under the same lock. What cannot be recorded is counted.
        """
        with self._lock:
            if reduce is not None and self._rules.merges_ranks:
                values = with_reductions(values, reduce, self.drops.count)
            if self._busy:
                # Read now: the program may change its values before the queue is written.
                values = flatten_all(values, self.drops.count)
            other_role = None if role is None else self._other_role(role)
            own_ns = 0
            if time_unix_ns is not None:
                own_ns = unix_ns(time_unix_ns, self.drops.count)
            commits = commit is not False
            self._do_locked(
                self._write_row, values, step, other_role, commits, time_ns(), own_ns
            )

    log_row.__qualname__ = "Run.log"

    def append(
        self,
        signal: int,
        payload: bytes,
        time_unix_ns: int | None = None,
        *,
        whole: bool = False,
    ) -> None:
        """Append one encoded record.

        A *whole* one is a request with resources of its own; never raises.
        """
        self._do(self._appender.append_other, signal, payload, time_unix_ns, whole)

    def event(
        self, name: str, pairs: Mapping[str, Attribute], body: Attribute = None
    ) -> None:
        """Append a numbered event of otel-bridge."""
        self._do(self._appender.append_event, name, pairs, body, time_ns())

    def next_event_seq(self) -> int:
        """Return the number of this process's next event, from 1."""
        with self._lock:
            return self._appender.next_event_seq()

    def count_after_end(self) -> None:
        """Count a record that comes after the end, or during it; the first one is reported."""
        with self._lock:
            self.drops.count_after_end()

    def count_drop(self, reason: str, number: int = 1, key: str = "") -> None:
        """Count a drop; *key* is the dropped key.

        A reason that is new is appended at once, so that a kill right after it does not hide that
        something was lost.
        """
        with self._lock:
            self.drops.count(reason, number, key)
            # Inside another call, the end of that call writes it.
            if self.drops.has_new_reason and not self._busy:
                self._do(self._appender.write_drops)

    def last_step(self, role: str | None) -> int | None:
        """Return the last step of *role* in this process; ``None`` before its first."""
        return self._steps.by_role.get(role or self._rules.role)

    def next_step(self, role: str | None) -> int:
        """Return the step that a row of *role* without one would get now."""
        return self._steps.after_last(role or self._rules.role)

    def last_steps(self) -> dict[str | None, int]:
        """Return the last step of every role, the resource's by its name."""
        with self._lock:
            return dict(self._steps.by_role)

    def go_on_from(self, steps: Mapping[str | None, int]) -> None:
        """Set the last steps to *steps*, by role."""
        self._steps.go_on_from(steps)

    def flush(self) -> Checkpoint | None:
        """Append "write and retry now".

        Return the position of this record, ``None`` when nothing was ever appended: then nothing is
        to be awaited.
        """
        with self._lock:
            # A forked child that has appended nothing stays unknown to the bridge.
            if self._appender.is_open:
                self.append(int(Signal.CONTROL), b"")
            return self._appender.checkpoint()

    def end(self, status: str) -> Checkpoint | None:
        """Append the end of this process and release its segment.

        Return the position of the end, ``None`` when nothing was appended since the last one. May
        be called again, and from a signal handler; a later record is counted as ``ended``.
        """
        with self._lock:
            if self._appender.is_open:
                # From a signal handler inside a call: queued records and the end go before the
                # outer record.
                self._busy = False
                self._appender.reopen_if_lost()
                self._drain_queue()
                # Before the end, whose event follows the last counts of drops.
                count_unclosed(self.folder.run_id)
                self._do(self._appender.write_end, status)
            return self._appender.close()

    def after_fork(self) -> None:
        """Reset the recorder in a forked child.

        The child's first record opens a segment of its own.
        """
        forget_unclosed()
        self._begin()
        self._appender.begin_in_child()

    # --- rows in parts ----------------------------------------------------------------------------

    def add_part(self, row: OpenRow, values: Mapping[str, object], step: int) -> None:
        """Append *values* to *row*; a later value of a key replaces an earlier one.

        *step* may change until the end. Only of rank 0, as captured runs are: rows of other ranks
        are not left out here.
        """
        self._do(self._add_part, row, values, step)

    def end_row(self, row: OpenRow, step: int) -> None:
        """Append the number of *row*, and its final step; nothing happens without a part."""
        self._do(self._end_row, row, step)

    def _add_part(self, row: OpenRow, values: Mapping[str, object], step: int) -> None:
        """Append a part of a row; nothing when none of *values* is a number."""
        role = self._other_role(row.role)
        now = self._appender.time_of_row(time_ns())
        numbers, shape = self._numbers(values, role)
        if not numbers:
            return
        # All parts have the time of the first one: the bridge joins them by it.
        row.time_ns = row.time_ns or now
        payload = shape.encode(numbers, row.time_ns, step, role, None)
        # Keys of a refused part are left out: the number would promise more values than arrive.
        if self._appender.append(_METRICS, payload, now):
            role_name = role or self._rules.role
            row.keys.update(key_of(role_name, key) for key in numbers)

    def _end_row(self, row: OpenRow, step: int) -> None:
        """Append the number of a row, and its step as the role's last.

        Nothing for a row without parts.
        """
        if not row.keys:
            return
        role = self._other_role(row.role)
        self._steps.take(step, role or self._rules.role, self.drops.count, commits=True)
        encode = partial(
            RowShape({}).encode,
            {},
            row.time_ns,
            step,
            role,
            earlier_values=len(row.keys),
        )
        self._appender.append_row(encode, time_ns())

    # --- rows -------------------------------------------------------------------------------------

    def _write_row(  # noqa: PLR0917  # called for every row: keywords would cost
        self,
        values: object,
        step: object,
        role: str | None,
        commits: bool,
        logged_ns: int,
        own_ns: int,
    ) -> None:
        """Append a row, and let its media follow.

        A row without values only closes its step; a rank whose rows are not recorded only counts
        it.

        Args:
            values: See `Run.log`, as *step*.
            step: The step that the call gives.
            role: Another role than the resource's.
            commits: Whether the row ends its step.
            logged_ns: Time of the call.
            own_ns: The row's own wall time; 0 without one.
        """
        count = self._appender.drops.count
        role_name = self._rules.role if role is None else role
        if step is None and not has_entries(values):
            flatten(values, count)  # counts what is not a mapping
            # A row without values has no step, but ends one that is open, as in W&B.
            if commits:
                self._steps.close(role_name)
            return
        now = self._appender.time_of_row(logged_ns)
        number = self._steps.take(step, role_name, count, commits=commits)
        # No drop: OTEL_BRIDGE_RANKS=0 leaves out the rows of ranks above 0, as `init` has printed. Only
        # their step counts, which the rank's rollouts and phases may take.
        if not self._rules.are_recorded:
            return
        media: list[FoundMedia] = []
        numbers, shape = self._numbers(values, role, media)
        if numbers:
            encode = partial(shape.encode, numbers, now, number, role)
            # Rare, and keywords of a partial cost a row a tenth of its time.
            if own_ns:
                encode = partial(encode, own_ns=own_ns)
            self._appender.append_row(encode, now)
        if media:
            # After their row: reading media may run code of the program that logs.
            put = partial(self._appender.append_media, now, own_ns)
            self._waiting.append(
                partial(self._do, self._media.append, media, number, role, count, put)
            )

    def _numbers(
        self, values: object, role: str | None, media: list[FoundMedia] | None = None
    ) -> tuple[dict[str, Value], RowShape]:
        """Return the numbers in *values* by key, each key that trackers show once, and their shape.

        Add media to *media*. Empty when none of them is a number.
        """
        last_names, last_shape = self._last_row
        if type(values) is dict:
            # A copy, which no other thread changes meanwhile.
            row = cast("dict[str, Value]", values).copy()
            # Nearly every row: keys that were read and shown before, and floats alone, as then.
            if (role, *row) == last_names and last_shape.fits_floats(row):
                return row, last_shape
        count = self._appender.drops.count
        numbers = flatten(values, count, media)  # pyright: ignore[reportUnknownArgumentType]  # any dict
        names: tuple[object, ...] = (role, *numbers)
        if names != last_names:
            numbers = distinct(numbers, role or self._rules.role, count)
            # Names that collide are not remembered, so that the next row counts them again.
            if len(numbers) < len(names) - 1:
                names = ()
        shape = RowShape(numbers)
        self._last_row = (names, shape)
        return numbers, shape

    def _other_role(self, role: object) -> str | None:
        """Return *role* as text when it differs from the resource's role."""
        role_name = role_of(role)
        if role_name == self._rules.role:
            return None
        return role_name

    # --- calls inside calls -----------------------------------------------------------------------

    def _do(self, write: Callable[..., object], *arguments: object) -> None:
        """Call *write*, and then what was queued meanwhile; inside another call, queue it.

        What *write* raises is counted by its kind (`Drops.count_failure`); only what a signal
        handler of the program raises passes through, and what is queued then waits for the next
        call or the end. Beyond 10,000 queued calls the next is counted as ``reentered``.
        """
        with self._lock:
            self._do_locked(write, *arguments)

    def _do_locked(self, write: Callable[..., object], *arguments: object) -> None:
        """Do as `_do` says; the caller holds the lock."""
        if self._busy:
            if len(self._waiting) >= _MAX_WAITING:
                self.drops.count("reentered", 1)
            else:
                self._waiting.append(partial(self._do, write, *arguments))
            return
        try:
            self._busy = True
            write(*arguments)
        except any_error_but_signals() as exc:
            # Nothing of otel-bridge may end a training run.
            self.drops.count_failure(exc)
        finally:
            self._busy = False
        if self._waiting:
            self._drain_queue()
        # At once: a process that makes no further call before a kill would otherwise have lost
        # something with empty counts.
        if self._appender.drops.has_new_reason:
            self._do_locked(self._appender.write_drops)

    def _drain_queue(self) -> None:
        while self._waiting:
            self._waiting.popleft()()
