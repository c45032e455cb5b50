"""Values of a step -> the rank that the others of its role wait for. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from otel_bridge.translation.phases.step_times import PREFIX, STEP

RATIO: Final = f"{PREFIX}slowest_ratio/"
RANK: Final = f"{PREFIX}slowest_rank/"
SLOW: Final = 1.5
"""Ratio of the slowest rank to the others from which on it is named."""


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
