"""Builds the parts of one run's bridge: ledger, reader, exporters, report. `RunBridge` sequences them. One thread."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import cast

from otel_bridge.bridge.delivery.content_limits import ContentLimits
from otel_bridge.bridge.delivery.exporter_set import ExporterSet
from otel_bridge.bridge.delivery.worker import ExporterWorker
from otel_bridge.bridge.exporter_selection import ExporterSelection
from otel_bridge.bridge.ingest.bridge_segment import BridgeSegment
from otel_bridge.bridge.ingest.eviction import Eviction
from otel_bridge.bridge.ingest.process_monitor import ProcessMonitor
from otel_bridge.bridge.ingest.retention import FolderRetention, not_forwarded
from otel_bridge.bridge.ingest.segment_reader import SegmentReader
from otel_bridge.bridge.ledger.run_ledger import open_or_rebuild
from otel_bridge.bridge.options import BridgeOptions
from otel_bridge.bridge.report.run_info import RunDescription
from otel_bridge.bridge.report.writer import ReportWriter
from otel_bridge.bridge.serving.shutdown import ShutdownState
from otel_bridge.bridge.system_metrics import SystemMetrics
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.header import SegmentHeader
from otel_bridge.journal.machine import network_file_system


class RunPipeline:
    """Holds the parts that deliver one run folder's segments to its exporters, built completely.

    Args:
        folder: The run folder, whose lease is held.
        options: Options of its bridge.
        shutdown: Shutdown requests of the run.
        eviction: Keeps the directory within its limit.
        wake: Called from any thread after progress of an exporter, because the report is due.
        say: Takes one line for the log.

    Raises:
        FormatVersionError: Another version wrote the ledger.
        JournalError: The folder cannot be used.
    """

    def __init__(
        self,
        folder: RunFolder,
        options: BridgeOptions,
        *,
        shutdown: ShutdownState,
        eviction: Eviction,
        wake: Callable[[], None],
        say: Callable[[str], None],
    ) -> None:
        self._folder, self._options, self._wake, self._say = folder, options, wake, say
        with contextlib.ExitStack() as parts:
            self._build(parts, shutdown, eviction)
            self._parts = parts.pop_all()

    def _build(self, parts: contextlib.ExitStack, shutdown: ShutdownState, eviction: Eviction) -> None:
        folder, options, say = self._folder, self._options, self._say
        shared = options.exclusive or network_file_system(folder.path) is not None
        self.ledger, aside = open_or_rebuild(folder.ledger_path, exclusive=shared)
        parts.callback(self.ledger.close)
        if aside is not None:
            say(f"{folder.ledger_path} was damaged and renamed to {aside}, the remaining segments are read again")
        self.reader = SegmentReader(
            folder,
            self.ledger,
            options.of_run(folder.run_id),
            others=lambda: self.selection.other_traces(),  # noqa: PLW0108  # `selection` is built after this
            say=say,
        )
        parts.callback(self.reader.close)
        view = self.ledger.view()
        parts.callback(view.close)
        self._content_kept: dict[str, str] = cast("dict[str, str] | None", view.meta("message_content")) or {}
        self.content = ContentLimits(options.places.env, self._content_kept)
        own = BridgeSegment(folder)
        parts.callback(own.close)
        self.system = SystemMetrics(own)
        parts.callback(self.system.close)
        self.processes = ProcessMonitor(
            folder, self.reader, own, liveness_timeout_ns=options.translation.liveness_timeout_ns
        )
        self.describe = RunDescription(folder, local=options.local)
        self.workers = ExporterSet(
            self.ledger,
            options.places,
            self.describe,
            progressed=self._progressed,
            say=say,
            forward=self._forwarder,
            limit_of=self.content.of,
            more_comes=lambda: shutdown.draining or not self.reader.caught_up,
        )
        self.selection = ExporterSelection(
            self.ledger,
            view=view,
            processes=self.processes,
            workers=self.workers,
            given=options.exporters,
            discard=options.discard,
            webhook=options.webhook,
            not_forwarded=lambda: not_forwarded(self.reader, view.sources()),
            say=say,
        )
        self.report = ReportWriter(
            folder,
            self.ledger,
            self.reader,
            self.describe,
            owed=self.selection.owed,
            given_up=self.selection.requested.all_given_up,
            launcher=options.launcher,
        )
        parts.callback(self.report.close)
        self.retention = FolderRetention(
            folder,
            options,
            ledger=self.ledger,
            view=view,
            reader=self.reader,
            workers=self.workers,
            selection=self.selection,
            own_id=own.instance_id,
            eviction=eviction,
            evicted=self.report.set_due,
            say=say,
        )

    def close(self) -> None:
        """Close every part, the ledger last."""
        self._parts.close()

    def begin_process(self, header: SegmentHeader) -> None:
        """Store the requests of a process before its records exist, so that they apply to all of its records.

        Raises:
            JournalError: The requests cannot be stored now.
        """
        self.selection.begin(header, alone=self.processes.is_alone(header))
        self.content.apply(header.message_content)
        if self.content.requested != self._content_kept:
            self.ledger.set_meta("message_content", self.content.requested)
            self._content_kept = self.content.requested

    def _forwarder(self) -> ExporterWorker:
        # Imported here, because it needs an HTTP client that no other exporter uses.
        from otel_bridge.bridge.forwarding.forwarder import Forwarder  # noqa: PLC0415

        return Forwarder(
            self._folder,
            self.ledger,
            self._options.places.env,
            every_process=self._options.exporters is not None,
            say=self._say,
            progressed=self._progressed,
        )

    def _progressed(self) -> None:
        self.report.set_due()
        self._wake()
