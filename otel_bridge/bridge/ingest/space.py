"""Frees the space of one run folder: deletes segments and records no longer needed, and evicts near the limit."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from otel_bridge.bridge.delivery.exporter_set import ExporterSet
from otel_bridge.bridge.exporter_selection import ExporterSelection
from otel_bridge.bridge.ingest.retention import Retention, delete_read_segments, forget_own
from otel_bridge.bridge.ingest.segment_reader import SegmentReader
from otel_bridge.bridge.ledger.ledger import Ledger
from otel_bridge.bridge.ledger.queries import LedgerView
from otel_bridge.bridge.options import BridgeOptions
from otel_bridge.errors import JournalError
from otel_bridge.exporter import OTLP
from otel_bridge.journal.folder import RunFolder


class FolderSpace:
    """Frees space of a run folder, on the thread of its bridge.

    Nothing is deleted while it is unknown who needs it: an exporter that could not begin yet has no destination.

    Args:
        folder: The run folder.
        options: Options of its bridge.
        ledger: Its ledger.
        view: Reads the ledger.
        reader: Reads its segments.
        workers: Workers of its exporters.
        selection: The exporters that it has, and those that it owes records.
        own_id: Instance id of the bridge's own segments.
        bound: Evicts records near the limit of the directory.
        evicted: Called when records were evicted.
        say: Takes one line for the log.
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
        own_id: str,
        bound: Retention,
        evicted: Callable[[], None],
        say: Callable[[str], None],
    ) -> None:
        self._folder, self._options = folder, options
        self._ledger, self._view, self._reader = ledger, view, reader
        self._workers, self._selection, self._bound = workers, selection, bound
        self._own_id, self._evicted, self._say = own_id, evicted, say
        self._undeletable = ""

    def free(self) -> None:
        """Delete segments and some records that are no longer needed.

        A segment that cannot be deleted is reported once.

        Raises:
            JournalError: The ledger failed.
        """
        if not (self._selection.chosen and self._reader.consistent):
            return
        try:
            self._delete_segments()
        except OSError as exc:
            if str(exc) != self._undeletable:
                self._undeletable = str(exc)
                self._say(f"a segment cannot be deleted: {exc}")
        self._prune()

    def free_all(self) -> None:
        """Delete everything that is no longer needed of a delivered run, including the bridge's own segments."""
        with contextlib.suppress(JournalError):
            self.free()
            while self._prune():
                pass
        if OTLP not in self._workers.names and not self._selection.owes_otlp:
            forget_own(self._folder, self._ledger, self._reader, self._own_id)

    def _delete_segments(self) -> None:
        of_all = OTLP in self._workers.names
        forwarding = self._view.sources() if of_all or self._selection.owes_otlp else None
        delete_read_segments(self._folder, self._ledger, self._reader, forwarding, of_all=of_all)

    def _prune(self) -> int:
        """Delete some records that every destination holds durably and no exporter is owed; return their number."""
        requested = self._selection.requested
        discarded = [one.through for name, one in requested.given_up.items() if name in self._options.discard]
        if self._workers.unresolved() or not (self._workers.names or discarded):
            return 0
        if self._bound.near():
            done = self._bound.make_room(self._ledger, self._view, self._workers.by_name.values(), requested)
            if done:
                self._say(f"{self._folder.base} is near its limit: {done}")
                self._evicted()
        needed = [item.durable for item in self._view.destinations()]
        if (keep_from := requested.keep_from()) is not None:
            needed.append(keep_from)
        return self._ledger.prune(min(needed or discarded or [self._ledger.position]))
