"""Which runs are at work when there are more than may be: the idlest sleep, and none waits for ever.

A run waits in line, first come, first served. While one waits, a run at work that has nothing to do goes to sleep at
once, one that makes no progress (its tracker fails, it waits for a time to pass) after a moment, and any other after
its stint; one with something left to do goes to the end of the line. For the host's thread.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from otel_bridge.bridge.run_bridge import RunBridge
from otel_bridge.bridge.serving.idle_runs import has_nothing_to_do
from otel_bridge.journal.folder import RunFolder

STINT_S: Final = 10.0
"""How long a run that makes progress works before it gives way."""
STUCK_S: Final = 2.0
"""The same for one that makes none."""
_LOOK_S: Final = 0.1
_GROW_S: Final = 10.0
_SHARE: Final = 4
"""Of the runs with something left to do, at most one in so many gives way at one time."""


@dataclass(slots=True)
class _Stint:
    opened_s: float
    moved_s: float
    position: object = None


class Rotation:
    """The line of runs that wait for their turn, and who gives way to them.

    Args:
        most: Runs at work at one time, at most.

    Attributes:
        waiting: Folders in line, and since when (`time.monotonic`).
    """

    def __init__(self, most: int) -> None:
        self.waiting: OrderedDict[Path, tuple[RunFolder, float]] = OrderedDict()
        self._most = self._limit = most
        self._limited_s = self._looked_s = float("-inf")
        self._stints: dict[Path, _Stint] = {}

    @property
    def limit(self) -> int:
        """How many may be at work now: fewer than at most for a while after files ran out."""
        if self._limit < self._most and time.monotonic() - self._limited_s >= _GROW_S:
            self._limit, self._limited_s = min(self._limit + max(self._limit // 4, 1), self._most), time.monotonic()
        return self._limit

    @property
    def limited(self) -> bool:
        """Files ran out a moment ago."""
        return time.monotonic() - self._limited_s < _GROW_S and self._limit < self._most

    def longest_wait_s(self) -> float:
        """Return how long the first in line has waited, 0 when nobody waits. From any thread."""
        try:
            first = next(iter(self.waiting.values()), None)
        except RuntimeError:  # the line moves just now
            return 0.0
        return 0.0 if first is None else time.monotonic() - first[1]

    def wait(self, folder: RunFolder, *, first: bool = False) -> None:
        """Put *folder* at the end of the line, or at its beginning; in line already, it keeps its place."""
        if folder.path in self.waiting:
            return
        self.waiting[folder.path] = (folder, time.monotonic())
        if first:
            self.waiting.move_to_end(folder.path, last=False)

    def next(self, at_work: int) -> RunFolder | None:
        """Return the folder whose turn it is; ``None``: nobody waits, or *at_work* is the limit."""
        if not self.waiting or at_work >= self.limit:
            return None
        return self.waiting.popitem(last=False)[1][0]

    def files_ran_out(self, at_work: int) -> None:
        """Let fewer runs be at work for a while."""
        self._limit, self._limited_s = max(min(self._limit, at_work - max(at_work // 8, 1)), 1), time.monotonic()

    def began(self, path: Path) -> None:
        """A run began to work."""
        self._stints[path] = _Stint(time.monotonic(), time.monotonic())

    def ended(self, path: Path) -> None:
        """A run works no more."""
        self._stints.pop(path, None)

    def to_give_way(self, runs: Iterable[RunBridge], *, leaving: int) -> list[RunBridge]:
        """Return the runs at work that give way to those in line, the idlest first; looked at ten times a second.

        Args:
            runs: Those at work.
            leaving: How many are on their way to sleep already.
        """
        now_s, at_work = time.monotonic(), list(runs)
        free = self.limit - len(at_work) - leaving
        wanted = max(len(self.waiting) - leaving - max(free, 0), -free - leaving)
        if wanted <= 0 or now_s - self._looked_s < _LOOK_S:
            return []
        self._looked_s = now_s
        ranked = [(rank, self._stints[run.folder.path].moved_s, run) for run in at_work if (rank := self._rank(run))]
        ranked.sort(key=lambda one: one[:2])
        busy = max(self.limit // _SHARE, 1) - leaving
        return [run for number, (rank, _, run) in enumerate(ranked[:wanted]) if rank == 1 or number < busy]

    def _rank(self, run: RunBridge) -> int:
        """Return 1 for a run with nothing to do, 2 for a stuck one, 3 for one whose stint is over; 0: it stays."""
        now_s = time.monotonic()
        turn = self._stints.setdefault(run.folder.path, _Stint(now_s, now_s))
        position = (run.reader.known(), run.ledger.position, [one.written for one in run.progress().values()])
        if position != turn.position:
            turn.position, turn.moved_s = position, now_s
        if has_nothing_to_do(run):
            return 1
        if now_s - turn.moved_s >= STUCK_S:
            return 2
        return 3 if now_s - turn.opened_s >= STINT_S else 0
