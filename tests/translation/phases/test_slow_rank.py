"""Tests of the rank that a step names as the slow one."""

from __future__ import annotations

from otel_bridge.translation.phases.slow_rank import SlowRank, slow_rank_of


def values(**phases: tuple[float, int, float]) -> dict[str, float | int]:
    """Values of a step: by phase the seconds of the slowest rank, its number and its ratio."""
    of_step: dict[str, float | int] = {}
    for name, (max_s, rank, ratio) in phases.items():
        of_step[f"time/max/{name}"] = max_s
        of_step[f"time/slowest_rank/{name}"] = rank
        of_step[f"time/slowest_ratio/{name}"] = ratio
    return of_step


def test_the_phase_that_costs_most_is_named_before_a_short_one_with_a_larger_ratio() -> None:
    of_step = values(save=(0.01, 0, 9.0), generate=(6.0, 2, 2.0), step=(9.0, 2, 1.6))

    assert slow_rank_of(of_step) == SlowRank(2, "generate", 2.0)


def test_the_step_is_named_where_it_is_the_only_phase() -> None:
    assert slow_rank_of(values(step=(9.0, 2, 1.6))) == SlowRank(2, "step", 1.6)


def test_ranks_that_are_about_as_fast_name_none() -> None:
    assert slow_rank_of(values(generate=(6.0, 2, 1.4), wait=(3.0, 2, 1.0))) is None
    assert slow_rank_of({"time/generate": 6.0}) is None
