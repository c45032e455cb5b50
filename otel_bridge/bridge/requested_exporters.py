"""Keeps in the ledger which exporters a run's own processes requested, and which records each of them lacks.

A process requests exporters by the header of its segments. The request holds until the exporter has its
records, a person discards them, or they are evicted. Exporters given to a bridge, `drain`, `run` or `serve` do not
change that. An exporter has a record once its tracker confirmed the record, or ended the run after it. A record that
is only written may be lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, cast

from otel_bridge.bridge.delivery.context import Names
from otel_bridge.bridge.ledger.exporter_state import ExporterState
from otel_bridge.bridge.ledger.queries import LedgerView
from otel_bridge.bridge.ledger.run_ledger import Ledger
from otel_bridge.exporter import OTLP, SIGNALS
from otel_bridge.records import Position

REQUESTED: Final = "requested"
REQUESTED_BY: Final = "requested_by"
GIVEN_UP: Final = "given_up"
_OPEN: Final = -1
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


class RequestedExporters:
    """Determines which exporters are still owed records of one run. One thread.

    Args:
        ledger: Stores the requests.
        view: Reads the ledger.

    Attributes:
        given_up: Exporter to the records that it never gets.
        requested_by: Exporter to the instance id of the process that requested it last.
    """

    def __init__(self, ledger: Ledger, view: LedgerView) -> None:
        self._ledger, self._view = ledger, view
        self._signals = cast("dict[str, dict[str, int]] | None", view.meta(REQUESTED)) or {}
        self.requested_by = cast("dict[str, str] | None", view.meta(REQUESTED_BY)) or {}
        self._segments_given_up = 0
        stored = cast("dict[str, list[int]] | None", view.meta(GIVEN_UP)) or {}
        self.given_up: dict[str, DiscardedExporter] = {
            name: DiscardedExporter(*numbers) for name, numbers in stored.items()
        }

    @property
    def names(self) -> Iterable[str]:
        """Return the exporters that a process requested and that were not discarded since."""
        return self._signals.keys()

    def note(self, named: Names, *, all_read: bool, by: Mapping[str, str]) -> None:
        """Store the present requests of the run's processes.

        Args:
            named: Exporter to signals. When empty, no process requests any, and earlier requests hold.
            all_read: Whether the segments of earlier processes are fully read. Then an exporter that *named* lacks is
                owed no more than the ledger holds.
            by: Exporter to the instance id of the process that requested it last.
        """
        if not named:
            return
        if self.requested_by != (requested_by := {**self.requested_by, **by}):
            self._ledger.set_meta(REQUESTED_BY, requested_by)
            self.requested_by = requested_by
        changed = {name: dict(signals) for name, signals in self._signals.items()}
        for name, signals in changed.items():
            for signal, through in signals.items():
                if all_read and through == _OPEN and signal not in named.get(name, ()):
                    signals[signal] = self._ledger.position
        for name, requested in named.items():
            changed.setdefault(name, {}).update(dict.fromkeys(requested, _OPEN))
        self._keep(changed)

    def signals_of(self, name: str) -> tuple[str, ...]:
        """Return the signals that a process requests for *name*, or that *name* has not got."""
        lagging, _ = self.lagging().get(name, ((), 0))
        signals = self._signals.get(name, {})
        return tuple(one for one in SIGNALS if signals.get(one) == _OPEN or one in lagging)

    def open_names(self) -> Names:
        """Return exporter to signals as the last processes with any request requested them."""
        found = {
            name: tuple(signal for signal in SIGNALS if signals.get(signal) == _OPEN)
            for name, signals in self._signals.items()
        }
        return {name: signals for name, signals in found.items() if signals}

    def lagging(self) -> dict[str, tuple[tuple[str, ...], Position]]:
        """Return each exporter that lacks requested records: the signals and the position that it is owed.

        An exporter that no process requests any more is also owed the end of its tracker's run.
        """
        destinations = self._view.destinations()
        found: dict[str, tuple[tuple[str, ...], Position]] = {}
        for name in self._signals:
            at = self._delivered(name, destinations)
            behind = tuple(signal for signal in SIGNALS if self._through(name, signal) > at)
            if not behind and self._owes_end(name, at, destinations):
                behind = tuple(signal for signal in SIGNALS if signal in self._signals[name])
            if behind and name != OTLP:
                found[name] = behind, max(self._through(name, signal) for signal in behind)
        return found

    def owed(self) -> dict[str, int]:
        """Return the number of stored records that each exporter is owed; ``otlp`` is owed segments instead.

        The end that its tracker's run is still owed counts as one record.
        """
        lagging = self.lagging()
        if not lagging:
            return {}
        destinations, oldest = self._view.destinations(), self._view.oldest()
        counts: dict[str, int] = {}
        for name, (_, through) in lagging.items():
            at = self._delivered(name, destinations)
            counts[name] = max(
                through - max(at, oldest - 1), int(self._owes_end(name, at, destinations))
            )
        return {name: count for name, count in counts.items() if count > 0}

    def keep_from(self) -> Position | None:
        """Return the position after which exporters without a destination are owed records; ``None`` without one."""
        known = {destination.exporter for destination in self._view.destinations()}
        return min(
            (
                self.given_up.get(name, DiscardedExporter()).through
                for name in self.lagging()
                if name not in known
            ),
            default=None,
        )

    def _new_segments(self, there: int) -> int:
        """Return the number of segments, of *there*, that are new since the last discard; deleting takes time."""
        new, self._segments_given_up = max(there - self._segments_given_up, 0), there
        return new

    def discard(self, names: Iterable[str], *, segments: Callable[[], int]) -> dict[str, int]:
        """Give up the records that the exporters *names* have not got; return the number of records by exporter.

        Args:
            names: The exporters.
            segments: Returns the number of segments that ``otlp`` has not got: it is owed these, and no records.
        """
        found: dict[str, int] = {}
        for name in names:
            is_known = name in self._signals or any(
                item.exporter == name for item in self._view.destinations()
            )
            if name == OTLP:
                count = self._new_segments(segments())
            else:
                count = self._give_up(name, self._ledger.position) if is_known else 0
            if is_known and count:
                before = self.given_up.get(name, DiscardedExporter())
                self._put(
                    name,
                    DiscardedExporter(
                        self._ledger.position, before.discarded + count, before.evicted
                    ),
                )
                found[name] = count
            if name in self._signals:
                self._keep(
                    {other: signals for other, signals in self._signals.items() if other != name}
                )
        return found

    def all_given_up(self) -> dict[str, DiscardedExporter]:
        """Return by exporter the records that it never gets, including those evicted from its destinations."""
        found = dict(self.given_up)
        for item in self._view.destinations():
            if item.evicted:
                one = found.get(item.exporter, DiscardedExporter())
                found[item.exporter] = replace(one, evicted=one.evicted + item.evicted)
        return found

    def evict(self, through: Position) -> list[str]:
        """Evict records up to *through* that are owed to exporters without any destination; return these exporters."""
        known = {destination.exporter for destination in self._view.destinations()}
        waiting = [name for name in self.lagging() if name not in known]
        evicted: list[str] = []
        for name in waiting:
            before = self.given_up.get(name, DiscardedExporter())
            if before.through < through and (count := self._give_up(name, through)):
                self._put(
                    name, DiscardedExporter(through, before.discarded, before.evicted + count)
                )
                evicted.append(name)
        return evicted

    def _give_up(self, name: str, through: Position) -> int:
        """Return how many records up to *through* the exporter lacks; its destinations move past them."""
        at = max(self._delivered(name, self._view.destinations()), self._view.oldest() - 1)
        self._ledger.pass_over(name, through)
        return max(through - at, 0)

    def _delivered(self, name: str, destinations: Iterable[ExporterState]) -> Position:
        delivered = [item.delivered for item in destinations if item.exporter == name]
        return max([*delivered, self.given_up.get(name, DiscardedExporter()).through])

    def _owes_end(self, name: str, at: Position, destinations: Iterable[ExporterState]) -> bool:
        """Return whether no process requests the exporter and the run is still open in its furthest destination."""
        if (
            _OPEN in self._signals[name].values()
            or self.given_up.get(name, DiscardedExporter()).through >= at > 0
        ):
            return False
        furthest = max(
            (item for item in destinations if item.exporter == name),
            key=lambda item: item.delivered,
            default=None,
        )
        return furthest is not None and not furthest.settled

    def _through(self, name: str, signal: str) -> Position:
        through = self._signals[name].get(signal, 0)
        return self._ledger.position if through == _OPEN else through

    def _keep(self, signals: Mapping[str, dict[str, int]]) -> None:
        if signals != self._signals:
            self._ledger.set_meta(REQUESTED, signals)
            self._signals = dict(signals)

    def _put(self, name: str, given_up: DiscardedExporter) -> None:
        changed = {**self.given_up, name: given_up}
        plain = {key: [one.through, one.discarded, one.evicted] for key, one in changed.items()}
        self._ledger.set_meta(GIVEN_UP, plain)
        self.given_up = changed
