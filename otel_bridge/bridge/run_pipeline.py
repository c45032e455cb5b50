"""Builds the parts of one run's bridge: ledger, reader, exporters, report.

`RunBridge` sequences them. For the bridge's thread; an exporter's thread calls only what
`_WorkerFactory` gives to its worker.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from otel_bridge.bridge.delivery.context import DeliveryContext, DeliveryRequests
from otel_bridge.bridge.delivery.delivery import Delivery
from otel_bridge.bridge.delivery.exporter_set import ExporterSet
from otel_bridge.bridge.delivery.less_text import ContentLimits
from otel_bridge.bridge.delivery.worker import ExporterWorker
from otel_bridge.bridge.exporter_selection import ExporterSelection, OtherTracePolicy
from otel_bridge.bridge.ingest.bridge_segment import BridgeSegment
from otel_bridge.bridge.ingest.eviction import Fullness
from otel_bridge.bridge.ingest.process_monitor import ProcessMonitor
from otel_bridge.bridge.ingest.retention import FolderRetention, not_forwarded
from otel_bridge.bridge.ingest.segment_reader import SegmentReader
from otel_bridge.bridge.ledger.queries import LedgerView
from otel_bridge.bridge.ledger.run_description import RunDescription
from otel_bridge.bridge.ledger.run_ledger import Ledger
from otel_bridge.bridge.measurements import Measurements
from otel_bridge.bridge.options import BridgeOptions
from otel_bridge.bridge.report.writer import ReportWriter
from otel_bridge.bridge.serving.shutdown import ShutdownState
from otel_bridge.exporter import OTLP
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.header import SegmentHeader
from otel_bridge.journal.machine import network_file_system


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPipeline:
    """Holds the parts that deliver one run folder's segments to its exporters. `open_pipeline` builds them.

    Eleven parts, because this is the one list of what a run consists of. It has no behaviour beyond
    the two methods that need several parts.

    Attributes:
        closing: Closes every part that holds a file, the ledger last. Not the workers, which
            `RunBridge.close` stops first.
    """

    ledger: Ledger
    reader: SegmentReader
    processes: ProcessMonitor
    measurements: Measurements
    describe: RunDescription
    content: ContentLimits
    workers: ExporterSet
    selection: ExporterSelection
    report: ReportWriter
    retention: FolderRetention
    closing: contextlib.ExitStack

    def begin_process(self, header: SegmentHeader) -> None:
        """Store the requests of a process before its records exist, so that they apply to all of its records.

        Raises:
            JournalError: The requests cannot be stored now. The next batch has the header again,
                and both parts may be repeated.
        """
        self.selection.begin(header, alone=self.processes.is_alone(header))
        self.content.apply(header.message_content)

    def close(self) -> None:
        """Close every part but the workers, which have stopped or hang; the ledger last."""
        self.closing.close()


def open_pipeline(
    folder: RunFolder,
    options: BridgeOptions,
    *,
    shutdown: ShutdownState,
    fullness: Fullness,
    wake: Callable[[], None],
    log_line: Callable[[str], None],
) -> RunPipeline:
    """Build the parts of one run; each is given only parts that exist by then.

    What was opened before an error is closed again.

    Args:
        folder: The run folder, whose lease is held.
        options: Options of its bridge.
        shutdown: Shutdown requests of the run.
        fullness: Measures the directory.
        wake: Called from any thread after progress of an exporter, because the report is due.
        log_line: Takes one line for the log.

    Raises:
        FormatVersionError: Another version wrote the ledger.
        LedgerDamagedError: A part found the ledger damaged.
        JournalError: The folder cannot be used.
    """
    # WAL needs memory shared by all processes, which a file system of several hosts does not have.
    needs_exclusive = options.exclusive or network_file_system(folder.path) is not None
    with contextlib.ExitStack() as closing:
        # Entered first, so closed last: every other part may still commit or read while it closes.
        ledger = closing.enter_context(
            contextlib.closing(
                Ledger(
                    folder.ledger_path,
                    exclusive=needs_exclusive,
                    timeline_bytes=options.timeline_bytes,
                )
            )
        )
        view = closing.enter_context(contextlib.closing(ledger.view()))
        other_traces = OtherTracePolicy(log_line)
        describe = RunDescription(folder, local=options.local)
        reader = closing.enter_context(
            contextlib.closing(
                SegmentReader(
                    folder,
                    ledger,
                    options.of_run(folder.run_id),
                    other_traces=other_traces,
                    log_line=log_line,
                )
            )
        )
        report = closing.enter_context(
            contextlib.closing(
                ReportWriter(
                    folder, ledger, reader, describe, launcher=options.launcher
                )
            )
        )
        segment = closing.enter_context(contextlib.closing(BridgeSegment(folder)))
        measurements = closing.enter_context(
            contextlib.closing(Measurements(segment, reader, log_line, report.set_due))
        )
        timeout_ns = options.translation.liveness_timeout_ns
        processes = ProcessMonitor(folder, reader, segment, timeout_ns)
        content = _content_limits(options, ledger, view)
        create_worker = _WorkerFactory(
            folder=folder, options=options, ledger=ledger, reader=reader, describe=describe, content=content,
            shutdown=shutdown, report=report, wake=wake, log_line=log_line,
        )  # fmt: skip
        workers = ExporterSet(ledger, create_worker, log_line)
        selection = ExporterSelection(
            ledger=ledger, options=options, run_id=folder.run_id, view=view, processes=processes, workers=workers,
            other_traces=other_traces, not_forwarded=lambda: not_forwarded(reader, view.sources()), log_line=log_line,
        )  # fmt: skip
        retention = FolderRetention(
            folder=folder, options=options, ledger=ledger, view=view, reader=reader, workers=workers,
            selection=selection, fullness=fullness, report=report, log_line=log_line,
        )  # fmt: skip
        return RunPipeline(
            ledger=ledger, reader=reader, processes=processes, measurements=measurements, describe=describe,
            content=content, workers=workers, selection=selection, report=report, retention=retention,
            # An error before this line has closed what was open; from here on the pipeline does.
            closing=closing.pop_all(),
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _WorkerFactory:
    """Creates the worker of an exporter, from what all workers of the run are given."""

    folder: RunFolder
    options: BridgeOptions
    ledger: Ledger
    reader: SegmentReader
    describe: RunDescription
    content: ContentLimits
    shutdown: ShutdownState
    report: ReportWriter
    wake: Callable[[], None]
    log_line: Callable[[str], None]

    def __call__(
        self, name: str, destination: Mapping[str, str], requests: DeliveryRequests
    ) -> ExporterWorker:
        """Return the worker of exporter *name*, not yet started.

        ``otlp`` forwards segments, every other exporter writes records. Whether the exporter exists
        and its settings are right is found by its first step, on its own thread: it is blocked
        then, and the others go on. Raises `JournalError` when the ledger cannot be opened for it.
        """
        # The only worker without a position in the ledger: `ExporterSet`, `ExporterSelection`,
        # `FolderRetention` and `RunBridge` leave it out by its name.
        if name == OTLP:
            return self._forwarder(destination)
        context = DeliveryContext(
            name,
            self.ledger,
            resolve=partial(
                self.options.exporter_env.resolve,
                name,
                destination,
                run_id=self.folder.run_id,
            ),
            describe=self.describe,
            log_line=self.log_line,
            limit=partial(self.content.of, name),
            more_comes=self._more_comes,
        )
        return Delivery(context, requests, progressed=self._progressed)

    def _forwarder(self, destination: Mapping[str, str]) -> ExporterWorker:
        """Return the worker of ``otlp``.

        With exporters given to the bridge it forwards every process: third-party producers name
        none.
        """
        # Imported here, because it needs an HTTP client that no other exporter uses.
        from otel_bridge.bridge.forwarding.forwarder import Forwarder  # noqa: PLC0415

        return Forwarder(
            self.folder,
            self.ledger,
            self.options.exporter_env.forwarding(destination),
            check_endpoints=partial(
                self.options.exporter_env.check_forwarding,
                destination,
                run_id=self.folder.run_id,
            ),
            every_process=self.options.exporters is not None,
            log_line=self.log_line,
            progressed=self._progressed,
        )

    def _more_comes(self) -> bool:
        # While more is read, a pause would only cut large batches into small ones. In a drain nothing
        # more need come, but it must not wait.
        return self.shutdown.draining or not self.reader.caught_up

    def _progressed(self) -> None:
        # Marked before the bridge is woken, which would otherwise find no report to write.
        self.report.set_due()
        self.wake()


def _content_limits(
    options: BridgeOptions, ledger: Ledger, view: LedgerView
) -> ContentLimits:
    """Return the limits of text, with what an earlier bridge of the run stored of its processes' modes.

    Raises `JournalError` when the ledger cannot be read.
    """
    return ContentLimits(
        options.exporter_env.env,
        view.meta("message_content"),
        store=lambda modes: ledger.set_meta("message_content", modes),
    )
