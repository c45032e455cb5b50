"""Values of steps -> the rank that the others of its role wait for. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from statistics import median

from otel_bridge.translation.phases.step_times import PREFIX, STEP

RATIO = f"{PREFIX}slowest_ratio/"
RANK = f"{PREFIX}slowest_rank/"
SLOW = 1.5
"""Ratio of the slowest rank to the others from which on it is named."""
_LAST = 8
"""Number of steps of a role among which a rank must be slow in at least half."""


@dataclass(frozen=True, slots=True)
class SlowRank:
    """Holds a slow rank of a step, and how many times as long as the others it took in a phase."""

    rank: int
    phase: str
    ratio: float


def slow_rank_of(values: Mapping[str, float | int]) -> SlowRank | None:
    """Return the slow rank of a step, in the phase that costs the others most; ``None`` without one.

    Args:
        values: Result of `step_values`.
    """
    costs_s = {
        key.removeprefix(RATIO): _cost_s(values, key)
        for key, ratio in values.items()
        if key.startswith(RATIO) and ratio >= SLOW
    }
    # The step as a whole names a rank, but not what it does.
    phase = max(costs_s, key=lambda name: (name != STEP, costs_s[name]), default=None)
    if phase is None:
        return None
    return SlowRank(int(values[RANK + phase]), phase, values[RATIO + phase])


def _cost_s(values: Mapping[str, float | int], key: str) -> float:
    """Return the seconds that the slowest rank of a phase took more than the others."""
    return values[f"{PREFIX}max/{key.removeprefix(RATIO)}"] * (1 - 1 / values[key])


@dataclass(frozen=True, slots=True)
class SlowRankOfSteps:
    """Holds a rank that is slow in at least half of the last *steps* of its role.

    Attributes:
        ratio: Median over the steps in which it is slow.
        slow_steps: Number of those.
    """

    rank: int
    phase: str
    ratio: float
    slow_steps: int
    steps: int


class SlowRanks:
    """Remembers the last steps of each role, in memory: the next bridge begins anew."""

    def __init__(self) -> None:
        self._steps: dict[str, deque[SlowRank | None]] = {}

    def note(self, role: str, values: Mapping[str, float | int]) -> None:
        """Note a step of *role* by the result of `step_values`."""
        self._steps.setdefault(role, deque(maxlen=_LAST)).append(slow_rank_of(values))

    def by_role(self) -> dict[str, SlowRankOfSteps]:
        """Return the slow rank of each role that has one."""
        slow_ranks: dict[str, SlowRankOfSteps] = {}
        for role, steps in self._steps.items():
            slow_rank = _slow_rank_of_steps(steps)
            if slow_rank is not None:
                slow_ranks[role] = slow_rank
        return slow_ranks


def _slow_rank_of_steps(steps: Collection[SlowRank | None]) -> SlowRankOfSteps | None:
    ratios: dict[tuple[int, str], list[float]] = {}
    for slow in steps:
        if slow is not None:
            # With the phase: a rank that is slow here and there has no cause that one could name.
            ratios.setdefault((slow.rank, slow.phase), []).append(slow.ratio)
    for (rank, phase), of_phase in ratios.items():
        if 2 * len(of_phase) >= _LAST:
            return SlowRankOfSteps(
                rank, phase, median(of_phase), len(of_phase), len(steps)
            )
    return None
