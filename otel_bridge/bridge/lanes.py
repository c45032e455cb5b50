"""The exporters of one run at work: one `Lane` each, begun and ended as the run's processes name them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from otel_bridge.bridge.delivery import Delivery
from otel_bridge.bridge.exporters import Names, Places
from otel_bridge.bridge.ledger import Ledger
from otel_bridge.bridge.window import Describe, Progress
from otel_bridge.bridge.worker import Lane, Worker
from otel_bridge.exporter import OTLP
from otel_bridge.otlp_content import Limit
from otel_bridge.records import Position

_NOWHERE: Final[Mapping[str, str]] = {}


class Lanes:
    """Owns the lanes of one run. One thread.

    Args:
        ledger: The run's ledger.
        places: Where exporters deliver.
        describe: Tells the run.
        progressed: Called from a lane's thread when it got on.
        say: Takes one line for the log.
        forward: Makes the lane of ``otlp``.
        limit_of: From an exporter to the characters that a text may have for it.
        more_comes: Says whether more records are about to come without a pause, so that no writer may rest.
    """

    def __init__(
        self,
        ledger: Ledger,
        places: Places,
        describe: Describe,
        *,
        progressed: Callable[[], None],
        say: Callable[[str], None],
        forward: Callable[[], Lane],
        limit_of: Callable[[str], Limit],
        more_comes: Callable[[], bool],
    ) -> None:
        self.by_name: dict[str, Lane] = {}
        self._ledger, self._places, self._describe = ledger, places, describe
        self._progressed, self._say, self._forward = progressed, say, forward
        self._limit_of, self._more_comes = limit_of, more_comes
        self._names: Names = {}
        self._leaving: list[Lane] = []
        self._named_ids: set[int] = set()

    @property
    def names(self) -> Names:
        """Exporter to signals, as they are now."""
        return self._names

    def choose(self, names: Names, named: Mapping[str, Mapping[str, str]]) -> bool:
        """Make the lanes those of *names*; say whether anything changed.

        Args:
            names: Exporter to signals.
            named: Exporter to the place that the run's processes name for it.
        """
        self._leaving = [lane for lane in self._leaving if not lane.join(0.0)]
        if names == self._names:
            return False
        for name in self._names.keys() - names.keys():
            lane = self.by_name.pop(name)
            del self._names[name]
            lane.stop()
            self._leaving.append(lane)
        for name, signals in names.items():
            if name not in self.by_name:
                self.by_name[name] = self._begun(name, signals, named.get(name, _NOWHERE))
            elif self._names[name] != signals:
                self.by_name[name].set_signals(signals)
            self._names[name] = signals
        return True

    def poke(self, *, retry: bool = False) -> None:
        """Say that there are new records; with *retry* try at once what failed."""
        for lane in self.by_name.values():
            lane.poke(retry=retry)

    def retry_letters(self, letters: Mapping[str, Sequence[int]]) -> None:
        """Try dead letters again, ids by exporter; those of an exporter that the run does not have stay as they are."""
        for name, ids in letters.items():
            if name in self.by_name:
                self.by_name[name].retry_letters(ids)
            else:
                self._say(f"{name} is not among the run's exporters: its dead letters stay as they are")

    def mark_named(self) -> None:
        """Tell the ledger which destinations the run has now, when that changed."""
        ids = {lane.destination_id for lane in self.by_name.values()} - {None}
        known = {number for number in ids if number is not None}
        if known != self._named_ids:
            self._ledger.name_destinations(known)
            self._named_ids = known

    def unresolved(self) -> bool:
        """Say whether an exporter's destination is not known yet."""
        return any(not lane.progress.resolved for name, lane in self.by_name.items() if name != OTLP)

    def rest(self, position: Position, park_s: float) -> tuple[bool, bool]:
        """Say whether all is delivered, and else whether what is not is parked: blocked, or failing for *park_s*."""
        lanes = self.by_name.values()
        left = [lane.progress for lane in lanes if lane.letters_waiting() or not _is_done(lane.progress, position)]
        return not left, all(_is_parked(progress, park_s) for progress in left)

    def written(self) -> list[Position]:
        """Return how far each of those is that do not fail."""
        return [
            lane.progress.written
            for name, lane in self.by_name.items()
            if name != OTLP and lane.progress.failing_since_s is None
        ]

    def stop(self) -> None:
        """Ask all to end."""
        for lane in (*self.by_name.values(), *self._leaving):
            lane.stop()

    def join(self, deadline_s: float) -> list[str]:
        """Wait for all until `time.monotonic` is *deadline_s*; return the names of those that hang."""
        lanes = {**self.by_name, **{lane.progress.exporter: lane for lane in self._leaving}}
        return [name for name, lane in lanes.items() if not lane.join(deadline_s - time.monotonic())]

    def _begun(self, name: str, signals: tuple[str, ...], place: Mapping[str, str]) -> Lane:
        if name == OTLP:
            lane = self._forward()
        else:
            delivery = Delivery(
                name,
                signals,
                self._ledger,
                resolve=lambda: self._places.resolve(name, place),
                describe=self._describe,
                say=self._say,
                limit=lambda: self._limit_of(name),
                more_comes=self._more_comes,
            )
            lane = Worker(delivery, progressed=self._progressed)
        lane.start()
        return lane


def _is_done(progress: Progress, position: Position) -> bool:
    return progress.resolved and progress.failing_since_s is None and progress.written >= position


def _is_parked(progress: Progress, park_s: float) -> bool:
    if progress.state == "blocked":
        return True
    return progress.failing_since_s is not None and time.monotonic() - progress.failing_since_s >= park_s
