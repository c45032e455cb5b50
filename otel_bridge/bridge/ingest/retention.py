"""Deletes what a run folder no longer needs: segments that are read and forwarded, records that all destinations hold.

Near the limit of the directory it deletes more: `otel_bridge.bridge.ingest.eviction` chooses which
records.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from otel_bridge.bridge.delivery.exporter_set import ExporterSet
from otel_bridge.bridge.exporter_selection import ExporterSelection
from otel_bridge.bridge.ingest.eviction import Fullness, evict
from otel_bridge.bridge.ingest.segment_reader import SegmentReader
from otel_bridge.bridge.ingest.segment_tailer import SegmentTailer
from otel_bridge.bridge.ledger.queries import LedgerView, SegmentPosition
from otel_bridge.bridge.ledger.run_ledger import Ledger
from otel_bridge.bridge.options import BridgeOptions
from otel_bridge.bridge.report.writer import ReportWriter
from otel_bridge.errors import JournalError
from otel_bridge.exporter import OTLP
from otel_bridge.journal.folder import RunFolder


@dataclass(slots=True, kw_only=True)
class FolderRetention:
    """Frees space of a run folder, on the thread of its bridge.

    Nothing is deleted while it is unknown who needs it: an exporter that could not begin yet has no
    destination. An error ends the poll of the run, and a later poll deletes the rest.

    Attributes:
        folder: The run folder.
        options: Options of its bridge.
        ledger: Its ledger.
        view: Reads the ledger.
        reader: Reads its segments.
        workers: Workers of its exporters.
        selection: The exporters that it has, and those that it owes records.
        fullness: Measures the directory; shared by its runs.
        report: Its report, which is due when records were evicted.
        log_line: Takes one line for the log.
    """

    folder: RunFolder
    options: BridgeOptions
    ledger: Ledger
    view: LedgerView
    reader: SegmentReader
    workers: ExporterSet
    selection: ExporterSelection
    fullness: Fullness
    report: ReportWriter
    log_line: Callable[[str], None]
    _last_count: int = 0
    _undeletable: str = ""

    def free(self) -> None:
        """Delete segments and some records that are no longer needed.

        A segment that cannot be deleted is reported once.

        Raises:
            JournalError: The ledger failed.
        """
        # Offsets in memory may be ahead of the ledger; what lies between must stay on the disk.
        if not (self.selection.chosen and self.reader.consistent):
            return
        try:
            self._delete_segments()
        except OSError as exc:
            # The same file fails at every check: one line for each reason.
            if str(exc) != self._undeletable:
                self._undeletable = str(exc)
                self.log_line(f"a segment cannot be deleted: {exc}")
        self._prune()

    def free_all(self, own_id: str) -> None:
        """Delete what a delivered run does not need, and the bridge's own segments, of *own_id*.

        Raises nothing: what cannot be deleted now is deleted by the next bridge. The bridge's own
        segments stay while ``otlp`` must still forward them.
        """
        with contextlib.suppress(JournalError):
            self.free()
            # Each call deletes some, so that the ledger is not locked for long.
            while self._prune():
                pass
        if OTLP not in self.workers.names and not self.selection.owes_otlp:
            self._forget_own(own_id)

    def _delete_segments(self) -> None:
        """Delete whole segments that no reader needs, after a sync of the ledger.

        Raises:
            OSError: A segment cannot be deleted; the others are deleted.
            JournalError: The ledger cannot be synced to the disk.
        """
        of_all = OTLP in self.workers.names
        forwarded: dict[str, SegmentPosition] | None = None
        if of_all or self.selection.owes_otlp:
            forwarded = {item.instance_id: item for item in self.view.sources()}
        first_kept: dict[str, int] = {}
        for name, tail in self.reader.tails.items():
            # An active ``otlp`` has a position in every process; else those that requested it must be
            # forwarded.
            is_forwarded = of_all or requests_otlp(tail)
            number = _keep_from(tail, forwarded if is_forwarded else None)
            if number > tail.segments.first_number:
                first_kept[name] = number
        if not first_kept:
            return
        # What the segments held is on the disk then.
        self.ledger.database.sync()
        failed = None
        for name, number in first_kept.items():
            try:
                self._delete_before(name, number)
            except OSError as exc:  # noqa: PERF203  # the others are deleted all the same
                failed = exc
        if failed is not None:
            raise failed

    def _delete_before(self, name: str, first_kept: int) -> None:
        """Delete the segments of one process before number *first_kept*; forget it if it needs none any more.

        A file may be gone already.

        Raises:
            OSError: A segment cannot be deleted; those before it are.
            JournalError: The ledger failed.
        """
        tail = self.reader.tails[name]
        for number in sorted(tail.segments.numbers):
            if number >= first_kept:
                break
            with contextlib.suppress(FileNotFoundError):
                self.folder.segment_path(name, number).unlink()
            # One by one: the next may be undeletable.
            tail.segments.deleted_before(number + 1)
        tail.segments.deleted_before(first_kept)
        if first_kept > tail.segments.last_number and tail.used_up:
            # The files are deleted first: a source without files is harmless, files without a
            # source are read again.
            with contextlib.suppress(FileNotFoundError):
                self.folder.life_path(name).unlink()
            self.ledger.forget_source(name)
            del self.reader.tails[name]

    def _forget_own(self, own_id: str) -> None:
        """Delete the bridge's own segments, all read, if any.

        The next bridge deletes what cannot be deleted now.
        """
        tail = self.reader.tails.get(own_id)
        if tail is None:
            return
        with contextlib.suppress(JournalError, OSError):
            self.ledger.database.sync()
            for number in sorted(tail.segments.numbers):
                self.folder.segment_path(own_id, number).unlink()
            self.ledger.forget_source(own_id)

    def _prune(self) -> int:
        """Delete some records that every destination holds durably and no exporter is owed.

        Return their number; 0 too while it is unknown who needs what. Without any destination all
        may go: ``otlp`` alone forwards segments, and discarded exporters get nothing. Raises
        `JournalError`.
        """
        requested = self.selection.requested
        discarded = [
            request.through
            for name, request in requested.given_up.items()
            if name in self.options.discard
        ]
        # An exporter without a destination has no position: what it needs is not known.
        if self.workers.unresolved() or (self.selection.unchosen and not discarded):
            return 0
        self._evict_if_near()
        needed_positions = [
            destination.durable for destination in self.view.destinations()
        ]
        keep_from = requested.keep_from()
        if keep_from is not None:
            needed_positions.append(keep_from)
        return self.ledger.prune(
            min(needed_positions or discarded or [self.ledger.position])
        )

    def _evict_if_near(self) -> None:
        """Evict some records when the directory is near its limit.

        All runs of a directory see one count, and each evicts at most once for it. Raises
        `JournalError` when the ledger fails; the next count evicts then.
        """
        count = self.fullness.counted()
        if count <= self._last_count:
            return
        self._last_count = count
        requested = self.selection.requested
        sentence = evict(self.ledger, self.view, self.workers, requested)
        if sentence:
            self.log_line(f"{self.folder.base} is near its limit: {sentence}")
            self.report.set_due()


def not_forwarded(reader: SegmentReader, forwarding: Sequence[SegmentPosition]) -> int:
    """Return the number of segments that ``otlp`` has not forwarded, of processes that requested it.

    A segment that is forwarded in part counts. For `status`, and for what ``drain --discard``
    reports.
    """
    forwarded = {
        source.instance_id: (source.forwarded_number, source.forwarded_offset)
        for source in forwarding
    }
    segments = 0
    for name, tail in reader.tails.items():
        number, offset = forwarded.get(name, (0, 0))
        if requests_otlp(tail) and (number, offset) < tail.data_end:
            segments += tail.data_end[0] - max(number, tail.segments.first_number) + 1
    return segments


def requests_otlp(tail: SegmentTailer) -> bool:
    """Return whether what the segments hold goes to ``otlp`` where a process of the run requested it.

    Segments of receivers and bridges name no exporters, so all of theirs goes.
    """
    header = tail.header
    return header is not None and (
        header.kind != "process"
        or any(OTLP in names for names in header.exporters.values())
    )


def _keep_from(
    tail: SegmentTailer, forwarded: dict[str, SegmentPosition] | None
) -> int:
    """Return the number of the first segment that is still needed; one past the last if none is.

    The last segment of a process goes only once its end is known: the end may still have to be
    read, or be written by the bridge.

    Args:
        tail: Segments of the process.
        forwarded: Instance to the position up to which ``otlp`` forwarded it; ``None`` if ``otlp``
            need not have it.
    """
    # Not read, so still needed by a newer version.
    if tail.segments.refused:
        return tail.segments.first_number
    # The segment being read stays, because frames behind the position are still in it.
    keep = tail.source.number
    if tail.used_up and tail.ended:
        keep = tail.segments.last_number + 1
    if forwarded is None:
        return keep
    position = forwarded.get(tail.instance_id)
    # Not forwarded at all: all segments are needed.
    if position is None:
        return tail.segments.first_number
    if (position.forwarded_number, position.forwarded_offset) >= tail.data_end:
        return keep
    return min(keep, position.forwarded_number)
