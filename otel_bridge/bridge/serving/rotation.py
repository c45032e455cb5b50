"""Decides which runs are active when there are more than allowed: the idlest sleep, and none waits forever.

Waiting runs form a queue, first come, first served. While a run waits, an active run with nothing
to do goes to sleep at once. A run without progress sleeps after a moment: its tracker fails, or a
timeout is pending. Any other run sleeps after its stint, so that each waiting run has its turn. A
run with something left to do goes to the end of the queue. For the host's thread.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from operator import itemgetter
from pathlib import Path

from otel_bridge.bridge.run_bridge import RunBridge
from otel_bridge.journal.folder import RunFolder

STINT_S = 10.0
"""Seconds that a run with progress stays active before it gives way."""
STUCK_S = 2.0
"""Seconds without progress after which a run gives way."""
ENDED_S = 5.0
"""Seconds that an ended run stays open; a receiver keeps the run's segment, and its liveness lock,
for a minute."""
_CHECK_S = 1.0
"""Seconds between two checks whether a run is idle."""
_DECIDE_S = 0.1
"""Seconds between two decisions which runs give way."""
_GROW_S = 10.0
"""Seconds after which a lowered limit grows again."""
_SHARE = 4
"""A run with something left to do gives way only while less than 1 / `_SHARE` of the limit leaves."""


class _GiveWayReason(IntEnum):
    """Orders the runs that may give way: the lowest goes first.

    A stuck run goes before one that moves, because it loses nothing by waiting.
    """

    IDLE = 1
    STUCK = 2
    STINT_OVER = 3


@dataclass(slots=True)
class _Stint:
    """Follows one active run.

    Attributes:
        opened_s: When it became active.
        moved_s: When it read or delivered something last.
        busy_s: When it had something to do last.
        checked_s: When `Rotation.may_sleep` looked at it last.
    """

    opened_s: float
    moved_s: float
    busy_s: float
    checked_s: float = 0.0
    position: object = None

    def observe(self, run: RunBridge, now_s: float) -> bool:
        """Note when *run* moved or was busy last; return whether it has nothing to do.

        It moved if it read or stored anything, or an exporter wrote something, since the last look:
        a run whose tracker fails does none of these.
        """
        written = [state.written for state in run.workers.states().values()]
        position = (run.reader.offsets(), run.ledger.position, written)
        has_moved = position != self.position
        if has_moved:
            self.position = position
            self.moved_s = now_s
        is_idle = run.has_nothing_to_do()
        if has_moved or not is_idle:
            self.busy_s = now_s
        return is_idle


class Rotation:
    """Holds the queue of waiting runs, and decides which runs sleep: idle ones, and those that give way.

    Args:
        max_runs: Most active runs at a time.
        idle_s: Seconds without work after which a run sleeps although none waits; ``None``: such a
            run stays active.

    Attributes:
        waiting: Folders in the queue, and since when (`time.monotonic`).
    """

    def __init__(self, max_runs: int, idle_s: float | None) -> None:
        self.waiting: OrderedDict[Path, tuple[RunFolder, float]] = OrderedDict()
        self._max_runs = max_runs
        self._idle_s = idle_s
        self._limit = max_runs
        self._limited_s = -math.inf
        self._decided_s = -math.inf
        self._open_again_s = -math.inf
        self._stints: dict[Path, _Stint] = {}

    @property
    def limit(self) -> int:
        """Return the most active runs at present: fewer for a while after no more files could be opened."""
        if (
            self._limit < self._max_runs
            and time.monotonic() - self._limited_s >= _GROW_S
        ):
            self._limit = min(self._limit + max(self._limit // 4, 1), self._max_runs)
            self._limited_s = time.monotonic()
        return self._limit

    @property
    def limited(self) -> bool:
        """Return whether the limit was lowered a moment ago because no more files could be opened.

        A limit of one run cannot be lowered: there it is whether they ran out a moment ago.
        """
        is_lowered = self._limit < self._max_runs or self._max_runs == 1
        return is_lowered and time.monotonic() - self._limited_s < _GROW_S

    def longest_wait_s(self) -> float:
        """Return how long the first run in the queue has waited, 0 when none waits. May be called by any thread."""
        try:
            first = next(iter(self.waiting.values()), None)
        except RuntimeError:  # the queue changes just now
            return 0.0
        if first is None:
            return 0.0
        return time.monotonic() - first[1]

    def enqueue(self, folder: RunFolder, *, first: bool = False) -> None:
        """Put *folder* at the end of the queue, or at its beginning.

        A folder in the queue keeps its position.
        """
        if folder.path in self.waiting:
            return
        self.waiting[folder.path] = (folder, time.monotonic())
        if first:
            self.waiting.move_to_end(folder.path, last=False)

    def take_next(self, at_work: int) -> RunFolder | None:
        """Return the first folder of the queue, and take it from there.

        ``None`` when none waits, *at_work* is the limit, or files ran out a moment ago.
        """
        if (
            not self.waiting
            or at_work >= self.limit
            or time.monotonic() < self._open_again_s
        ):
            return None
        return self.waiting.popitem(last=False)[1][0]

    def files_ran_out(self, at_work: int, *, pause_s: float = 0.0) -> None:
        """Allow fewer active runs for a while, and none to be opened in the next *pause_s* seconds.

        The limit grows back by a quarter every `_GROW_S`: what took the files may be gone, and a
        service must not stay slow for ever.
        """
        now_s = time.monotonic()
        self._open_again_s = max(self._open_again_s, now_s + pause_s)
        # An eighth fewer than were open when the files ran out, since that number was too many.
        self._limit = max(min(self._limit, at_work - max(at_work // 8, 1)), 1)
        self._limited_s = now_s

    def opened(self, path: Path) -> None:
        """Store when a run became active."""
        now_s = time.monotonic()
        self._stints[path] = _Stint(now_s, now_s, now_s)

    def closed(self, path: Path) -> None:
        """Forget a run that is no longer active."""
        self._stints.pop(path, None)

    def may_sleep(self, run: RunBridge) -> bool:
        """Return whether *run* has had nothing to do for ``idle_s`` seconds; for `ENDED_S` if it has ended.

        Checks once a second, since each check asks all parts of the run. ``False`` between two
        checks, and always without ``idle_s``. An ended run sleeps earlier: it is over for its
        processes, and only the receiver's segment keeps it open.
        """
        now_s = time.monotonic()
        stint = self._stints[run.folder.path]
        if self._idle_s is None or now_s - stint.checked_s < _CHECK_S:
            return False
        stint.checked_s = now_s
        idle_s = self._idle_s
        if run.reader.translator.status() != "running":
            idle_s = min(idle_s, ENDED_S)
        return stint.observe(run, now_s) and now_s - stint.busy_s >= idle_s

    def to_give_way(
        self, runs: Iterable[RunBridge], *, leaving: int
    ) -> list[RunBridge]:
        """Return the active runs that give way to waiting ones, the idlest first.

        Empty while none waits and the limit is kept, and for a tenth of a second after a decision.
        A busy run gives way only while fewer than a quarter of the limit leave, idle ones included.

        Args:
            runs: The active runs.
            leaving: Number of runs that are about to sleep already; they are not among *runs*.
        """
        now_s = time.monotonic()
        at_work = list(runs)
        free = self.limit - len(at_work) - leaving
        # As many as wait, or as are active beyond a limit that was lowered.
        needed = max(len(self.waiting) - leaving - max(free, 0), -free - leaving)
        if needed <= 0 or now_s - self._decided_s < _DECIDE_S:
            return []
        self._decided_s = now_s
        candidates: list[tuple[_GiveWayReason, float, RunBridge]] = []
        for run in at_work:
            reason = self._reason(run)
            if reason is not None:
                moved_s = self._stints[run.folder.path].moved_s
                candidates.append((reason, moved_s, run))
        candidates.sort(key=itemgetter(0, 1))
        # Few busy ones at a time, because each closes and opens its writers.
        max_busy = max(self.limit // _SHARE, 1) - leaving
        giving_way: list[RunBridge] = []
        for reason, _, run in candidates[:needed]:
            if reason is _GiveWayReason.IDLE or len(giving_way) < max_busy:
                giving_way.append(run)
        return giving_way

    def _reason(self, run: RunBridge) -> _GiveWayReason | None:
        """Return why *run* may give way; ``None`` when it must not yet."""
        now_s = time.monotonic()
        stint = self._stints[run.folder.path]
        if stint.observe(run, now_s):
            return _GiveWayReason.IDLE
        if now_s - stint.moved_s >= STUCK_S:
            return _GiveWayReason.STUCK
        if now_s - stint.opened_s >= STINT_S:
            return _GiveWayReason.STINT_OVER
        return None
