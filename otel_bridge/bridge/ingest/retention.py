"""Deletes what a run folder no longer needs: segments that are read and forwarded, records that all destinations hold.

Near the limit of the directory it deletes more: `otel_bridge.bridge.ingest.eviction` chooses which
records.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from otel_bridge.bridge.delivery.exporter_set import ExporterSet
from otel_bridge.bridge.exporter_selection import ExporterSelection
from otel_bridge.bridge.ingest.bridge_segment import KIND
from otel_bridge.bridge.ingest.eviction import Eviction
from otel_bridge.bridge.ingest.segment_reader import SegmentReader
from otel_bridge.bridge.ingest.segment_tailer import SegmentTailer
from otel_bridge.bridge.ledger.queries import LedgerView
from otel_bridge.bridge.ledger.rows import SegmentPosition
from otel_bridge.bridge.ledger.run_ledger import Ledger
from otel_bridge.bridge.options import BridgeOptions
from otel_bridge.errors import JournalError
from otel_bridge.exporter import OTLP
from otel_bridge.journal.folder import RunFolder


class FolderRetention:
    """Frees space of a run folder, on the thread of its bridge.

    Nothing is deleted while it is unknown who needs it: an exporter that could not begin yet has no
    destination.

    Args:
        folder: The run folder.
        options: Options of its bridge.
        ledger: Its ledger.
        view: Reads the ledger.
        reader: Reads its segments.
        workers: Workers of its exporters.
        selection: The exporters that it has, and those that it owes records.
        eviction: Evicts records near the limit of the directory.
        log_line: Takes one line for the log.
    """

    def __init__(
        self,
        folder: RunFolder,
        options: BridgeOptions,
        *,
        ledger: Ledger,
        view: LedgerView,
        reader: SegmentReader,
        workers: ExporterSet,
        selection: ExporterSelection,
        eviction: Eviction,
        log_line: Callable[[str], None],
    ) -> None:
        self._folder = folder
        self._options = options
        self._ledger = ledger
        self._view = view
        self._reader = reader
        self._workers = workers
        self._selection = selection
        self._eviction = eviction
        self._log_line = log_line
        self._undeletable = ""

    def free(self) -> None:
        """Delete segments and some records that are no longer needed.

        A segment that cannot be deleted is reported once.

        Raises:
            JournalError: The ledger failed.
        """
        # Offsets in memory may be ahead of the ledger; what lies between must stay on the disk.
        if not (self._selection.chosen and self._reader.consistent):
            return
        try:
            self._delete_segments()
        except OSError as exc:
            # The same file fails at every check: one line for each reason.
            if str(exc) != self._undeletable:
                self._undeletable = str(exc)
                self._log_line(f"a segment cannot be deleted: {exc}")
        self._prune()

    def free_all(self, own_id: str) -> None:
        """Delete everything that is no longer needed of a delivered run, and the bridge's own segments, of *own_id*."""
        with contextlib.suppress(JournalError):
            self.free()
            # Each call deletes some, so that the ledger is not locked for long.
            while self._prune():
                pass
        if OTLP not in self._workers.names and not self._selection.owes_otlp:
            forget_own(self._folder, self._ledger, self._reader, own_id)

    def _delete_segments(self) -> None:
        of_all = OTLP in self._workers.names
        forwarding = None
        if of_all or self._selection.owes_otlp:
            forwarding = self._view.sources()
        delete_read_segments(
            self._folder, self._ledger, self._reader, forwarding, of_all=of_all
        )

    def _prune(self) -> int:
        """Delete some records that every destination holds durably and no exporter is owed.

        Return their number.
        """
        requested = self._selection.requested
        discarded = [
            request.through
            for name, request in requested.given_up.items()
            if name in self._options.discard
        ]
        # An exporter without a destination has no position: what it needs is not known.
        if self._workers.unresolved() or (self._selection.unchosen and not discarded):
            return 0
        self._eviction.evict_if_near()
        needed_positions = [
            destination.durable for destination in self._view.destinations()
        ]
        keep_from = requested.keep_from()
        if keep_from is not None:
            needed_positions.append(keep_from)
        return self._ledger.prune(
            min(needed_positions or discarded or [self._ledger.position])
        )


def delete_read_segments(
    folder: RunFolder,
    ledger: Ledger,
    reader: SegmentReader,
    forwarding: Sequence[SegmentPosition] | None,
    *,
    of_all: bool,
) -> None:
    """Delete whole segments that no reader needs, after a sync of the ledger.

    Args:
        folder: The run folder.
        ledger: Its ledger.
        reader: Its reader, whose results are all committed.
        forwarding: Positions up to which ``otlp`` forwarded each process; ``None`` when the run has
            no ``otlp``.
        of_all: Whether ``otlp`` is active and reads every segment; else only processes that
            requested it count.

    Raises:
        OSError: A segment cannot be deleted; the others are deleted.
        JournalError: The ledger cannot be synced to the disk.
    """
    forwarded = None
    if forwarding is not None:
        forwarded = {item.instance_id: item for item in forwarding}
    work: dict[str, int] = {}
    for name, tail in reader.tails.items():
        is_forwarded = of_all or requests_otlp(tail)
        keep = _keep_from(tail, forwarded if is_forwarded else None)
        if keep > tail.segments.first_number:
            work[name] = keep
    if not work:
        return
    ledger.database.sync()
    failed = None
    for name, keep in work.items():
        try:
            _delete_of(folder, ledger, reader, name, keep)
        except OSError as exc:  # noqa: PERF203  # the others are deleted all the same
            failed = exc
    if failed is not None:
        raise failed


def not_forwarded(reader: SegmentReader, forwarding: Sequence[SegmentPosition]) -> int:
    """Return the number of segments that ``otlp`` has not forwarded, of processes that requested it."""
    forwarded = {
        source.instance_id: (source.forwarded_number, source.forwarded_offset)
        for source in forwarding
    }
    segments = 0
    for name, tail in reader.tails.items():
        number, offset = forwarded.get(name, (0, 0))
        if requests_otlp(tail) and (number, offset) < tail.cursor.data_end:
            segments += (
                tail.cursor.data_end[0] - max(number, tail.segments.first_number) + 1
            )
    return segments


def requests_otlp(tail: SegmentTailer) -> bool:
    """Return whether the process requested ``otlp``.

    Records that a bridge wrote for such processes go there too.
    """
    header = tail.header
    return header is not None and (
        header.kind == KIND or any(OTLP in names for names in header.exporters.values())
    )


def forget_own(
    folder: RunFolder, ledger: Ledger, reader: SegmentReader, instance_id: str
) -> None:
    """Delete the bridge's own segments, all read.

    The next bridge deletes what cannot be deleted now.
    """
    tail = reader.tails.get(instance_id)
    if tail is None:
        return
    with contextlib.suppress(JournalError, OSError):
        ledger.database.sync()
        for number in sorted(tail.segments.numbers):
            folder.segment_path(instance_id, number).unlink()
        ledger.forget_source(instance_id)


def _delete_of(
    folder: RunFolder, ledger: Ledger, reader: SegmentReader, name: str, keep: int
) -> None:
    """Delete the segments of one process before number *keep*; forget it if it needs none any more.

    The ledger is synced: what the segments held is on the disk. A file may be gone already.

    Raises:
        OSError: A segment cannot be deleted; those before it are.
        JournalError: The ledger failed.
    """
    tail = reader.tails[name]
    for number in sorted(number for number in tail.segments.numbers if number < keep):
        with contextlib.suppress(FileNotFoundError):
            folder.segment_path(name, number).unlink()
        tail.segments.deleted_before(
            number + 1
        )  # one by one: the next may be undeletable
    tail.segments.deleted_before(keep)
    if keep > tail.segments.last_number and tail.used_up:
        # The files are deleted first: a source without files is harmless, files without a source
        # are read again.
        with contextlib.suppress(FileNotFoundError):
            folder.life_path(name).unlink()
        ledger.forget_source(name)
        del reader.tails[name]


def _keep_from(
    tail: SegmentTailer, forwarded: dict[str, SegmentPosition] | None
) -> int:
    """Return the number of the first segment that is still needed; one past the last if none is.

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
    if (position.forwarded_number, position.forwarded_offset) >= tail.cursor.data_end:
        return keep
    return min(keep, position.forwarded_number)
