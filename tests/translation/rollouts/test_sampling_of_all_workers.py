"""The choice per step over all workers: in any order, twice, with kills."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.logs.v1.logs_pb2 import ScopeLogs
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans

from support.otlp import trace_samples as sample
from support.otlp.trace_samples import Bench, rollouts_in, rows_in
from support.otlp.translation_bench import ids
from support.trainers.emit_rollout_doubles import (
    MemoryRun,
    log_generations,
    log_rollouts,
)

_SAMPLES = st.lists(
    st.tuples(
        st.none() | st.sampled_from([0.0, 0.25, 0.5, 1.0, -3.5]),
        st.sampled_from([None, "p", "q", "r"]),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(
    workers=st.lists(_SAMPLES, min_size=1, max_size=4),
    cap=st.integers(0, 6),
    data=st.data(),
)
def test_over_all_workers_the_same_are_kept_and_counted_in_any_order_twice_and_with_kills(
    workers: list[list[tuple[float | None, str | None]]], cap: int, data: st.DataObject
) -> None:
    frames = [
        (f"worker{number}", *record)
        for number, samples in enumerate(workers)
        for record in logged(samples, f"{number}", cap)
    ]
    order = data.draw(st.permutations(frames + frames))
    kills = data.draw(st.sets(st.integers(0, len(order))))

    expected = records_after(Bench(max_rollouts=cap), frames, set())
    records = records_after(Bench(max_rollouts=cap), order, kills)

    [row] = rows_in(records)
    rewards = [
        reward for samples in workers for reward, _ in samples if reward is not None
    ]
    total = sum(map(len, workers))
    assert ids(records) == ids(expected)
    assert {
        key.removeprefix("explorer/rollouts/"): value
        for key, value in row.values.items()
    } == pytest.approx(
        {
            "total": total,
            "kept": min(cap, total),
            "zero_variance_groups": zero_variance(workers),
        }
        | (
            {f"reward/{name}": float(getattr(np, name)(rewards)) for name in _FIGURES}
            if rewards
            else {}
        )
    )


@pytest.mark.parametrize("call", ["rollouts", "lists"])
def test_staleness_of_a_step_is_exact_over_the_rollouts_that_are_left_out_too(
    call: str,
) -> None:
    run = MemoryRun("r1", role="explorer", MAX_ROLLOUTS_PER_STEP="2")
    versions = [9, 8, 3, None, 10, 7]
    if call == "lists":
        log_generations(
            run,
            prompts=["q"] * 6,
            responses=["a"] * 6,
            policy_versions=versions,
            step=10,
        )
    else:
        log_rollouts(
            run,
            [{"messages": "q", "policy_version": version} for version in versions],
            step=10,
        )
    log_rollouts(run, [{"messages": "q", "policy_version": 2}], step=10, split="eval")

    evaluation, train = rows_in(
        records_after(
            Bench(max_rollouts=2), [("w", *record) for record in run.records], {1}
        )
    )

    shown = {key: value for key, value in train.values.items() if "staleness" in key}
    assert shown == {
        "explorer/rollouts/staleness/mean": pytest.approx(13 / 5),
        "explorer/rollouts/staleness/max": 7,
    }
    assert [key for key in evaluation.values if "staleness" in key] == []


@pytest.mark.parametrize(
    ("split", "state", "staleness", "kept"),
    [
        (None, None, 3, 2),
        (None, "stale", 3, 2),
        ("val", None, 3, 2),
        ("eval", None, None, 1),
        ("eval", "stale", None, 1),
    ],
)
def test_a_rollout_its_step_and_its_seats_agree_on_what_is_an_evaluation(
    split: str | None, state: str | None, staleness: int | None, kept: int
) -> None:
    run = MemoryRun("r1", role="explorer")
    rollouts = [{"messages": "q", "policy_version": 7} for _ in range(4)]
    log_rollouts(run, rollouts, step=10, split=split, state=state)

    records = records_after(
        Bench(max_rollouts=2, max_rollouts_eval=1),
        [("w", *record) for record in run.records],
        {1},
    )

    shown = [rollout.staleness for rollout in rollouts_in(records)]
    assert shown == [staleness] * kept
    [row] = rows_in(records)
    figures = {value for key, value in row.values.items() if "staleness/" in key}
    assert figures == ({staleness} - {None})


_FIGURES = ("mean", "std", "min", "max")


def logged(
    samples: list[tuple[float | None, str | None]], name: str, cap: int
) -> list[tuple[int, bytes]]:
    """What one worker appends of a batch call."""
    run = MemoryRun("r1", role="explorer", MAX_ROLLOUTS_PER_STEP=str(cap))
    log_rollouts(run, [{"messages": "q", "reward": reward, "group": group, "id": f"{name}-{index}"}
                       for index, (reward, group) in enumerate(samples)], step=3)  # fmt: skip
    return run.records


def records_after(
    bench: Bench, frames: list[tuple[str, int, bytes]], kills: set[int]
) -> list[Any]:
    """Give a bridge *frames*, kill it behind some of them, and end the run."""
    records: list[Any] = []
    for number, (worker, signal, payload) in enumerate(frames):
        if signal == 2:
            records += bench.rollouts.spans(
                sample.OURS, worker, ScopeSpans.FromString(payload), bench.now
            )
        else:
            [event] = ScopeLogs.FromString(payload).log_records
            records += bench.rollouts.sampled_out(sample.OURS, worker, event, bench.now)
        if number in kills:
            bench.restart()
    return records + bench.close()


def zero_variance(workers: list[list[tuple[float | None, str | None]]]) -> int:
    """Groups of at least two rewards that are all the same."""
    groups: dict[str, list[float]] = {}
    for reward, group in (pair for samples in workers for pair in samples):
        if group is not None and reward is not None:
            groups.setdefault(group, []).append(reward)
    return sum(
        len(rewards) > 1 and len(set(rewards)) == 1 for rewards in groups.values()
    )
