"""Tests of the choice of rollouts."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_bridge.sampling_rule import is_truncated
from support.sampling import Candidate, choose


def candidate(
    key: str, reward: float | None = None, group: str | None = None, **marks: bool
) -> Candidate:
    return Candidate(
        reward, group, marks.get("failed", False), marks.get("truncated", False), key
    )


def kept_keys(
    candidates: list[Candidate], cap: int, rule: str = "stratified", seed: str = "run/3"
) -> set[str]:
    return {
        candidates[index].key for index in choose(candidates, cap, rule=rule, seed=seed)
    }


CANDIDATES = st.lists(
    st.builds(
        Candidate,
        st.none() | st.floats(allow_infinity=True, allow_nan=True),
        st.none() | st.sampled_from(["g0", "g1", "g2", "g3"]),
        st.booleans(),
        st.booleans(),
        st.integers(0, 10**9).map(str),
    ),
    unique_by=lambda one: one.key,
    max_size=60,
)


def test_all_are_kept_when_there_are_seats_for_all() -> None:
    candidates = [candidate(str(index)) for index in range(4)]

    kept = choose(candidates, 4, rule="stratified", seed="run/1")

    assert kept == [0, 1, 2, 3]


def test_no_seats_keep_none() -> None:
    candidates = [candidate("a"), candidate("b")]

    kept = [
        choose(candidates, cap, rule=rule, seed="run/1")
        for cap in (0, -1)
        for rule in ("first", "stratified")
    ]

    assert kept == [[], [], [], []]


def test_the_rule_first_keeps_those_that_came_first() -> None:
    candidates = [candidate(str(index), reward=float(index)) for index in range(9)]

    kept = choose(candidates, 3, rule="first", seed="run/1")

    assert kept == [0, 1, 2]


def test_best_worst_a_failure_and_a_truncated_one_are_kept_before_the_rest() -> None:
    plain = [
        candidate(f"plain{index}", reward=0.5, group=f"p{index}") for index in range(50)
    ]
    marked = [
        candidate("best", reward=1.0),
        candidate("worst", reward=-1.0),
        candidate("failed", reward=0.5, failed=True),
        candidate("truncated", reward=0.5, truncated=True),
    ]

    kept = kept_keys(plain + marked, 4)

    assert kept == {"best", "worst", "failed", "truncated"}


def test_many_failures_leave_seats_for_the_others() -> None:
    failures = [candidate(f"failed{index}", failed=True) for index in range(100)]
    good = [candidate(f"good{index}", reward=1.0, group="good") for index in range(4)]

    kept = choose(failures + good, 8, rule="stratified", seed="run/1")

    assert len(kept) == 8
    assert sum(index >= 100 for index in kept) >= 1
    assert (
        sum(
            index < 100
            for index in choose(failures, 8, rule="stratified", seed="run/1")
        )
        == 8
    )


def test_groups_are_kept_whole_while_they_fit() -> None:
    candidates = [
        candidate(f"{group}-{n}", group=f"g{group}")
        for group in range(10)
        for n in range(4)
    ]

    kept = kept_keys(candidates, 8)

    groups = {key.split("-")[0] for key in kept}
    assert kept == {f"{group}-{n}" for group in groups for n in range(4)}


def test_a_group_larger_than_the_cap_is_cut() -> None:
    candidates = [candidate(str(index), group="one") for index in range(20)]

    kept = kept_keys(candidates, 6)

    assert len(kept) == 6


def test_rewards_that_are_not_number_are_neither_best_nor_worst() -> None:
    candidates = [
        candidate("nan", reward=math.nan),
        candidate("none"),
        candidate("low", 0.0),
        candidate("high", 1.0),
    ]

    kept = kept_keys(candidates, 2)

    assert kept == {"low", "high"}


def test_another_step_keeps_other_rollouts_of_equals() -> None:
    candidates = [candidate(str(index), reward=1.0) for index in range(500)]

    steps = [
        frozenset(kept_keys(candidates, 4, seed=f"run/{step}")) for step in range(20)
    ]

    assert len(set(steps)) == 20


@given(CANDIDATES, st.integers(1, 20), st.randoms(use_true_random=False))
def test_what_they_hold_decides_and_not_the_order_in_which_they_came(
    candidates: list[Candidate], cap: int, rng: random.Random
) -> None:
    shuffled = rng.sample(candidates, len(candidates))

    kept = kept_keys(candidates, cap)

    assert kept == kept_keys(shuffled, cap)
    assert len(kept) == min(cap, len(candidates))


@given(CANDIDATES, st.integers(1, 20))
def test_indices_are_increasing_and_hold_the_best_and_the_worst(
    candidates: list[Candidate], cap: int
) -> None:
    rewards = [
        one.reward
        for one in candidates
        if one.reward is not None and not math.isnan(one.reward)
    ]

    kept = choose(candidates, cap, rule="stratified", seed="run/3")

    assert kept == sorted(set(kept))
    if rewards:
        assert max(rewards) in [candidates[index].reward for index in kept]
        assert cap < 2 or min(rewards) in [candidates[index].reward for index in kept]


@pytest.mark.parametrize(
    "reason", ["length", "MAX_TOKENS", "max_output_tokens", "max_turns", "model_length"]
)
def test_a_generation_that_hit_a_limit_is_truncated_in_the_words_of_each_provider(
    reason: str,
) -> None:
    assert is_truncated(reason)
    assert not is_truncated("stop")
    assert not is_truncated(None)
