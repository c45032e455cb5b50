"""Selects the exporters of one run: named by its living processes, stored in the ledger, given to its workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import InitVar, dataclass, field

from otel_bridge.bridge.delivery.context import FinalPosition, Names
from otel_bridge.bridge.delivery.exporter_set import ExporterSet
from otel_bridge.bridge.exporter_environment import (
    chosen,
    other_traces,
    together,
    variables_named,
)
from otel_bridge.bridge.ingest.process_monitor import ProcessMonitor
from otel_bridge.bridge.ledger.queries import LedgerView
from otel_bridge.bridge.ledger.run_ledger import Ledger
from otel_bridge.bridge.options import BridgeOptions
from otel_bridge.bridge.requested_exporters import RequestedExporters, in_order
from otel_bridge.exporter import OTLP, SIGNALS, WEBHOOK
from otel_bridge.journal.header import SegmentHeader
from otel_bridge.translation.options import OtherTraces

_ALERTS = ("logs",)
"""Signals of the webhook; alerts go to the exporters of every signal."""


class OtherTracePolicy:
    """Decides how traces that are not rollouts are treated, by the exporters of one run. One thread.

    The reader of the run gets it before the exporters are known; until they are, such traces are
    counted only.

    Args:
        log_line: Takes one line for the log.
    """

    def __init__(self, log_line: Callable[[str], None]) -> None:
        self._log_line = log_line
        self._treatment = OtherTraces.COUNTED
        self._is_reported = False

    def follow(self, names: Names) -> None:
        """Decide by the exporters *names*."""
        self._treatment = other_traces(names)

    def __call__(self) -> OtherTraces:
        """Return how such a trace is treated now.

        It is reported once if an exporter leaves it out.
        """
        if self._treatment is not OtherTraces.SHOWN and not self._is_reported:
            self._is_reported = True
            self._log_line(
                "a trace that is not a rollout goes to otlp, console and file only; counted as trace/other"
            )
        return self._treatment


@dataclass(slots=True, kw_only=True)
class ExporterSelection:
    """Determines the exporters of one run. One thread.

    What reads or changes the ledger raises `JournalError` when that fails. The poll of the run ends
    by that, and the next one decides anew.

    Attributes:
        ledger: Stores the last choice.
        options: Options of the bridge, which may name exporters, discard some and have a webhook.
        run_id: Id of the run.
        view: Reads the ledger.
        processes: Processes of the run.
        workers: Workers of the chosen exporters.
        other_traces: Decides about traces that are not rollouts, by the exporters of the run.
        not_forwarded: Returns how many segments ``otlp`` is owed.
        log_line: Takes one line for the log.
        requested: Requests of the run's own processes.
        chosen: Whether the workers are those that the run needs now; while they are not, it is
            unknown who needs what.
    """

    ledger: Ledger
    options: BridgeOptions
    run_id: str
    view: InitVar[LedgerView]
    processes: ProcessMonitor
    workers: ExporterSet
    other_traces: OtherTracePolicy
    not_forwarded: Callable[[], int]
    log_line: Callable[[str], None]
    requested: RequestedExporters = field(init=False)
    chosen: bool = False
    _last_names: Names = field(default_factory=dict[str, tuple[str, ...]])
    _target_variables: dict[str, dict[str, str]] = field(init=False)

    def __post_init__(self, view: LedgerView) -> None:
        """Take what earlier bridges stored."""
        # As JSON has it, names are stored with lists.
        stored: dict[str, list[str]] = view.meta("exporters") or {}
        for name, signals in stored.items():
            self._last_names[name] = tuple(signals)
        self._target_variables = view.meta("target_variables") or {}
        self.requested = RequestedExporters(self.ledger, view)
        self._follow_others()

    def choose(self, *, all_read: bool = True) -> bool:
        """Choose again; return whether that changed anything.

        Args:
            all_read: Whether everything that the run's processes have appended was read.

        Raises:
            JournalError: The ledger refuses the choice. `chosen` is ``False`` then, so that nothing
                is deleted, and the next call chooses anew.
            RuntimeError: The machine allows no more threads; likewise.
        """
        # Until the end: an error on the way must not let an old choice delete records.
        self.chosen = False
        # If no living process names an exporter, the last processes count: a program may end before
        # its bridge begins.
        living = self.processes.living()
        headers = [header for header in living if any(header.exporters.values())]
        headers = headers or self.processes.headers()
        self.requested.note(
            together(headers), all_read=all_read, by=_last_requested_by(headers)
        )
        # After the requests are noted, since only what is requested can be given up.
        discarded = self.requested.discard(
            self.options.discard, segments=self.not_forwarded
        )
        for name, count in discarded.items():
            unit = "segments" if name == OTLP else "records"
            self.log_line(f"{name}: {count} undelivered {unit} are discarded")
        names, final_positions = self._names(headers)
        # Stored: an ended process that is fully read has no segment left, and its records may still
        # wait for its tracker.
        variables = {**self._target_variables, **variables_named(headers)}
        if self.options.launcher:
            # The processes know only its receiver, which a later drain cannot reach.
            endpoints = self.options.exporter_env.announced_endpoints(self.run_id)
            variables |= {OTLP: endpoints} if endpoints else {}
        if variables != self._target_variables:
            self.ledger.set_meta("target_variables", variables)
            self._target_variables = variables
        # Destinations are stored before: a worker that begins now is found after a kill.
        changed = self.workers.choose(names, variables, final_positions)
        if names != self._last_names:
            self.ledger.set_meta("exporters", names)
            self._last_names = names
        self.workers.mark_named()
        self._follow_others()
        self.chosen = True
        return changed or bool(discarded)

    def _names(
        self, headers: Iterable[SegmentHeader]
    ) -> tuple[Names, dict[str, FinalPosition]]:
        """Return the exporters with their signals, and the last records of exporters that are only owed some.

        A given exporter gets every signal that a process requested for it, because a record is
        passed over only once.
        """
        last = self.requested.open_names() or self._last_names
        names = dict(chosen(self.options.exporters, headers, last))
        final_positions: dict[str, FinalPosition] = {}
        if self.options.exporters is None:
            final_positions = self._add_owed(names)
        for name in names.keys() - final_positions.keys():
            signals = {*names[name], *self.requested.signals_of(name)}
            names[name] = in_order(signals)
        self._choose_webhook(names)
        self._leave_out_discarded(names)
        return names, final_positions

    def _add_owed(self, names: Names) -> dict[str, FinalPosition]:
        """Add exporters of ended processes that lack records to *names*.

        Return the last record of each, and how its tracker's run then ends: as the process that
        requested it last.
        """
        final_positions: dict[str, FinalPosition] = {}
        for name, owed in self.requested.lagging().items():
            # An exporter that is named anyway delivers these records on its way.
            if name not in names:
                status = self.processes.status_of(
                    self.requested.requested_by.get(name, "")
                )
                names[name] = owed.signals
                final_positions[name] = FinalPosition(owed.through, status)
        if OTLP in self.requested.names:
            # It has no position in the ledger, so that it stays while a process has requested it.
            names.setdefault(OTLP, self.requested.signals_of(OTLP) or SIGNALS)
        return final_positions

    def _choose_webhook(self, names: Names) -> None:
        """Add the webhook to *names* if it has an address, or remove it."""
        # Not alone: without another exporter, all records wait for one to be chosen.
        if self.options.webhook and names:
            names.setdefault(WEBHOOK, _ALERTS)
        elif self.options.exporters is None and WEBHOOK not in self.requested.names:
            names.pop(WEBHOOK, None)  # an earlier bridge of the run had the address

    def _leave_out_discarded(self, names: Names) -> None:
        """Remove those of ``drain --discard`` from *names*: what is given up must not be delivered."""
        for name in self.options.discard:
            names.pop(name, None)

    def begin(self, header: SegmentHeader, *, alone: bool) -> None:
        """Store the requests of a process before any of its records is committed.

        Active exporters get its signals at once. Raises `JournalError`; the process's header is
        then taken again with the next batch.

        Args:
            header: Header of the process.
            alone: Whether everything of the other processes that request exporters is committed,
                and none of them lives.
        """
        names = together([header])
        # Here and not only with the next choice: a short process may have ended by then, and its
        # segments be deleted.
        self.requested.note(names, all_read=alone, by=_last_requested_by([header]))
        self._leave_out_discarded(names)
        self.workers.widen(names)
        self._follow_others()

    def owed(self) -> dict[str, int]:
        """Return how many records each inactive exporter is owed, for ``otlp`` how many segments.

        Active ones are left out: their states show what they lack. Raises `JournalError`.
        """
        counts: dict[str, int] = {}
        for name, owed in self.requested.lagging().items():
            if owed.records and name not in self.workers.names:
                counts[name] = owed.records
        segments = self.not_forwarded() if self.owes_otlp else 0
        if segments:
            counts[OTLP] = segments
        return counts

    @property
    def owes_otlp(self) -> bool:
        """Return whether the run's processes requested ``otlp``, which is not active here."""
        return OTLP in self.requested.names and OTLP not in self.workers.names

    @property
    def unchosen(self) -> bool:
        """Return whether no exporter is chosen, so that all records are kept.

        The webhook, which takes alerts only, counts as an exporter where a process of the run
        requested any.
        """
        names = set(self.workers.names)
        return not names or (names == {WEBHOOK} and not set(self.requested.names))

    def _follow_others(self) -> None:
        """Let traces that are not rollouts be treated as the present exporters of the run need it."""
        headers = self.processes.living() or self.processes.headers()
        names = self.workers.names or chosen(
            self.options.exporters, headers, self._last_names
        )
        self.other_traces.follow(names)


def _last_requested_by(headers: Iterable[SegmentHeader]) -> dict[str, str]:
    """Return for each exporter the process that was started last of those that request it."""
    requesters: dict[str, str] = {}
    for header in sorted(
        headers, key=lambda header: header.started_unix_ns or header.created_unix_ns
    ):
        requesters.update(dict.fromkeys(together([header]), header.instance_id))
    return requesters
