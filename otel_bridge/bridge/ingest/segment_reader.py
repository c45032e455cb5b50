"""Reads the segments of one run folder through translation into the ledger.

`SegmentReader.collect` translates frames of all segments in the order of their append time. So a
folder that is read late gives the same result as one that is read live. `SegmentReader.commit`
commits the result (records, changes of state, offsets) in one transaction, as a whole or not at
all. One thread.
"""

from __future__ import annotations

import contextlib
import heapq
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from functools import partial

from otel_bridge.bridge.ingest.segment_tailer import SegmentTailer
from otel_bridge.bridge.ledger.run_ledger import Ledger
from otel_bridge.bridge.ledger.translation_state import LedgerState
from otel_bridge.bridge.process_segments import ProcessSegments
from otel_bridge.errors import FormatVersionError, JournalError
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.frames import Frame, Signal
from otel_bridge.journal.header import SegmentHeader
from otel_bridge.journal.liveness import alive
from otel_bridge.records import Record, Status
from otel_bridge.translation.options import OtherTraces, TranslationOptions
from otel_bridge.translation.rollouts.assembly import ReceivedTrace
from otel_bridge.translation.state import count
from otel_bridge.translation.translator import Translator

SEGMENT_GAPS = "segment_gaps"
"""Reason of a drop: stretches of segments that hold no readable frame."""
_WITHOUT_CONTENT = "segment_without_content/"
"""Prefix of the keys under which the state notes the segments without content that are counted."""
BATCH_FRAMES = 4_000
BATCH_BYTES = 4 << 20
_TICK_NS = 250_000_000
"""Difference of append times after which the clock of translation advances, while frames are read
late."""
_LATE_NS = 1_000_000_000
"""Age from which a frame counts as read late, so that the clock of translation follows the frames."""
_ALL = (1 << 62, 0)
_NEVER = (1 << 64, "")


@dataclass(frozen=True, slots=True)
class ReadBatch:
    """Holds what one poll of the reader collected, to be committed.

    Attributes:
        headers: Headers of the processes whose first segment was found. A batch with headers has no
            frames: the requests of a process are stored before its records.
        records: Records that the frames were translated to.
        frames: Number of frames used.
        has_more: Whether there is more to read at once.
        flush: Whether a process requested to write and retry now.
    """

    headers: list[SegmentHeader] = field(default_factory=list[SegmentHeader])
    records: list[Record] = field(default_factory=list[Record])
    frames: int = 0
    has_more: bool = False
    flush: bool = False


class SegmentReader:
    """Reads all segments of a run folder into its ledger.

    Fourteen attributes, because a batch is collected and committed, or taken back, as a whole:
    tails, state and translator are made anew together after a failure, and the rest is what that
    needs. An error ends the poll of the run; the next one goes on from the ledger's position.

    Args:
        folder: The run folder, whose lock is held.
        ledger: Its ledger.
        options: Options of translation.
        other_traces: Returns how traces that are not rollouts are treated.
        log_line: Takes one line for the log.

    Attributes:
        caught_up: Whether everything that existed at the last read has been read.
        consistent: Whether memory holds the same as the ledger. It does not between collecting and
            committing a batch, or while the ledger cannot be read.

    Raises:
        LedgerDamagedError: The stored state is damaged.
        JournalError: The ledger cannot be read.
    """

    def __init__(
        self,
        folder: RunFolder,
        ledger: Ledger,
        options: TranslationOptions,
        *,
        other_traces: Callable[[], OtherTraces],
        log_line: Callable[[str], None],
    ) -> None:
        self.tails: dict[str, SegmentTailer] = {}
        self.caught_up = False
        self._folder = folder
        self._ledger = ledger
        self._options = options
        self._log_line = log_line
        self._listed_ns: int | None = None
        self._without_content: list[str] = []
        self._view = ledger.view()
        # A run without a read position has waited for no other bridge: a short job is over before
        # its service opens the folder.
        opened_unix_ns = 0
        self._ticked_ns = 0
        try:
            if self._view.sources():
                opened_unix_ns = time.time_ns()
            self._new_translator = partial(
                Translator,
                options=options,
                other_traces=other_traces,
                opened_unix_ns=opened_unix_ns,
            )
            self._begin()
        except BaseException:
            self._view.close()
            raise

    def _begin(self) -> None:
        """Begin at the position of the ledger; also after a commit that failed.

        Raises `JournalError` when the ledger cannot be read; `consistent` is ``False`` then, so
        that the next call of any method begins again.
        """
        self.consistent = False
        self.caught_up = False
        self.state = LedgerState(self._view)
        self.translator = self._new_translator(self.state)
        # What is known of the files stays true; only positions go back to those of the ledger.
        listed = {
            instance_id: tail.segments for instance_id, tail in self.tails.items()
        }
        tails: dict[str, SegmentTailer] = {}
        for source in self._view.sources():
            new = ProcessSegments(self._folder, source.instance_id, source.number)
            tails[source.instance_id] = SegmentTailer(
                listed.pop(source.instance_id, new), source
            )
        self.tails = tails | {
            name: SegmentTailer(segments) for name, segments in listed.items()
        }
        self.consistent = True

    def discover_segments(self, *, now: bool = False) -> None:
        """Find new segments; cheap while the folder does not change.

        A folder that cannot be listed shows none: the next call looks again.

        Args:
            now: Whether to list the folder in any case.
        """
        changed_ns = self._folder.segments_changed_ns()
        if not now and changed_ns is not None and changed_ns == self._listed_ns:
            return
        files, self._without_content = self._folder.listed_segments()
        # Of before the listing: a segment that appears meanwhile changes the time once more. Not of
        # an empty one, which a folder that cannot be listed shows too, as without a free file.
        self._listed_ns = None
        if files:
            self._listed_ns = changed_ns
        for file in files:
            tail = self.tails.get(file.instance_id)
            if tail is None:
                segments = ProcessSegments(self._folder, file.instance_id, file.number)
                tail = SegmentTailer(segments)
                self.tails[file.instance_id] = tail
            tail.segments.listed(file.number)

    def collect(self) -> ReadBatch:
        """Translate the available frames, up to one batch. A batch that is not committed is collected again.

        Raises:
            JournalError: The ledger cannot be read; the next call begins at the ledger's position
                again.
        """
        with self._or_as_before():
            batch = self._collect()
            self.consistent = False
            return batch

    def commit(self, batch: ReadBatch) -> None:
        """Commit *batch*, the last one collected.

        Raises:
            JournalError: The batch could not be committed; the next call of `collect` collects it
                again.
        """
        self.consistent = True
        with self._or_as_before():
            self._commit(batch.records)
        # After the commit: a writer that sees it finds the last records in the ledger.
        self.caught_up = not batch.has_more

    def falls_behind(self) -> bool:
        """Return whether there is more than was read, by the sizes of the files, and record that in `caught_up`.

        A run whose reader pauses must not count as read: processes would be ended, and waiting data
        released.
        """
        behind = any(tail.behind() for tail in self.tails.values())
        self.caught_up = self.caught_up and not behind
        return behind

    def close_translation(
        self, status: Status | None = None, *, over: bool = True
    ) -> int:
        """Release all waiting data; return the number of records that resulted.

        Args:
            status: Status of processes that did not send their end; ``None`` to infer it.
            over: Whether nothing more will come, so that remote processes end too. Else they may
                continue.

        Raises:
            JournalError: The records could not be committed; all of them still wait.
        """
        with self._or_as_before():
            now_ns = time.time_ns()
            records = (
                self.translator.close(now_ns, status)
                if over
                else self.translator.pause(now_ns)
            )
            self._commit(records)
            return len(records)

    def adopt(self, stray: ReceivedTrace) -> None:
        """Store spans of a rollout of this run that another run received.

        Raises `JournalError` as `commit` does.
        """
        with self._or_as_before():
            self._commit(self.translator.adopt(stray, time.time_ns()))

    def give_away(self, trace_id: str) -> None:
        """Forget a trace that another run has stored; raises `JournalError` as `commit` does."""
        with self._or_as_before():
            self.translator.rollouts.give_away(trace_id)
            self._commit([])

    def count_drops(self, reason: str, number: int, name: str) -> None:
        """Count what the bridge itself dropped, with *name* as an example, as `count` does.

        Raises `JournalError` as `commit` does; nothing is counted then.
        """
        with self._or_as_before():
            count(self.state, reason, number, name=name)
            self._commit([])

    def offsets(self) -> dict[str, tuple[int, int]]:
        """Return number and offset up to which each process is read.

        Refused segments count as read.
        """
        return {
            name: _ALL if tail.segments.refused else (tail.number, tail.offset)
            for name, tail in self.tails.items()
        }

    def close(self) -> None:
        """Close the connection to the ledger."""
        self._view.close()

    @contextlib.contextmanager
    def _or_as_before(self) -> Generator[None]:
        """Begin again at the ledger's position when the body fails.

        State in memory holds changes that were not committed, so that it cannot be used any more.
        If that fails too, the next call begins again.
        """
        if not self.consistent:
            self._begin()
        try:
            yield
        except Exception:
            self._begin()
            raise

    def _collect(self) -> ReadBatch:
        """Return the new headers, or, without any, a batch of frames. Only a batch with all frames ticks the clock.

        A batch has at most `BATCH_FRAMES` frames or about `BATCH_BYTES`, so that memory and the
        transaction stay small. Raises `JournalError` when state cannot be read.
        """
        self._count_without_content()
        filled: list[tuple[str, SegmentTailer]] = []
        for name, tail in self.tails.items():
            if self._filled(tail):
                filled.append((name, tail))
        headers = self._take_headers()
        if headers:  # at once: a process that has not logged yet keeps the run open too
            self._open(headers)
            return ReadBatch(headers, has_more=True)
        records: list[Record] = []
        frames = 0
        size_bytes = 0
        flush = False
        for tail in self._by_append_time(filled):
            is_first = not tail.last_append_ns
            frame = tail.take()
            frames += 1
            size_bytes += len(frame.payload)
            if frame.signal is Signal.CONTROL:
                flush = True
            else:
                self._use(tail, frame, records, is_first=is_first)
            # Without a tick, which would judge silence while frames that end it are unread.
            if frames >= BATCH_FRAMES or size_bytes >= BATCH_BYTES:
                return ReadBatch([], records, frames, has_more=True, flush=flush)
        self._tick(time.time_ns(), records)
        return ReadBatch([], records, frames, flush=flush)

    def _count_without_content(self) -> None:
        """Count each segment without content once, since its records may be missing; usually there is none."""
        for name in self._without_content:
            # In the state: neither the next poll nor the next bridge counts it again.
            key = f"{_WITHOUT_CONTENT}{name}"
            if self.state.get(key) is None:
                self.state.set(key, 1)
                count(self.state, SEGMENT_GAPS, name=name)
                self._log_line(
                    f"{name} is empty or not a regular file; records may be missing"
                )

    def _take_headers(self) -> list[SegmentHeader]:
        headers = (tail.take_header() for tail in self.tails.values())
        return [header for header in headers if header is not None]

    def _open(self, headers: list[SegmentHeader]) -> None:
        """Open the processes that begin with *headers*, each at its header's time.

        Raises as `_tick`.
        """
        for header in headers:
            producer = self.tails[header.instance_id].producer
            self.translator.opened(
                producer, min(header.created_unix_ns, time.time_ns())
            )

    def _by_append_time(
        self, filled: list[tuple[str, SegmentTailer]]
    ) -> Iterator[SegmentTailer]:
        """Yield the process whose next frame was appended first, until no frame is left.

        The caller takes that frame before the next step. Files are read further only when a process
        has no frames left.
        """
        heap = [(tail.frames[0].append_unix_ns, name, tail) for name, tail in filled]
        heapq.heapify(heap)
        while heap:
            _, name, tail = heapq.heappop(heap)
            # Usually one process sends for a while: its frames bypass the heap until a frame of
            # another process is earlier.
            next_other = heap[0][:2] if heap else _NEVER
            while self._filled(tail):
                append_ns = tail.frames[0].append_unix_ns
                if (append_ns, name) > next_other:
                    heapq.heappush(heap, (append_ns, name, tail))
                    break
                yield tail

    def _filled(self, tail: SegmentTailer) -> bool:
        """Read more of *tail* when it has no frames left; return whether it has any now.

        ``False`` too for segments of a newer version, which are left as they are and logged once.
        Gaps are counted as ``segment_gaps``. Raises `JournalError` for a segment that cannot be
        read.
        """
        if tail.frames:
            return True
        if tail.segments.refused:
            return False
        try:
            gaps = tail.fill()
        except FormatVersionError as exc:
            tail.segments.refuse()
            self._log_line(f"a segment of {tail.instance_id} is left as it is: {exc}")
            return False
        # In the state: a batch that is collected again after a failure counts them once.
        if gaps:
            count(self.state, SEGMENT_GAPS, gaps)
            self._log_line(
                f"{gaps} unreadable stretches in the segments of {tail.instance_id}"
            )
        return bool(tail.frames)

    def _use(
        self,
        tail: SegmentTailer,
        frame: Frame,
        records: list[Record],
        *,
        is_first: bool,
    ) -> None:
        """Translate one frame and append what results to *records*.

        A frame that cannot be translated is counted as ``translation_errors``, logged and passed
        over. Raises `JournalError` when state cannot be read.
        """
        now = time.time_ns()
        if frame.append_unix_ns < now:
            # A folder that is read late: the clock of translation is that of the frames.
            is_late = now - frame.append_unix_ns > _LATE_NS
            if is_late and frame.append_unix_ns - self._ticked_ns > _TICK_NS:
                self._tick(frame.append_unix_ns, records)
            # Waits of translation then last as long as when the frame had been read at once.
            now = frame.append_unix_ns
        # A successor must find its predecessor ended, or it would be one more process beside it.
        if is_first:
            self.translator.mark_drained(self._gone(tail))
        try:
            records += self.translator.frame(
                tail.producer,
                frame.signal,
                frame.payload,
                frame.whole,
                frame.append_unix_ns,
                now,
            )
        except JournalError:  # the ledger's fault, not the frame's
            raise
        except Exception as exc:  # noqa: BLE001  # one frame must not stop the run
            # Passed over and counted: it would fail again, and all others would wait behind it.
            count(self.state, "translation_errors")
            self._log_line(
                f"a frame of {tail.instance_id} cannot be translated: {type(exc).__name__}: {exc}"
            )

    def _gone(self, new: SegmentTailer) -> list[str]:
        """Return the processes that are dead and have nothing left to read when the first frame of *new* is used.

        Translation then counts *new* as a restart of one of them, and not for a second worker.
        Whether a process is alive is asked now, because the last check may be older than the
        restart.
        """
        names: list[str] = []
        for name, tail in self.tails.items():
            if (
                tail is new
                or tail.frames
                or tail.header is None
                or tail.header.kind != "process"
            ):
                continue
            if tail.segments.dead or not alive(
                self._folder,
                tail.header,
                time.time_ns(),
                liveness_timeout_ns=self._options.liveness_timeout_ns,
            ):
                names.append(name)
        return names

    def _tick(self, now_unix_ns: int, records: list[Record]) -> None:
        """Advance the clock of translation, which releases what has waited long enough.

        Raises `JournalError` when state cannot be read; the batch is then collected again.
        """
        self._ticked_ns = now_unix_ns
        records += self.translator.tick(now_unix_ns)

    def _commit(self, records: list[Record]) -> None:
        """Commit *records* with the changes of state, the read positions and the phases.

        Raises `JournalError`; nothing is stored then, and the caller goes back to the ledger's
        position.
        """
        # Before the changes are taken: facts in memory belong to the same transaction.
        self.translator.flush()
        changes = self.state.changes()
        sources = [tail.source for tail in self.tails.values() if tail.moved]
        # An empty transaction would still write to the disk, at every poll.
        if records or changes or sources:
            self._ledger.commit(
                records, changes, sources, self.translator.phases.take_new()
            )
            # After the commit: if that fails, `_or_as_before` makes state and tails anew.
            self.state.committed()
            for tail in self.tails.values():
                tail.committed()
