"""The ledger and the lanes -> ``report.json``: at most every 0.1 s, from one ledger transaction."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Mapping
from typing import Final

from otel_bridge.bridge.ledger import Ledger
from otel_bridge.bridge.own_segment import KIND
from otel_bridge.bridge.rates import Rates
from otel_bridge.bridge.reader import Reader
from otel_bridge.bridge.run_info import RunDescription
from otel_bridge.bridge.tables import Destination
from otel_bridge.bridge.window import Progress
from otel_bridge.bridge.worker import Lane
from otel_bridge.errors import JournalError
from otel_bridge.exporter import RunInfo
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.life import this_host
from otel_bridge.journal.report import BridgeReport, ExporterReport, ProcessReport, Report, read_report, write_report

EVERY_S: Final = 0.1
_SETTLE_S: Final = 0.05
_DROP: Final = "drop/"
_AXIS: Final = "axis/"


class ReportWriter:
    """Writes the report of one run folder. One thread, but `set_due` is for any.

    Args:
        folder: The run folder.
        ledger: Its ledger.
        reader: Its reader.
        describe: Tells the run.
        launcher: The bridge is ``otel-bridge run``.
    """

    def __init__(
        self, folder: RunFolder, ledger: Ledger, reader: Reader, describe: RunDescription, *, launcher: bool
    ) -> None:
        self._due_s: float | None = 0.0
        self._folder, self._ledger, self._reader, self._describe = folder, ledger, reader, describe
        self._launcher = launcher
        self._view = ledger.view()
        self._written_s = float("-inf")
        self._rates = Rates()
        before = read_report(folder) or Report()
        self._known = {**before.former, **before.exporters}

    def set_due(self) -> None:
        """Say that something changed. From any thread."""
        if self._due_s is None:
            self._due_s = time.monotonic()

    def write(self, lanes: Mapping[str, Lane], *, ended: bool, settled: bool, now: bool = False) -> None:
        """Write the report when it is due.

        Args:
            lanes: The exporters.
            ended: Everything is delivered and ended in every tracker.
            settled: No exporter is on its way to the last position; else one that is about to get there is waited for
                a moment, so that the report that somebody waits for is not kept back by one of just before.
            now: Do not wait for anything.

        Raises:
            JournalError: It cannot be written; the last one stands.
        """
        seen_s, due_s = time.monotonic(), self._due_s
        if due_s is None:
            return
        if not now and (seen_s - self._written_s < EVERY_S or not (settled or seen_s - due_s >= _SETTLE_S)):
            return
        self._due_s, self._written_s = None, seen_s  # before it is made: what changes meanwhile is due again
        try:
            report = self._report(lanes, ended)
            write_report(self._folder, report)
        except JournalError:
            self._due_s = seen_s
            raise
        self._known |= report.exporters

    def close(self) -> None:
        """Close the connection."""
        self._view.close()

    def _report(self, lanes: Mapping[str, Lane], ended: bool) -> Report:
        # States before numbers: an exporter that is said to write may be through by then, never the other way round.
        progress = {name: lane.progress for name, lane in lanes.items()}
        ids = {name: lane.destination_id for name, lane in lanes.items()}
        position, sources, found = self._view.overview()
        destinations = {item.id: item for item in found}
        translator, state, host = self._reader.translator, self._reader.state, this_host()
        run = self._describe.brief(state.get("run"))
        return Report(
            time_unix_ns=time.time_ns(),
            project=run.project,
            name=run.name,
            bridge=BridgeReport(os.getpid(), host.name, host.boot_id),
            processes={
                source.instance_id: ProcessReport(
                    source.number,
                    source.offset,
                    source.forwarded_number,
                    source.forwarded_offset,
                    *self._life_of(source.instance_id),
                )
                for source in sources
            },
            position=position,
            exporters={
                name: self._exporter(item, destinations.get(ids[name] or 0), run) for name, item in progress.items()
            },
            former={name: one for name, one in self._known.items() if name not in lanes},
            drops={key.removeprefix(_DROP): _int(value) for key, value in state.items(_DROP)},
            missing_rows=translator.missing_rows(),
            steps={key.removeprefix(_AXIS): _int(value) for key, value in state.items(_AXIS)},
            rows=self._ledger.rows,
            rollouts=self._ledger.rollouts,
            rows_per_s=self._rates.per_s("", self._ledger.rows, self._written_s),
            rows_by_axis=dict(self._ledger.rows_by_axis),
            row_times=dict(self._ledger.row_times),
            waiting=dataclasses.asdict(translator.waiting()),
            status=translator.status(),
            ended=ended,
            launcher=self._launcher,
        )

    def _exporter(self, progress: Progress, at: Destination | None, run: RunInfo) -> ExporterReport:
        report = _exporter(progress, at, run)
        report.rows_per_s = self._rates.per_s(progress.exporter, report.rows, self._written_s)
        return report

    def _life_of(self, instance_id: str) -> tuple[str | None, bool, bool]:
        tail = self._reader.tails.get(instance_id)
        if tail is None:
            return None, False, False
        own = tail.header is not None and tail.header.kind == KIND
        return tail.speaker.role, not tail.dead and not own, own


def _exporter(progress: Progress, at: Destination | None, run: RunInfo) -> ExporterReport:
    report = ExporterReport(
        written=progress.written,
        safe=progress.safe,
        state=progress.state,
        reason=progress.reason,
        help=progress.help,
        url=progress.url,
        destination=dict(progress.destination),
        view="" if progress.settings is None else progress.settings.view(run),
        found=progress.found,
    )
    if at is not None:
        report.written, report.safe, report.url = min(at.written, progress.written), at.safe, at.url
        report.rows, report.rollouts, report.dead_letters = at.rows, at.rollouts, at.dead_letters
        report.tracker_run_id, report.missed, report.put_off = at.tracker_run_id, at.missed, at.put_off
    return report


def _int(value: object) -> int:
    return value if isinstance(value, int) else 0
