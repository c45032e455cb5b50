"""Tests of the values of a step: means and largest values over ranks, nested and overlapping phases."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_bridge.translation.phases.step_times import (
    PhaseTime,
    RankTimes,
    length,
    step_values,
)

S = 1_000_000_000


def rank(
    number: int, *phases: tuple[str, str, float, float], forked: bool = False
) -> RankTimes:
    times = [
        PhaseTime(name, outer, round(start * S), round(end * S))
        for name, outer, start, end in phases
    ]
    return RankTimes(number, forked, times)


def test_values_equal_those_of_numpy_over_all_ranks() -> None:
    random = np.random.default_rng(0)
    generate, train = random.uniform(1, 9, 8), random.uniform(1, 9, 8)
    ranks = [
        rank(
            number,
            ("generate", "", 10, 10 + first),
            ("train", "", 10.5 + first, 10.5 + first + second),
        )
        for number, (first, second) in enumerate(zip(generate, train, strict=True))
    ]

    values = step_values(ranks)

    step = generate + train + 0.5
    others = np.delete(generate, generate.argmax())
    expected = {
        "time/generate": generate.mean(), "time/max/generate": generate.max(),
        "time/share/generate": generate.mean() / step.mean(), "time/slowest_rank/generate": generate.argmax(),
        "time/slowest_ratio/generate": generate.max() / np.median(others),
        "time/train": train.mean(), "time/max/train": train.max(), "time/step": step.mean(),
        "time/max/step": step.max(), "time/slowest_rank/step": step.argmax(), "time/idle": 0.5, "time/overlap": 0.0,
        "time/ranks": 8,
    }  # fmt: skip
    assert {key: values[key] for key in expected} == pytest.approx(expected)


def test_nested_phases_of_one_name_count_once_and_those_inside_another_are_not_outermost() -> (
    None
):
    values = step_values(
        [
            rank(
                0,
                ("train", "", 0, 4),
                ("train", "train", 1, 2),
                ("forward", "train", 0, 1),
                ("forward", "train", 2, 3),
            )
        ]
    )

    assert values == {
        "time/train": 4.0, "time/max/train": 4.0, "time/share/train": 1.0, "time/forward": 2.0, "time/max/forward": 2.0,
        "time/share/forward": 0.5, "time/step": 4.0, "time/max/step": 4.0, "time/idle": 0.0, "time/overlap": 0.0,
        "time/ranks": 1,
    }  # fmt: skip


def test_the_phase_step_is_the_step_and_what_it_holds_counts_as_outermost() -> None:
    values = step_values(
        [rank(0, ("step", "", 0, 10), ("gen", "step", 1, 4), ("update", "step", 3, 8))]
    )

    assert (values["time/step"], values["time/idle"], values["time/overlap"]) == (
        10.0,
        3.0,
        1.0,
    )
    assert values["time/share/gen"] == 0.3
    assert "time/share/step" not in values


def test_a_step_without_phases_inside_has_neither_idle_time_nor_overlap() -> None:
    values = step_values([rank(0, ("step", "", 0, 10))])

    assert (values["time/idle"], values["time/overlap"]) == (0.0, 0.0)


def test_a_phase_of_some_ranks_is_compared_among_these_alone() -> None:
    values = step_values(
        [rank(0, ("train", "", 0, 2), ("save", "", 2, 5)), rank(1, ("train", "", 0, 4))]
    )

    assert (values["time/save"], values["time/share/save"], values["time/ranks"]) == (
        3.0,
        3 / 4.5,
        2,
    )
    assert (values["time/slowest_rank/train"], values["time/slowest_ratio/train"]) == (
        1,
        2.0,
    )
    assert "time/slowest_rank/save" not in values


def test_the_time_of_forked_children_is_not_that_of_a_step() -> None:
    values = step_values(
        [rank(0, ("train", "", 0, 2)), rank(0, ("load", "", 0, 100), forked=True)]
    )

    assert (values["time/step"], values["time/load"], values["time/ranks"]) == (
        2.0,
        100.0,
        1,
    )


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=20))
def test_the_length_of_intervals_is_the_number_of_points_that_any_of_them_covers(
    spans: list[tuple[int, int]],
) -> None:
    covered = {point for start, size in spans for point in range(start, start + size)}

    assert length([(start, start + size) for start, size in spans]) == len(covered)


def test_phases_named_by_ended_ones_that_never_ended_are_unclosed() -> None:
    assert rank(0, ("forward", "train", 0, 1), ("load", "", 0, 1)).unclosed() == {
        "train"
    }


def slowest(values: dict[str, float | int], name: str) -> tuple[float, float]:
    return values[f"time/slowest_rank/{name}"], values[f"time/slowest_ratio/{name}"]


def test_a_rank_that_waits_for_the_slow_one_is_not_the_slowest() -> None:
    values = step_values(
        [
            rank(number, ("generate", "", 0, arrival), ("barrier", "", arrival, 6.01))
            for number, arrival in enumerate((2, 2.1, 6))
        ]
    )

    assert slowest(values, "generate") == (2, pytest.approx(6 / 2.05))
    assert slowest(values, "barrier") == (2, 1.0)
    assert slowest(values, "step")[1] == pytest.approx(1.0)
    assert values["time/max/barrier"] == pytest.approx(4.01)


def test_a_wait_before_each_of_several_parts_of_a_step_does_not_hide_the_slow_rank() -> (
    None
):
    def parts(forward_s: float) -> list[tuple[str, str, float, float]]:
        ends = [(part * 3, part * 3 + forward_s, part * 3 + 3) for part in range(4)]
        forward = [("forward", "", begin, end) for begin, end, _ in ends]
        return forward + [("all_reduce", "", end, last) for _, end, last in ends]

    values = step_values([rank(0, *parts(1)), rank(1, *parts(2.5)), rank(2, *parts(1))])

    assert slowest(values, "forward") == (1, 2.5)
    assert slowest(values, "all_reduce") == (1, 1.0)


def test_a_rank_that_began_late_and_takes_longer_is_the_slowest() -> None:
    ranks = [
        rank(0, ("train", "", 0, 1)),
        rank(1, ("train", "", 5, 8)),
        rank(2, ("train", "", 0, 1)),
    ]

    assert slowest(step_values(ranks), "train") == (1, 3.0)
