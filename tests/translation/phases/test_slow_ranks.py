"""Tests of the rank that a step names as the slow one."""

from __future__ import annotations

from otel_bridge.translation.phases.slow_ranks import (
    SlowRank,
    SlowRankOfSteps,
    SlowRanks,
    slow_rank_of,
)
from support.otlp.otlp_samples import Bench
from support.otlp.phase_samples import phase, rank, send


def values(**phases: tuple[float, int, float]) -> dict[str, float | int]:
    """Values of a step: by phase the seconds of the slowest rank, its number and its ratio."""
    of_step: dict[str, float | int] = {}
    for name, (max_s, number, ratio) in phases.items():
        of_step[f"time/max/{name}"] = max_s
        of_step[f"time/slowest_rank/{name}"] = number
        of_step[f"time/slowest_ratio/{name}"] = ratio
    return of_step


def test_the_phase_that_costs_most_is_named_before_a_short_one_with_a_larger_ratio() -> (
    None
):
    of_step = values(save=(0.01, 0, 9.0), generate=(6.0, 2, 2.0), step=(9.0, 2, 1.6))

    assert slow_rank_of(of_step) == SlowRank(2, "generate", 2.0)


def test_the_step_is_named_where_it_is_the_only_phase() -> None:
    assert slow_rank_of(values(step=(9.0, 2, 1.6))) == SlowRank(2, "step", 1.6)


def test_ranks_that_are_about_as_fast_name_none() -> None:
    assert slow_rank_of(values(generate=(6.0, 2, 1.4), wait=(3.0, 2, 1.0))) is None
    assert slow_rank_of({"time/generate": 6.0}) is None


def test_a_rank_that_is_slow_in_half_of_the_last_steps_is_named_by_role() -> None:
    slow_ranks = SlowRanks()
    for step in range(20):
        slow_ranks.note("explorer", values(generate=(2.0, 1, 3.0 if step % 2 else 1.1)))
        slow_ranks.note("trainer", values(train=(2.0, step % 3, 2.0)))

    assert slow_ranks.by_role() == {
        "explorer": SlowRankOfSteps(1, "generate", 3.0, 4, 8)
    }


def test_a_rank_that_is_as_fast_as_the_others_again_is_forgotten() -> None:
    slow_ranks = SlowRanks()
    for ratio in [2.0] * 8 + [1.0] * 5:
        slow_ranks.note("", values(generate=(2.0, 1, ratio)))

    assert slow_ranks.by_role() == {}


def test_a_step_of_which_a_phase_arrives_late_counts_once() -> None:
    bench = Bench()
    bench.open(*map(rank, range(2)))
    for step in range(5):
        for number in range(2):
            begin = 10 * step
            send(
                bench, rank(number), phase("generate", step, begin, begin + 1 + number)
            )
    send(bench, rank(0), phase("save", 3, 35, 36))
    bench.close()

    slow = bench.translator.phases.slow_ranks.by_role()
    assert slow == {"trainer": SlowRankOfSteps(1, "generate", 2.0, 5, 5)}
