"""The exporters that a run's own processes asked for, and what each of them has not got: kept in the ledger.

A process asks by the header of its segments. What it asked for holds until the exporter has it, a person discards it,
or the limit of the directory evicts it, whichever exporters a bridge, `drain`, `run` or `serve` is given meanwhile.
An exporter has a record once its tracker confirmed it or ended the run behind it: what is only written may be lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, cast

from otel_bridge.bridge.exporters import Names
from otel_bridge.bridge.ledger.ledger import Ledger
from otel_bridge.bridge.ledger.queries import LedgerView
from otel_bridge.bridge.ledger.rows import Destination
from otel_bridge.exporter import OTLP, SIGNALS
from otel_bridge.records import Position

REQUESTED: Final = "requested"
ASKED_BY: Final = "asked_by"
GIVEN_UP: Final = "given_up"
_OPEN: Final = -1
"""Stands for the end of the ledger: a process that asks for the signal may still append."""


@dataclass(frozen=True, slots=True)
class DiscardedExporter:
    """What an exporter never gets.

    Attributes:
        through: Position up to which records need not wait for it.
        discarded: Records that a person gave up with ``drain --discard``.
        evicted: Records that were deleted to stay under the limit of the directory.
    """

    through: Position = 0
    discarded: int = 0
    evicted: int = 0


class RequestedExporters:
    """Knows which exporters are still owed records of one run. One thread.

    Args:
        ledger: Keeps what was asked for.
        view: Reads it.

    Attributes:
        given_up: Exporter to what it never gets.
        asked_by: Exporter to the instance id of the process that asked for it last.
    """

    def __init__(self, ledger: Ledger, view: LedgerView) -> None:
        self._ledger, self._view = ledger, view
        self._signals = cast("dict[str, dict[str, int]] | None", view.meta(REQUESTED)) or {}
        self.asked_by = cast("dict[str, str] | None", view.meta(ASKED_BY)) or {}
        self._segments_given_up = 0
        stored = cast("dict[str, list[int]] | None", view.meta(GIVEN_UP)) or {}
        self.given_up: dict[str, DiscardedExporter] = {
            name: DiscardedExporter(*numbers) for name, numbers in stored.items()
        }

    @property
    def names(self) -> Iterable[str]:
        """Exporters that a process asked for and nobody discarded since."""
        return self._signals.keys()

    def note(self, named: Names, *, all_read: bool, by: Mapping[str, str]) -> None:
        """Note what the run's processes ask for now.

        Args:
            named: Exporter to signals; empty: none of them asks for any, and what was asked for before holds.
            all_read: Nothing of an earlier process is left to be read, so that what *named* lacks is owed no more than
                the ledger holds.
            by: Exporter to the instance id of the process that asked for it last.
        """
        if not named:
            return
        if self.asked_by != (asked_by := {**self.asked_by, **by}):
            self._ledger.set_meta(ASKED_BY, asked_by)
            self.asked_by = asked_by
        changed = {name: dict(signals) for name, signals in self._signals.items()}
        for name, signals in changed.items():
            for signal, through in signals.items():
                if all_read and through == _OPEN and signal not in named.get(name, ()):
                    signals[signal] = self._ledger.position
        for name, asked in named.items():
            changed.setdefault(name, {}).update(dict.fromkeys(asked, _OPEN))
        self._keep(changed)

    def signals_of(self, name: str) -> tuple[str, ...]:
        """Return the signals that a process asks *name* for, or that *name* has not got."""
        lagging, _ = self.lagging().get(name, ((), 0))
        signals = self._signals.get(name, {})
        return tuple(one for one in SIGNALS if signals.get(one) == _OPEN or one in lagging)

    def open_names(self) -> Names:
        """Return exporter to signals as the last processes that asked for any asked for them."""
        found = {
            name: tuple(signal for signal in SIGNALS if signals.get(signal) == _OPEN)
            for name, signals in self._signals.items()
        }
        return {name: signals for name, signals in found.items() if signals}

    def lagging(self) -> dict[str, tuple[tuple[str, ...], Position]]:
        """Return each exporter that has not got all that was asked for: the signals and the position it is owed.

        One that no process asks for any more is also owed the end of its tracker's run.
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
        """Return by exporter how many records it is owed that are still there; ``otlp`` is owed segments, not these.

        The end that its tracker's run is still owed counts as one.
        """
        lagging = self.lagging()
        if not lagging:
            return {}
        destinations, oldest = self._view.destinations(), self._view.oldest()
        counts: dict[str, int] = {}
        for name, (_, through) in lagging.items():
            at = self._delivered(name, destinations)
            counts[name] = max(through - max(at, oldest - 1), int(self._owes_end(name, at, destinations)))
        return {name: count for name, count in counts.items() if count > 0}

    def keep_from(self) -> Position | None:
        """Return the position behind which an exporter without any destination is owed records; ``None``: no such."""
        known = {destination.exporter for destination in self._view.destinations()}
        return min(
            (self.given_up.get(name, DiscardedExporter()).through for name in self.lagging() if name not in known),
            default=None,
        )

    def _new_segments(self, there: int) -> int:
        """Return how many of the segments that are *there* were not there at the last discard; deleting takes time."""
        new, self._segments_given_up = max(there - self._segments_given_up, 0), there
        return new

    def discard(self, names: Iterable[str], *, segments: Callable[[], int]) -> dict[str, int]:
        """Give up what the exporters *names* have not got; return by exporter how many records that were.

        Args:
            names: The exporters.
            segments: Returns how many segments ``otlp`` has not got: it is owed these, and no records.
        """
        found: dict[str, int] = {}
        for name in names:
            asked = name in self._signals or any(item.exporter == name for item in self._view.destinations())
            if name == OTLP:
                count = self._new_segments(segments())
            else:
                count = self._give_up(name, self._ledger.position) if asked else 0
            if asked and count:
                before = self.given_up.get(name, DiscardedExporter())
                self._put(name, DiscardedExporter(self._ledger.position, before.discarded + count, before.evicted))
                found[name] = count
            if name in self._signals:
                self._keep({other: signals for other, signals in self._signals.items() if other != name})
        return found

    def all_given_up(self) -> dict[str, DiscardedExporter]:
        """Return by exporter what it never gets, also what the limit took from its destinations in the ledger."""
        found = dict(self.given_up)
        for item in self._view.destinations():
            if item.taken:
                one = found.get(item.exporter, DiscardedExporter())
                found[item.exporter] = replace(one, evicted=one.evicted + item.taken)
        return found

    def evict(self, through: Position) -> list[str]:
        """Let records up to *through* go that an exporter without any destination is owed; return such exporters."""
        known = {destination.exporter for destination in self._view.destinations()}
        waiting = [name for name in self.lagging() if name not in known]
        evicted: list[str] = []
        for name in waiting:
            before = self.given_up.get(name, DiscardedExporter())
            if before.through < through and (count := self._give_up(name, through)):
                self._put(name, DiscardedExporter(through, before.discarded, before.evicted + count))
                evicted.append(name)
        return evicted

    def _give_up(self, name: str, through: Position) -> int:
        """Return how many records up to *through* the exporter has not got; its destinations pass over them."""
        at = max(self._delivered(name, self._view.destinations()), self._view.oldest() - 1)
        self._ledger.pass_over(name, through)
        return max(through - at, 0)

    def _delivered(self, name: str, destinations: Iterable[Destination]) -> Position:
        delivered = [item.delivered for item in destinations if item.exporter == name]
        return max([*delivered, self.given_up.get(name, DiscardedExporter()).through])

    def _owes_end(self, name: str, at: Position, destinations: Iterable[Destination]) -> bool:
        """Return whether no process asks for the exporter and the run is still open in the tracker that has most."""
        if _OPEN in self._signals[name].values() or self.given_up.get(name, DiscardedExporter()).through >= at > 0:
            return False
        furthest = max(
            (item for item in destinations if item.exporter == name), key=lambda item: item.delivered, default=None
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
