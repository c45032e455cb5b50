"""The one place where a process's records are numbered, encoded and appended. No thread, no socket.

Thread-safe by a re-entrant lock: a signal handler or finaliser that logs inside a call on its own thread is queued and
written after the outer record. Fork-safe: a child begins anew, as a process of its own, with its first record.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from time import time_ns
from typing import Final, NamedTuple

from otel_bridge import semconv
from otel_bridge.emit.drops import Drops
from otel_bridge.emit.events import event
from otel_bridge.emit.keeper import BridgeKeeper
from otel_bridge.emit.lines import say
from otel_bridge.emit.rows import RowEncoder
from otel_bridge.emit.values import flatten, to_step
from otel_bridge.emit.wire import Attribute
from otel_bridge.errors import JournalError, JournalFullError
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.frames import MAX_RECORD_BYTES, Signal
from otel_bridge.journal.header import SegmentHeader
from otel_bridge.journal.life import Life
from otel_bridge.journal.quota import Quota
from otel_bridge.journal.segment import SegmentWriter

_METRICS: Final = int(Signal.METRICS)
_CHECK_EVERY_NS: Final = 1_000_000_000
_MAX_WAITING: Final = 10_000
_REFUSED_WHEN_FULL: Final = frozenset({int(Signal.METRICS), int(Signal.TRACES)})


class Mark(NamedTuple):
    """A place in a process's segments: all before it was appended, and that are `rows` rows."""

    instance_id: str
    number: int
    offset: int
    rows: int = 0


MakeHeader = Callable[[str, bool], SegmentHeader]
"""From an instance id and whether it is a forked child to the header of its first segment."""


class Sink:
    """Appends one process's records to its segments.

    Args:
        folder: The run folder; created here.
        make_header: Makes the header of a new instance.
        keeper: Sees to the bridge.
        quota: Limit of the base folder.
        segment_bytes: Size at which a segment is closed.
        role: Role of the resource.

    Raises:
        JournalError: The folder or the segment cannot be made.
    """

    def __init__(
        self,
        folder: RunFolder,
        make_header: MakeHeader,
        keeper: BridgeKeeper,
        quota: Quota,
        *,
        segment_bytes: int,
        role: str | None,
    ) -> None:
        self.folder = folder
        self.keeper = keeper
        self._make_header = make_header
        self._quota = quota
        self._segment_bytes = segment_bytes
        self._role = role
        self._last_ns = 0
        self._steps: dict[str | None, int] = {}
        self._ended = False
        self.forked = False
        self._begin()
        self._checked_at = time_ns()
        self._check_again = self._checked_at + _CHECK_EVERY_NS
        self._open()

    def _begin(self) -> None:
        """Set what belongs to one instance."""
        self.lock = threading.RLock()
        self.drops = Drops()
        self._busy = False
        self._waiting: deque[Callable[[], object]] = deque()
        self._encoder = RowEncoder()
        self._writer: SegmentWriter | None = None
        self._life: Life | None = None
        self._seq = self._event_seq = 0
        self._closed = self._ended

    # --- records ------------------------------------------------------------------------------------------------------

    def row(self, values: object, step: object = None, *, role: str | None = None, now: int = 0) -> None:
        """Append a row: `Run.log` itself, so one body, in which every call counts.

        Args are those of `Run.log`, and *now*: when it was logged, if that was earlier.
        """
        with self.lock:
            if self._busy:
                self._later(self.row, flatten(values, self._drop), step, role=role, now=time_ns())
                return
            seq, payload = self._seq, None
            try:
                self._busy = True
                now = now or time_ns()
                if not self._last_ns < now < self._check_again:
                    now = self._irregular(now)
                    seq = self._seq
                self._last_ns = now
                if role is not None and role == self._role:
                    role = None
                if type(step) is not int:
                    step = self._step_of(step, role)
                self._steps[role] = step
                # Before the write: after it a signal handler may raise, and a number given twice would lose a row.
                self._seq = seq + 1
                if type(values) is dict:
                    payload = self._encoder.encode_known(values, now, step, role, seq + 1)  # pyright: ignore[reportUnknownArgumentType]  # any dict
                if payload is None:
                    payload = self._encoded(values, now, step, role, seq + 1)  # pyright: ignore[reportUnknownArgumentType]
                if payload is None:
                    self._seq = seq
                elif (writer := self._writer) is None or self._closed:
                    self._seq = seq + self._append(_METRICS, payload, now)
                else:
                    writer.append(_METRICS, payload, now)
            except Exception as exc:  # noqa: BLE001  # nothing of ours may end a training run
                self._seq = seq
                self._failed(exc, payload)
            finally:
                self._busy = False
            if self._waiting:
                self._write_waiting()

    row.__qualname__ = "Run.log"  # what a wrong keyword's TypeError names

    def pass_row(self, values: object, step: object = None, *, role: str | None = None) -> None:  # noqa: ARG002
        """Take note of the step of a row that is not written: `Run.log` of ranks above 0."""
        with self.lock:
            role = None if role == self._role else role
            self._steps[role] = self._step_of(step, role)

    def append(self, signal: int, payload: bytes, time_unix_ns: int | None = None, *, whole: bool = False) -> None:
        """Append one encoded record; a *whole* one is a request with resources of its own."""
        self._do(self._record, signal, payload, time_unix_ns, whole)

    def event(self, name: str, pairs: Mapping[str, Attribute], body: Attribute = None) -> None:
        """Append an event of ours, numbered."""
        self._do(self._event, name, pairs, body, time_ns())

    def next_event_seq(self) -> int:
        """Return the number of this process's next event, from 1."""
        with self.lock:
            self._event_seq += 1
            return self._event_seq

    def count(self, reason: str, number: int = 1) -> None:
        """Count a drop."""
        with self.lock:
            self.drops.count(reason, number)

    def last_step(self, role: str | None) -> int | None:
        """Return the last step of *role* in this process."""
        return self._steps.get(None if role == self._role else role)

    def flush(self) -> Mark | None:
        """Append "write and retry now"; return where that stands, ``None`` when nothing was ever appended."""
        with self.lock:
            if self._writer is not None:
                self.append(int(Signal.CONTROL), b"")
            return self._mark()

    def end(self, status: str) -> Mark | None:
        """Append the end of this process and let go of its segment; return where that stands."""
        with self.lock:
            if self._ended or self._writer is None:
                self._ended = self._closed = True
                return None
            if self._busy:  # from a signal handler inside a call: what waits and the end go before the outer record
                self._busy, self._encoder = False, RowEncoder()
            self._write_waiting()
            self._do(self._say_end, status)
            self._ended = self._closed = True
            mark = self._mark()
            self._let_go()
            return mark

    def after_fork(self) -> None:
        """Begin anew in a forked child: its first record opens a segment of its own."""
        writer = self._writer
        self._begin()
        self.forked = True
        if writer is not None:
            _close(writer)

    # --- under the lock -----------------------------------------------------------------------------------------------

    def _do(self, write: Callable[..., object], *arguments: object) -> None:
        with self.lock:
            if self._busy:
                self._later(self._do, write, *arguments)
                return
            try:
                self._busy = True
                write(*arguments)
            except Exception as exc:  # noqa: BLE001
                self._failed(exc)
            finally:
                self._busy = False
            if self._waiting:
                self._write_waiting()

    def _later(self, write: Callable[..., object], *arguments: object, **named: object) -> None:
        if len(self._waiting) >= _MAX_WAITING:
            self._drop("reentered", 1)
            return
        self._waiting.append(partial(write, *arguments, **named))

    def _write_waiting(self) -> None:
        while self._waiting:
            self._waiting.popleft()()

    def _encoded(self, values: object, now: int, step: int, role: str | None, seq: int) -> bytes | None:
        """Encode a row; ``None`` when nothing of it can be taken."""
        numbers = flatten(values, self._drop)
        return self._encoder.encode(numbers, now, step, role, seq) if numbers else None

    def _record(self, signal: int, payload: bytes, time_unix_ns: int | None, whole: bool) -> None:
        if self._ended:  # an SDK that shuts down behind the run collects once more: nobody's mistake
            self._drop("ended", 1)
            return
        now = time_ns()
        if not self._checked_at <= now < self._check_again:
            self._check(now)
        self._append(signal, payload, now if time_unix_ns is None else time_unix_ns, whole=whole)

    def _say_end(self, status: str) -> None:
        self._tell_drops()
        self._event(semconv.EVENT_END, {semconv.RUN_STATUS: status, semconv.SEQ: self._seq}, None, time_ns())
        self._append(int(Signal.CONTROL), b"", time_ns())  # finish() waits for a writer that may rest or retry
        self.drops.say()

    def _event(self, name: str, pairs: Mapping[str, Attribute], body: Attribute, now: int) -> None:
        self._event_seq += 1
        numbered = {**pairs, semconv.EVENT_SEQ: self._event_seq}
        self._append(int(Signal.LOGS), event(name, time_unix_ns=now, body=body, pairs=numbered), now)

    def _append(self, signal: int, payload: bytes, now: int, *, whole: bool = False) -> bool:
        if self._closed and self._refuses(signal):
            return False
        try:
            (self._writer or self._open()).append(signal, payload, now, whole=whole)
        except JournalError as exc:
            if signal != Signal.CONTROL:  # a request to write now is no record: nothing is lost with it
                self._failed(exc, payload)
            return False
        return True

    def _step_of(self, step: object, role: str | None) -> int:
        found = None if step is None else to_step(step, self._drop)
        return self._steps.get(role, -1) + 1 if found is None else found

    def _drop(self, reason: str, number: int) -> None:
        self.drops.count(reason, number)

    def _refuses(self, signal: int) -> bool:
        if self._ended:
            self._after_end()
        elif signal in _REFUSED_WHEN_FULL:
            self._drop("directory_full", 1)
        else:
            return False
        return True

    def _after_end(self) -> None:
        self._drop("ended", 1)
        if self.drops.counts["ended"] == 1:
            say("a record came after finish(): it is not recorded, nor are those after it", always=True)

    def _failed(self, exc: Exception, payload: bytes | None = None) -> None:
        if isinstance(exc, JournalFullError):
            self._drop("disk_full", 1)
        elif isinstance(exc, JournalError):
            self._drop("too_large" if payload and len(payload) > MAX_RECORD_BYTES else "not_written", 1)
        else:
            self._drop("internal_error", 1)
            if self.drops.counts["internal_error"] == 1:
                say(f"a record was dropped: {type(exc).__name__}: {exc}", always=True)

    # --- once a second ------------------------------------------------------------------------------------------------

    def _irregular(self, now: int) -> int:
        """Check what is due; return the time of a row, which is behind the last one also when the clock is set back."""
        if not self._checked_at <= now < self._check_again:
            self._check(now)
        return max(now, self._last_ns + 1)

    def _check(self, now: int) -> None:
        self._checked_at, self._check_again = now, now + _CHECK_EVERY_NS
        if self._ended:
            return
        if self._writer is not None and not self._writer.linked():
            self._move()
        self._closed = self._quota.full()
        self.keeper.ensure()
        if self.drops.due():
            self.drops.say()
            self._tell_drops()

    def _tell_drops(self) -> None:
        counts = self.drops.untold()
        if counts:
            self._event(semconv.EVENT_DROPPED, {}, dict(counts), time_ns())

    def _move(self) -> None:
        """Begin a new segment as a new instance: the folder was deleted, and the bridge's ledger with it."""
        self._let_go()
        self._seq = self._event_seq = 0
        say(f"{self.folder.path} was deleted; going on in a new folder", always=True)
        # Before a bridge is looked for: it needs a folder. One that cannot be made is tried again with the next record.
        with contextlib.suppress(JournalError):
            self._open()

    # --- the segment --------------------------------------------------------------------------------------------------

    def _open(self) -> SegmentWriter:
        """Open the first segment of a new instance: first the sign of life, then the segment, then the bridge's lock.

        Raises:
            JournalError: It cannot be made.
        """
        instance_id = os.urandom(8).hex()
        self.folder.create()
        life = Life.hold(self.folder, instance_id)
        try:
            header = self._make_header(instance_id, self.forked)
            self._writer = SegmentWriter(self.folder, header, segment_bytes=self._segment_bytes)
        except JournalError:
            life.release()
            raise
        self._life = life
        if self.forked:
            _at_worker_end(self)
        return self._writer

    def _mark(self) -> Mark | None:
        writer = self._writer
        return None if writer is None else Mark(writer.instance_id, writer.number, writer.offset, self._seq)

    def _let_go(self) -> None:
        writer, life = self._writer, self._life
        self._writer = self._life = None
        if writer is not None:
            _close(writer)
        if life is not None:
            life.release()


def _close(writer: SegmentWriter) -> None:
    # The descriptor's number may belong to somebody else by now (a program that closes all descriptors).
    with contextlib.suppress(OSError, JournalError):
        if writer.linked():
            writer.close()


def _at_worker_end(sink: Sink) -> None:
    """Say the end of a multiprocessing worker, which runs no atexit handlers but its package's own."""
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        util.Finalize(None, sink.end, args=("finished",), exitpriority=0)
