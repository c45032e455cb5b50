"""A ``trackio.Trace`` -> a rollout: which reward and numbers of tokens it has."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from otel_bridge.capture.tables import RolloutTable
from otel_bridge.capture.trackio_traces import rollout_of_trace
from support.trainers.emit_rollout_doubles import (
    MemoryRun,
    attributes,
    log_generations,
    log_rollouts,
)

_ANSWER = {"role": "assistant", "content": "4"}


@pytest.mark.parametrize(
    ("reward", "number"),
    [
        (1, 1.0),
        ([0.25, 0.5], 0.75),
        ({"format": 0.25, "answer": 0.5}, 0.75),
        (np.array([0.25, 0.5]), 0.75),
        (math.nan, None),
        ("1", None),
        ("good", None),
    ],
)
def test_a_trace_has_the_reward_that_a_row_of_a_table_has(
    reward: Any, number: float | None
) -> None:
    run = MemoryRun()
    rows = [["2+2?", "4", reward]]
    table = RolloutTable.of(["prompt", "response", "reward"], rows)
    assert table is not None

    trace = SimpleNamespace(messages=[_ANSWER], metadata={"reward": reward})
    log_rollouts(run, [rollout_of_trace(trace, "train")])
    for rollouts in table.rollouts(rows, lambda _column, _kind: None):
        log_generations(run, **rollouts.columns)

    of_trace, of_row = map(attributes, run.roots)
    assert of_trace.get("rl.reward") == number
    assert of_row.get("rl.reward") == number
    assert run.drops == {}


def test_a_flag_of_a_trace_is_not_its_reward() -> None:
    trace = SimpleNamespace(messages=[], metadata={"reward": True, "score": 0.5})

    rollout = rollout_of_trace(trace, "train")

    assert (rollout.reward, rollout.metadata["reward"]) == (0.5, True)


def test_tokens_of_a_generation_are_read_as_those_of_any_turn() -> None:
    run = MemoryRun()
    usage = {"input_tokens": None, "prompt_tokens": np.int64(3), "output_tokens": "?"}
    spans = [{"kind": "generation", "usage": usage}]
    trace = SimpleNamespace(messages=[_ANSWER], metadata={}, spans=spans)

    log_rollouts(run, [rollout_of_trace(trace, "train")])

    [_, chat] = run.spans
    assert attributes(chat)["gen_ai.usage.input_tokens"] == 3
    assert run.drops == {"rollout_field": 1}
