"""Keeps in the ledger which exporters a run's own processes requested, and which records each of them lacks.

A process requests exporters by the header of its segments. The request holds until the exporter has
its records, a person discards them, or they are evicted. Exporters given to a bridge, `drain`,
`run` or `serve` do not change that. An exporter has a record once its tracker confirmed the record,
or ended the run after it. A record that is only written may be lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import astuple, dataclass, replace

from otel_bridge.bridge.delivery.context import Names
from otel_bridge.bridge.ledger.exporter_state import ExporterState
from otel_bridge.bridge.ledger.queries import LedgerView
from otel_bridge.bridge.ledger.run_ledger import Ledger
from otel_bridge.exporter import OTLP, SIGNALS
from otel_bridge.records import Position

REQUESTED = "requested"
REQUESTED_BY = "requested_by"
GIVEN_UP = "given_up"
_OPEN = -1
"""Represents the end of the ledger: a process that requests the signal may still append."""


@dataclass(frozen=True, slots=True)
class DiscardedExporter:
    """Describes the records that an exporter never gets.

    Attributes:
        through: Position up to which records need not wait for the exporter.
        discarded: Number of records that a person gave up with ``drain --discard``.
        evicted: Number of records that were deleted to stay under the limit of the directory.
    """

    through: Position = 0
    discarded: int = 0
    evicted: int = 0


@dataclass(frozen=True, slots=True)
class OwedRecords:
    """Describes what an exporter is owed.

    Attributes:
        signals: Signals of the records that it lacks.
        through: Position up to which these were requested.
        records: Number of the records that the ledger still has; 1 if only the end of the tracker's
            run is owed.
    """

    signals: tuple[str, ...]
    through: Position
    records: int


class RequestedExporters:
    """Determines which exporters are still owed records of one run. One thread.

    What reads or changes the ledger raises `JournalError` when that fails. The poll of the run ends
    by that, and the next one repeats it.

    Args:
        ledger: Stores the requests.
        view: Reads the ledger.

    Attributes:
        given_up: Exporter to the records that it never gets.
        requested_by: Exporter to the instance id of the process that requested it last.
    """

    def __init__(self, ledger: Ledger, view: LedgerView) -> None:
        self._ledger = ledger
        self._view = view
        self._signals: dict[str, dict[str, int]] = view.meta(REQUESTED) or {}
        self.requested_by: dict[str, str] = view.meta(REQUESTED_BY) or {}
        self._segments_given_up = 0
        self.given_up: dict[str, DiscardedExporter] = {}
        given_up: dict[str, list[int]] = view.meta(GIVEN_UP) or {}
        for name, numbers in given_up.items():
            self.given_up[name] = DiscardedExporter(*numbers)

    @property
    def names(self) -> Iterable[str]:
        """Return the exporters that a process requested and that were not discarded since."""
        return self._signals.keys()

    def note(self, names: Names, *, all_read: bool, by: Mapping[str, str]) -> None:
        """Store the present requests of the run's processes.

        Raises `JournalError` when the ledger refuses them; they are then as before.

        Args:
            names: Exporter to signals. When empty, no process requests any, and earlier requests
                hold.
            all_read: Whether the segments of earlier processes are fully read. Then an exporter
                that *names* lacks is owed no more than the ledger holds.
            by: Exporter to the instance id of the process that requested it last. With its status
                the tracker's run ends once every process has withdrawn its request.
        """
        if not names:
            return
        requested_by = {**self.requested_by, **by}
        if self.requested_by != requested_by:
            self._ledger.set_meta(REQUESTED_BY, requested_by)
            self.requested_by = requested_by
        changed = deepcopy(self._signals)
        for name, signals in changed.items():
            for signal, through in signals.items():
                # Only when all is read: records of the earlier process may still come.
                if all_read and through == _OPEN and signal not in names.get(name, ()):
                    signals[signal] = self._ledger.position
        for name, requested in names.items():
            changed.setdefault(name, {}).update(dict.fromkeys(requested, _OPEN))
        self._store_signals(changed)

    def signals_of(self, name: str) -> tuple[str, ...]:
        """Return the signals that a process requests for *name*, or that *name* has not got."""
        signals = {*self.open_names().get(name, ())}
        owed = self.lagging().get(name)
        if owed is not None:
            signals.update(owed.signals)
        return in_order(signals)

    def open_names(self) -> Names:
        """Return exporter to signals as the last processes with any request requested them."""
        names: Names = {}
        for name, positions in self._signals.items():
            for signal in in_order(positions):
                if positions[signal] == _OPEN:
                    names[name] = (*names.get(name, ()), signal)
        return names

    def lagging(self) -> dict[str, OwedRecords]:
        """Return what each exporter that lacks requested records is owed; ``otlp`` is owed segments instead.

        An exporter that no process requests any more is also owed the end of its tracker's run, or
        the tracker would show that run as running for ever.
        """
        destinations = self._view.destinations()
        # Records before the oldest are gone, so they are not owed.
        before_oldest = self._view.oldest() - 1
        lagging: dict[str, OwedRecords] = {}
        for name, positions in self._signals.items():
            if name == OTLP:
                continue
            delivered = self._delivered(name, destinations)
            owes_end = self._owes_end(name, delivered, destinations)
            through: dict[str, Position] = {}
            for signal, position in positions.items():
                last = self._ledger.position if position == _OPEN else position
                if last > delivered:
                    through[signal] = last
            if owes_end and not through:
                through = positions
            if through:
                last = max(through.values())
                records = last - max(delivered, before_oldest)
                # The end alone counts as one record.
                lagging[name] = OwedRecords(
                    in_order(through), last, max(records, int(owes_end))
                )
        return lagging

    def keep_from(self) -> Position | None:
        """Return the position after which exporters without a destination are owed records.

        ``None`` without one. Such an exporter was requested and never opened, so that no row of the
        ledger's destinations keeps its records.
        """
        positions = (
            self._given_up_of(name).through for name in self._without_destination()
        )
        return min(positions, default=None)

    def _without_destination(self) -> list[str]:
        """Return the exporters that are owed records and have no destination yet."""
        names = self.lagging()
        for destination in self._view.destinations():
            names.pop(destination.exporter, None)
        return list(names)

    def _given_up_of(self, name: str) -> DiscardedExporter:
        return self.given_up.get(name, DiscardedExporter())

    def discard(
        self, names: Iterable[str], *, segments: Callable[[], int]
    ) -> dict[str, int]:
        """Give up the records that the exporters *names* have not got.

        Return the number of records by exporter, without those that lacked none. Names that the run
        never had are passed over: a person discards for many runs at once.

        Args:
            names: The exporters.
            segments: Returns the number of segments that ``otlp`` has not got: it is owed these,
                and no records.

        Raises:
            JournalError: The ledger refuses it; what was given up before stays given up, and
                counted.
        """
        counts: dict[str, int] = {}
        present = set(self._signals)
        present.update(state.exporter for state in self._view.destinations())
        for name in names:
            if name not in present:
                continue
            if name == OTLP:
                # Deleting takes time: segments that the last discard counted may still exist.
                segment_count = segments()
                count = max(segment_count - self._segments_given_up, 0)
                self._segments_given_up = segment_count
            else:
                count = self._give_up(name, self._ledger.position)
            if count:
                total = self._given_up_of(name)
                total = replace(
                    total,
                    through=self._ledger.position,
                    discarded=total.discarded + count,
                )
                self._store_given_up({**self.given_up, name: total})
                counts[name] = count
            signals = dict(self._signals)
            signals.pop(name, None)
            self._store_signals(signals)
        return counts

    def all_given_up(self) -> dict[str, DiscardedExporter]:
        """Return by exporter the records that it never gets, including those evicted from its destinations."""
        totals = dict(self.given_up)
        for destination in self._view.destinations():
            if destination.evicted:
                total = totals.get(destination.exporter, DiscardedExporter())
                evicted = total.evicted + destination.evicted
                totals[destination.exporter] = replace(total, evicted=evicted)
        return totals

    def evict(self, through: Position) -> None:
        """Evict records up to *through* that are owed to exporters without any destination, and count them."""
        for name in self._without_destination():
            total = self._given_up_of(name)
            count = 0
            if total.through < through:
                count = self._give_up(name, through)
            if count:
                total = replace(total, through=through, evicted=total.evicted + count)
                self._store_given_up({**self.given_up, name: total})

    def _give_up(self, name: str, through: Position) -> int:
        """Return how many records up to *through* the exporter lacks.

        Its destinations move past them. Records before the oldest were deleted, and do not count.
        """
        delivered = self._delivered(name, self._view.destinations())
        start = max(delivered, self._view.oldest() - 1)
        # Before it is counted: after a kill in between the report counts fewer.
        self._ledger.pass_over(name, through)
        return max(through - start, 0)

    def _delivered(self, name: str, destinations: Iterable[ExporterState]) -> Position:
        """Return the position that an exporter has delivered, or was given up to, in its furthest destination."""
        delivered = self._given_up_of(name).through
        for state in destinations:
            if state.exporter == name:
                delivered = max(delivered, state.delivered)
        return delivered

    def _owes_end(
        self, name: str, delivered: Position, destinations: Iterable[ExporterState]
    ) -> bool:
        """Return whether no process requests the exporter and the run is still open in its furthest destination.

        Destinations behind the furthest one do not count: the run went on elsewhere.
        """
        is_requested = _OPEN in self._signals[name].values()
        # Given up: the exporter gets neither the records nor the end.
        is_given_up = delivered > 0 and self._given_up_of(name).through >= delivered
        if is_requested or is_given_up:
            return False
        states = [state for state in destinations if state.exporter == name]
        furthest = max(states, key=lambda state: state.delivered, default=None)
        return furthest is not None and not furthest.settled

    def _store_signals(self, signals: dict[str, dict[str, int]]) -> None:
        """Store the requests if they changed.

        Raises `JournalError`, and memory is then as before.
        """
        if signals != self._signals:
            # The ledger first, so that memory has no request that a restart would forget.
            self._ledger.set_meta(REQUESTED, signals)
            self._signals = signals

    def _store_given_up(self, given_up: dict[str, DiscardedExporter]) -> None:
        """Store what exporters never get; raises `JournalError`, and memory is then as before."""
        self._ledger.set_meta(
            GIVEN_UP, {name: astuple(total) for name, total in given_up.items()}
        )
        self.given_up = given_up


def in_order(signals: Iterable[str]) -> tuple[str, ...]:
    """Return *signals* in the order of `SIGNALS`, so that equal choices compare equal.

    All of them are there: `by_exporter` has left out signals that this version does not know.
    """
    return tuple(sorted(signals, key=SIGNALS.index))
