"""Writes ``report.json`` from the ledger and the workers: at most every 0.1 s, from one ledger transaction."""

from __future__ import annotations

import dataclasses
import os
import time
from collections import deque
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, cast

from otel_bridge.bridge.delivery.exporter_set import ExporterSet
from otel_bridge.bridge.exporter_selection import ExporterSelection
from otel_bridge.bridge.ingest.bridge_segment import KIND
from otel_bridge.bridge.ingest.segment_reader import SegmentReader
from otel_bridge.bridge.ledger.exporter_state import ExporterState
from otel_bridge.bridge.ledger.queries import SegmentPosition
from otel_bridge.bridge.ledger.run_description import RunDescription
from otel_bridge.bridge.ledger.run_ledger import Ledger
from otel_bridge.errors import JournalError
from otel_bridge.exporter import RunInfo, shown_by
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.machine import this_host
from otel_bridge.journal.report import (
    BridgeReport,
    ExporterReport,
    ProcessReport,
    Report,
    RoleReport,
    read_report,
    write_report,
)
from otel_bridge.translation.alerts import LAST, RAISED
from otel_bridge.translation.featured import FEATURED
from otel_bridge.translation.metrics.media import COUNTED
from otel_bridge.translation.phases.slow_ranks import AwaitedRank, SlowRankOfSteps
from otel_bridge.translation.state import FIRST_KEY, named, number_at

EVERY_S = 0.1
_SETTLE_S = 0.05
"""Time that a due report waits for exporters which are about to have everything."""
_DROP = "drop/"
_BARE = "bare/"
_AXIS = "axis/"
_FURTHEST = "furthest/"
_REACHED = "reached/"
"""Key space of the state: the steps of roles that send rollouts or phases; they may have no rows of
their own."""


class ReportWriter:
    """Writes the report of one run folder. One thread; only `set_due` may be called by any.

    Args:
        folder: The run folder.
        ledger: Its ledger.
        reader: Its reader.
        describe: Describes the run.
        launcher: Whether the bridge is ``otel-bridge run``.

    Raises:
        JournalError: The ledger cannot be opened for reading.
    """

    def __init__(
        self,
        folder: RunFolder,
        ledger: Ledger,
        reader: SegmentReader,
        describe: RunDescription,
        *,
        launcher: bool,
    ) -> None:
        self._due_s: float | None = 0.0
        self._folder = folder
        self._ledger = ledger
        self._reader = reader
        self._describe = describe
        self._launcher = launcher
        self._view = ledger.view()
        self._written_s = float("-inf")
        self._rates = Rates()
        # Exporters that an earlier bridge reported stay in the report when nothing names them.
        last_report = read_report(folder) or Report()
        self._reported = {**last_report.former, **last_report.exporters}

    def set_due(self) -> None:
        """Mark the report as due. May be called by any thread."""
        # The first change counts: later ones must not put the report off.
        if self._due_s is None:
            self._due_s = time.monotonic()

    def write(
        self,
        workers: ExporterSet,
        selection: ExporterSelection,
        *,
        engine_problems: Sequence[str],
        ended: bool,
        settled: bool,
        now: bool = False,
    ) -> None:
        """Write the report when it is due.

        Args:
            workers: The workers of the exporters.
            selection: What other exporters are owed, and never get.
            engine_problems: What keeps inference engines from being read.
            ended: Whether all records are delivered and the run is ended in every tracker.
            settled: Whether no exporter is about to reach the last position. Otherwise the report
                waits a moment for it, so that an awaited report is not delayed by an earlier one.
            now: Whether to write without any wait.

        Raises:
            JournalError: The report cannot be written; the last one stays, and this one is due.
            Exception: What the settings of an exporter raise instead of its link.
        """
        due_s = self._due_s
        if due_s is None:
            return
        now_s = time.monotonic()
        may_settle = not settled and now_s - due_s < _SETTLE_S
        if not now and (may_settle or now_s - self._written_s < EVERY_S):
            return
        self._due_s = (
            None  # before the report is built: later changes make it due again
        )
        self._written_s = now_s
        try:
            report = self._report(workers, selection, engine_problems, ended=ended)
            write_report(self._folder, report)
        except JournalError:
            # Due again: the report that is awaited was not written.
            self._due_s = now_s
            raise
        self._reported |= report.exporters

    def close(self) -> None:
        """Close the connection to the ledger."""
        self._view.close()

    def _report(
        self,
        workers: ExporterSet,
        selection: ExporterSelection,
        engine_problems: Sequence[str],
        *,
        ended: bool,
    ) -> Report:
        """Return the report of this moment; raises `JournalError` when the ledger cannot be read.

        ``ended`` only when no exporter is owed anything either (decision 0022).
        """
        # States before numbers: an exporter shown as writing may be done by then, but never the
        # reverse.
        states = workers.states()
        position, sources, destinations = self._view.overview()
        translator = self._reader.translator
        state = self._reader.state
        host = this_host()
        run = self._describe.brief(state.get("run"))
        counts = self._ledger.counts
        owed = selection.owed()
        discarded: dict[str, int] = {}
        evicted: dict[str, int] = {}
        for name, records in selection.requested.all_given_up().items():
            if records.discarded:
                discarded[name] = records.discarded
            if records.evicted:
                evicted[name] = records.evicted
        # Others may have discarded dead letters in the ledger; ``otlp`` has none there.
        dead_letters: dict[int, int] = {}
        for destination in destinations:
            dead_letters[destination.id] = destination.dead_letters
        exporters: dict[str, ExporterReport] = {}
        for name, exporter_state in states.items():
            exporters[name] = self._exporter(exporter_state, dead_letters, run)
        roles: dict[str, RoleReport] = {}
        for role, numbers in translator.processes_by_role().items():
            roles[role] = RoleReport(*numbers)
        return Report(
            time_unix_ns=time.time_ns(),
            project=run.project,
            name=run.name,
            generated=self._describe.generated(state.get("run")),
            bridge=BridgeReport(os.getpid(), host.name, host.boot_id),
            processes=self._processes(sources),
            roles=roles,
            position=position,
            exporters=exporters,
            former=self._former(destinations, states),
            drops=named(state, _DROP),
            drop_keys=named(state, FIRST_KEY),
            bare_scopes=named(state, _BARE),
            missing_rows=translator.missing_rows(),
            # The later one counts: a late row lowers the last step of an axis, and not the furthest.
            steps={
                **named(state, _REACHED),
                **named(state, _AXIS),
                **named(state, _FURTHEST),
            },
            rows=counts.rows,
            rollouts=counts.rollouts,
            rows_per_s=self._rates.per_s("", counts.rows, self._written_s),
            rows_by_axis=dict(counts.rows_by_axis),
            row_times=dict(counts.row_times),
            derived_rows=dict(counts.derived_rows),
            waiting=dataclasses.asdict(translator.waiting()),
            status=translator.status(),
            ended=ended and not owed,
            owed=owed,
            unchosen=selection.unchosen,
            destinations=len(destinations),
            discarded=discarded,
            evicted=evicted,
            launcher=self._launcher,
            media=number_at(state, COUNTED),
            alerts=number_at(state, RAISED),
            awaited_ranks=_ranks_by_role(translator.phases.awaited(time.time_ns())),
            slow_ranks=_ranks_by_role(translator.phases.slow_ranks.by_role()),
            engine_problems=[*engine_problems, *translator.engine_problems()],
            last_alert=cast("dict[str, str | int] | None", state.get(LAST)) or {},
            featured=cast("dict[str, list[float]] | None", state.get(FEATURED)) or {},
        )

    def _processes(
        self, sources: Iterable[SegmentPosition]
    ) -> dict[str, ProcessReport]:
        """Return how far the segments of each process are read, whether it is alive, and its rows that wait."""
        waiting_rows = self._reader.translator.waiting_rows_of()
        processes: dict[str, ProcessReport] = {}
        for source in sources:
            name = source.instance_id
            processes[name] = ProcessReport(
                source.number,
                source.offset,
                source.forwarded_number,
                source.forwarded_offset,
                *self._life_of(name),
                waiting_rows.get(name, 0),
            )
        return processes

    def _former(
        self, destinations: Sequence[ExporterState], present: Container[str]
    ) -> dict[str, ExporterReport]:
        """Return the last report of each exporter that is not *present* any more."""
        former: dict[str, ExporterReport] = {}
        for name, report in self._reported.items():
            if name not in present:
                former[name] = _former(name, report, destinations)
        return former

    def _exporter(
        self, state: ExporterState, dead_letters: Mapping[int, int], run: RunInfo
    ) -> ExporterReport:
        """Return the report of an exporter, with the *dead_letters* that the ledger has of its destination.

        Without its settings, as before its first step, it has no link.
        """
        view = ""
        upload = ""
        if state.settings is not None:
            view, upload = shown_by(state.settings, run)
        return state.reported(
            view=view,
            upload=upload,
            rows_per_s=self._rates.per_s(state.exporter, state.rows, self._written_s),
            dead_letters=dead_letters.get(state.id, state.dead_letters),
        )

    def _life_of(self, instance_id: str) -> tuple[str | None, bool, bool]:
        """Return role, whether the process lives, and whether it is a bridge; no role without segments."""
        tail = self._reader.tails.get(instance_id)
        if tail is None:
            return None, False, False
        is_bridge = tail.header is not None and tail.header.kind == KIND
        return tail.producer.role, not tail.segments.dead and not is_bridge, is_bridge


def _former(
    name: str, report: ExporterReport, destinations: Iterable[ExporterState]
) -> ExporterReport:
    """Return the last report of an exporter that left, with what it wrote after that report.

    Of its destination with the same run in the tracker, the furthest one. Without any, as in a
    ledger that was rebuilt, the report stays as it was.
    """
    stored: ExporterState | None = None
    for state in destinations:
        is_same_run = report.tracker_run_id in {None, state.tracker_run_id}
        if state.exporter != name or not is_same_run:
            continue
        if stored is None or state.written > stored.written:
            stored = state
    # A ledger that was rebuilt knows less than the last report.
    if stored is None or stored.written < report.written:
        return report
    return dataclasses.replace(
        report,
        written=stored.written,
        durable=stored.durable,
        rows=stored.rows,
        rollouts=stored.rollouts,
        missed=stored.missed,
    )


def _ranks_by_role(
    ranks: Mapping[str, AwaitedRank | SlowRankOfSteps],
) -> dict[str, dict[str, Any]]:
    """Return what `status` shows of a rank of each role, as JSON."""
    return {role: dataclasses.asdict(rank) for role, rank in ranks.items()}


WINDOW_S = 30.0
_SAMPLE_S = 1.0


class Rates:
    """Computes how fast counts grow: keeps a sample per second of each, for the last `WINDOW_S`. One thread."""

    def __init__(self) -> None:
        self._samples: dict[str, deque[tuple[float, int]]] = {}

    def per_s(self, name: str, count: int, now_s: float) -> float:
        """Return the growth of *name* per second, to a tenth.

        0 until two samples are a second apart, and when a count went back, as after a rebuilt
        ledger.

        Args:
            name: Name of the count.
            count: Present value.
            now_s: Time of a monotonic clock.
        """
        samples = self._samples.setdefault(name, deque())
        # One older sample stays, or a count that is reported rarely would have no rate.
        while len(samples) > 1 and now_s - samples[0][0] > WINDOW_S:
            samples.popleft()
        if not samples or now_s - samples[-1][0] >= _SAMPLE_S:
            samples.append((now_s, count))
        first_s, first_count = samples[0]
        elapsed_s = now_s - first_s
        if elapsed_s < _SAMPLE_S:
            return 0.0
        return round(max(count - first_count, 0) / elapsed_s, 1)
