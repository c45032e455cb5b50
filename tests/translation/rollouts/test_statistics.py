from __future__ import annotations

import json
import math
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_bridge.translation.packing import packed, unpacked
from otel_bridge.translation.rollouts.statistics import Statistics


def test_metrics_are_over_all_rollouts_kept_or_not() -> None:
    merged = Statistics()
    merged.add("p1", 1.0)
    merged.add("p1", 1.0)
    merged.add("p2", 0.0)
    merged.add(None, None)

    merged.add_sampled_out(
        3, {"p2": {"count": 2, "sum": 1.0, "sum_squares": 1.0, "min": 0.0, "max": 1.0}}
    )

    assert merged.values(4, None) == {
        "rollouts/total": 7,
        "rollouts/kept": 4,
        "rollouts/zero_variance_groups": 1,
        "rollouts/reward/mean": 0.6,
        "rollouts/reward/std": pytest.approx(math.sqrt(0.24)),
        "rollouts/reward/min": 0.0,
        "rollouts/reward/max": 1.0,
    }


def test_without_rewards_there_are_only_counts_and_a_split_has_its_own_names() -> None:
    merged = Statistics()
    merged.add("p", math.nan)
    merged.add("p", None)

    assert merged.values(0, "eval") == {
        "rollouts/eval/total": 2,
        "rollouts/eval/kept": 0,
        "rollouts/eval/zero_variance_groups": 0,
    }


def test_a_group_that_parts_over_workers_has_variance_when_the_whole_has() -> None:
    merged = Statistics()
    same = {"count": 4, "sum": 4.0, "sum_squares": 4.0, "min": 1.0, "max": 1.0}
    merged.add_sampled_out(4, {"p": same, "q": same})
    merged.add("p", 0.0)

    assert merged.values(0, None)["rollouts/zero_variance_groups"] == 1


@pytest.mark.parametrize(
    "sums",
    [
        None,
        3,
        {},
        {"count": 0},
        {"count": "x", "sum": 1},
        {"count": 1, "sum": math.nan, "sum_squares": 1, "min": 1, "max": 1},
    ],
)
def test_sums_that_cannot_be_read_leave_the_count(sums: Any) -> None:
    merged = Statistics()

    merged.add_sampled_out(5, {"p": sums})

    assert merged.values(0, None) == {
        "rollouts/total": 5,
        "rollouts/kept": 0,
        "rollouts/zero_variance_groups": 0,
    }


def test_a_number_of_rollouts_that_is_missing_is_at_least_that_of_the_rewards() -> None:
    merged = Statistics()

    merged.add_sampled_out(
        0, {"p": {"count": 2, "sum": 1.0, "sum_squares": 1.0, "min": 0.0, "max": 1.0}}
    )

    assert merged.values(0, None)["rollouts/total"] == 2


def test_folding_forgets_the_groups_and_keeps_the_numbers() -> None:
    merged = Statistics()
    for group, reward in (("p", 1.0), ("p", 1.0), ("q", 0.0), ("q", 1.0)):
        merged.add(group, reward)
    before = merged.values(2, None)

    merged.fold()

    assert merged.values(2, None) == before
    assert list(merged.groups) == [""]


@given(
    st.lists(
        st.tuples(st.sampled_from(["p", "q", None]), st.floats(-1e6, 1e6)), min_size=1
    ),
    st.integers(0, 50),
)
def test_sums_sent_in_parts_say_the_same_as_all_rewards_at_once(
    rewards: list[tuple[str | None, float]], cut: int
) -> None:
    merged = Statistics()
    for group, reward in rewards[:cut]:
        merged.add(group, reward)
    merged = unpacked(Statistics, json.loads(json.dumps(packed(merged))))
    for group, reward in rewards[cut:]:
        sums = {
            "count": 1,
            "sum": reward,
            "sum_squares": reward * reward,
            "min": reward,
            "max": reward,
        }
        merged.add_sampled_out(1, {group or "": sums})

    values = merged.values(0, None)

    numbers = [reward for _, reward in rewards]
    assert values["rollouts/total"] == len(numbers)
    assert values["rollouts/reward/mean"] == pytest.approx(
        statistics.fmean(numbers), abs=1e-6
    )
    assert values["rollouts/reward/std"] == pytest.approx(
        statistics.pstdev(numbers), abs=1.0, rel=1e-3
    )
    assert (values["rollouts/reward/min"], values["rollouts/reward/max"]) == (
        min(numbers),
        max(numbers),
    )


def test_staleness_is_over_all_rollouts_that_name_a_version_and_survives_a_restart() -> (
    None
):
    merged = Statistics()
    merged.add("p", 1.0, 1)
    merged.add("p", 1.0)
    merged = unpacked(Statistics, json.loads(json.dumps(packed(merged))))
    merged.staleness.add(3, 12, 7)

    values = merged.values(2, None)

    assert (values["rollouts/staleness/mean"], values["rollouts/staleness/max"]) == (
        3.25,
        7,
    )


def test_a_policy_ahead_of_its_step_has_a_negative_staleness() -> None:
    merged = Statistics()
    merged.add(None, None, -2)

    assert merged.values(1, None)["rollouts/staleness/max"] == -2
