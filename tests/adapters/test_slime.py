"""slime's functions for rollouts, with samples that look like slime's: what arrives, and that nothing ever raises."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.trainers.command_runs import report_of, runs
from support.trainers.framework_programs import SLIME
from support.trainers.framework_runs import (
    ends_of,
    recorded,
    rollouts_in,
    rows_of,
    run_program,
)

pytestmark = pytest.mark.slow
TRAIN = """
args = SimpleNamespace(wandb_project="math", wandb_group="one", reward_key="score")
samples = [
    Sample(group_index=0, index=0, reward={"score": 1.0, "format": True, "pred": "4"}, weight_versions=["10", "9"]),
    Sample(group_index=0, index=1, reward=None, status=Status.ABORTED, weight_versions=["default"]),
    object(),
    [Sample(group_index=1, index=2, reward=0.5, status=Status.TRUNCATED,
            prompt=[{"role": "system", "content": "Sum."}, {"role": "user", "content": "1+1?"}])],
]
assert log_rollouts(7, args, samples, {}, 1.5) is False
"""


def test_samples_arrive_with_groups_parts_of_rewards_and_the_oldest_weights(
    tmp_path: Path,
) -> None:
    done = run_program(tmp_path, SLIME + TRAIN)

    found = recorded(tmp_path)
    first, aborted, truncated = rollouts_in(found)
    assert (first["role"], first["split"], first["step"]) == ("rollout", "train", 7)
    assert (first["group"], first["sample"], first["policy_version"]) == ("0", 0, 9)
    assert (first["reward"], first["rewards"]) == (
        1.0,
        {"score": 1.0, "format": 1.0, "trained_step": 7.0},
    )
    assert (first["metadata"]["pred"], first["metadata"]["label"]) == ("4", "4")
    assert [one["content"] for one in first["messages"]] == ["2+2?", "4"]
    assert (
        aborted["reward"],
        aborted["policy_version"],
        aborted["metadata"]["status"],
    ) == (
        None,
        None,
        "aborted",
    )
    assert [one["role"] for one in truncated["messages"]] == [
        "system",
        "user",
        "assistant",
    ]
    assert (truncated["group"], truncated["reward"], truncated["finish_reason"]) == (
        "1",
        0.5,
        "length",
    )
    assert rows_of(found, "rollout/lineage/consumed") == [(7, 3)]
    assert (ends_of(found), "adapter_failed" in done.stderr) == (["finished"], True)
    assert (report_of(runs(tmp_path)).project, report_of(runs(tmp_path)).name) == (
        "math",
        "one",
    )


def test_log_probabilities_of_the_engine_are_tokens_without_what_a_tool_answered(
    tmp_path: Path,
) -> None:
    code = """
def sampled(index, tokens, logprobs, mask):
    made = Sample(group_index=0, index=index, tokens=tokens, response_length=len(logprobs), reward=1.0)
    made.rollout_log_probs, made.loss_mask = logprobs, mask
    return made

samples = [sampled(0, [1, 2, 3, 4, 5], [-0.5, 0.0, -1.0], [1, 0, 1]), sampled(1, [1, 6], [-3.0], None),
           Sample(index=2, reward=0.0)]
assert log_rollouts(7, SimpleNamespace(), samples) is False
"""
    run_program(tmp_path, SLIME + code)

    found = recorded(tmp_path)
    keys = (
        "rollout/tokens/count",
        "rollout/tokens/rollouts",
        "rollout/tokens/logprob/engine",
    )
    assert rows_of(found, *keys) == [(7, 3, 2, -1.5)]
    assert report_of(runs(tmp_path)).drops == {}


def test_samples_of_an_evaluation_name_their_data_set_and_have_the_step_of_training(
    tmp_path: Path,
) -> None:
    code = """
args = SimpleNamespace(reward_key="score", eval_reward_key="acc", wandb_always_use_train_step=True,
                       rollout_batch_size=8, n_samples_per_prompt=4, global_batch_size=16)
data = {"gsm8k": {"rewards": [0.0], "samples": [Sample(reward={"acc": 0.25, "score": 1.0})]}, "bare": {"rewards": [1]}}
assert log_eval_rollouts(3, args, data, None) is False
"""
    run_program(tmp_path, SLIME + code)

    (one,) = rollouts_in(recorded(tmp_path))
    assert (one["split"], one["dataset"], one["step"], one["reward"]) == (
        "eval",
        "gsm8k",
        6,
        0.25,
    )


def test_arguments_of_any_kind_do_not_raise(tmp_path: Path) -> None:
    code = """
assert log_rollouts(None, None, 5, None, None) is False
assert log_eval_rollouts(0, None, {"gsm8k": None}, None) is False
"""
    done = run_program(tmp_path, SLIME + code)

    assert "adapter_failed" in done.stderr, done.stderr


TRAINER = """
import json, os, subprocess, sys
from types import ModuleType
from otel_bridge.adapters.slime import annotate_rollouts

ARGS = SimpleNamespace(wandb_project="math", wandb_group="one", wandb_run_id="w1")
# Of the 4 ranks two have each sample: tensor parallelism is 2.
INDICES = {0: [0, 2], 1: [0, 2], 2: [1], 3: [1]}
ENGINE = {0: [-0.5, -1.0, -2.0], 1: [-1.0, -3.0], 2: [-0.25]}
TRAINER = {0: [-0.75, -9.0, -2.5], 1: [-1.5, -3.0], 2: [-0.25]}
MASK = {0: [1, 0, 1], 1: [1, 1], 2: [1]}

class Actor:
    def train_actor(self, rollout_id, rollout_data, external_data=None):
        if FRAMEWORK == "slime":
            annotate_rollouts(ARGS, rollout_id, rollout_data)
        else:
            annotate_rollouts(ARGS)

def data_of(indices):
    columns = {"log_probs": TRAINER, "loss_masks": MASK, "advantages": MASK}
    return {"sample_indices": indices, **{name: [rows[i] for i in indices] for name, rows in columns.items()}}

if "RANK" in os.environ:
    rank = int(os.environ["RANK"])
    state = ModuleType("megatron.core.parallel_state")
    state.get_tensor_model_parallel_rank = lambda: rank % 2
    state.get_context_parallel_world_size = lambda: CONTEXT_PARALLEL
    sys.modules["megatron.core.parallel_state"] = state
    Actor().train_actor(7, data_of(INDICES[rank]))
    Actor().train_actor(8, {"sample_indices": INDICES[rank]})  # another stage of a pipeline
else:
    samples = [
        Sample(index=index, tokens=[1, *range(len(row))], response_length=len(row), reward=1.0)
        for index, row in ENGINE.items()
    ]
    for sample in samples:
        sample.rollout_log_probs = ENGINE[sample.index]
        sample.loss_mask = MASK[sample.index]
    log_rollouts(7, ARGS, samples)
    ranks = [
        subprocess.Popen([sys.executable, __file__], env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "4"})
        for rank in range(4)
    ]
    assert [process.wait() for process in ranks] == [0, 0, 0, 0]
"""


@pytest.mark.parametrize("framework", ["slime", "miles"])
def test_each_data_parallel_rank_adds_what_the_trainer_computed_of_its_samples_once(
    tmp_path: Path, framework: str
) -> None:
    code = f"FRAMEWORK = '{framework}'\nCONTEXT_PARALLEL = 1\n"

    run_program(tmp_path, SLIME + code + TRAINER)

    found = recorded(tmp_path)
    rollouts = sorted(rollouts_in(found), key=lambda rollout: rollout["sample"])
    means = [rollout["rewards"]["tokens/mismatch/mean"] for rollout in rollouts]
    # Their mean is what slime and miles report as train_rollout_logprob_abs_diff.
    assert means == [0.375, 0.25, 0.0]
    keys = ("mismatch/mean", "logprob/trainer", "advantage", "count")
    assert rows_of(found, *(f"rollout/tokens/{key}" for key in keys)) == [
        (7, 0.25, -1.6, 1.0, 5)
    ]
    assert report_of(runs(tmp_path)).drops == {}


def test_ranks_with_parts_of_a_sample_record_none_of_it(tmp_path: Path) -> None:
    code = "FRAMEWORK = 'slime'\nCONTEXT_PARALLEL = 2\n"

    run_program(tmp_path, SLIME + code + TRAINER)

    found = recorded(tmp_path)
    assert rows_of(found, "rollout/tokens/logprob/trainer") == []
    assert rows_of(found, "rollout/tokens/logprob/engine") == [(7, -1.35)]
    assert report_of(runs(tmp_path)).drops == {}


def test_samples_that_share_an_index_stay_rollouts_of_their_own(tmp_path: Path) -> None:
    code = """
siblings = [Sample(index=3, reward=0.0), Sample(index=3, reward=1.0), Sample(index=4, reward=2.0)]
log_rollouts(7, SimpleNamespace(), siblings)
"""
    run_program(tmp_path, SLIME + code)

    found = recorded(tmp_path)
    assert [rollout["reward"] for rollout in rollouts_in(found)] == [0.0, 1.0, 2.0]
    assert rows_of(found, "rollout/lineage/consumed") == [(7, 3)]
