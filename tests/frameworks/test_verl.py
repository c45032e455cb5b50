"""verl itself: its Tracking, its validation generations, its traces, with the plugin that it loads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.trainers.command_runs import report_of, runs
from support.trainers.framework_programs import (
    VERL_BATCH_IN_QUEUE,
    VERL_BATCH_OF_TENSORS,
    VERL_ROLLOUTER,
    VERL_TRACES,
    VERL_TRACKING,
    VERL_UNREADABLE,
)
from support.trainers.framework_runs import (
    NEEDS_REAL,
    ends_of,
    recorded,
    rollouts_in,
    rows_of,
    run_program,
)

pytestmark = NEEDS_REAL
ENDED = "\ntrainer._shutdown_dump_executor()\n"
LOSS = [(0, 0.0), (1, 0.5), (2, 1.0)]
BY_MODULE = {
    "VERL_USE_EXTERNAL_MODULES": "otel_bridge.adapters.verl",
    "VERL_USE_EXTERNAL_PLUGINS": "none",
}


@pytest.mark.parametrize("variables", [{}, BY_MODULE], ids=["entry point", "module"])
def test_rows_and_validation_generations_arrive_and_the_run_ends_once(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    run_program(tmp_path, VERL_TRACKING, real=True, **variables)

    found = recorded(tmp_path)
    assert (rows_of(found, "trainer/actor/loss"), ends_of(found)) == (
        LOSS,
        ["finished"],
    )
    validated = [
        (one["split"], one["step"], one["reward"]) for one in rollouts_in(found)
    ]
    assert validated == [("eval", 2, 1.0), ("eval", 2, 0.0)]


@pytest.mark.parametrize("how", ["fails", "raises"])
def test_an_exit_code_or_an_exception_makes_the_end_failed(
    tmp_path: Path, how: str
) -> None:
    run_program(tmp_path, VERL_TRACKING, how, real=True, fails=how == "raises")

    assert ends_of(recorded(tmp_path)) == ["failed"]


def test_validation_generations_of_a_process_without_tracking_arrive(
    tmp_path: Path,
) -> None:
    run_program(tmp_path, VERL_ROLLOUTER, real=True)

    (one,) = rollouts_in(recorded(tmp_path))
    assert (one["role"], one["split"], one["step"], one["reward"]) == (
        "rollouter",
        "eval",
        7,
        1.0,
    )


def test_validation_generations_that_cannot_be_read_are_counted(tmp_path: Path) -> None:
    code = VERL_UNREADABLE.replace('samples=[("2+2?", "4")]', "samples=[(1, 2, 3, 4)]")

    run_program(tmp_path, code, real=True)

    assert [one["step"] for one in rollouts_in(recorded(tmp_path))] == [7]
    assert report_of(runs(tmp_path)).drops == {"adapter_failed": 1}


def test_a_plugin_that_cannot_load_is_one_line_and_verl_refuses_the_backend_itself(
    tmp_path: Path,
) -> None:
    code = """
    import sys
    from importlib.abc import MetaPathFinder

    class Broken(MetaPathFinder):
        def find_spec(self, name, path, target=None):
            if name == "otel_bridge.adapters.parts.verl_traces":
                raise ImportError("half an installation")

    sys.meta_path.insert(0, Broken())
    from verl.utils.tracking import Tracking

    Tracking("math", "one", ["console"]).log({"loss": 1.0}, 1)
    try:
        Tracking("math", "one", ["console", "otel_bridge"])
    except AssertionError as refused:
        print("refused", refused)
    """

    done = run_program(tmp_path, code, real=True)

    assert "refused otel_bridge is not supported" in done.stdout
    (line,) = [
        one for one in done.stderr.splitlines() if one.startswith("otel-bridge:")
    ]
    assert (
        "verl continues without the backend otel_bridge: ImportError: half an installation"
        in line
    )


def test_each_traced_agent_loop_is_a_rollout_with_its_calls(tmp_path: Path) -> None:
    run_program(tmp_path, VERL_TRACES, real=True)

    rollouts = {
        (one["group"], one["sample"]): one for one in rollouts_in(recorded(tmp_path))
    }
    assert sorted(rollouts) == [("0", 0), ("0", 1), ("1", 0), ("4", 0), ("5", 0)]
    assert [span["name"] for span in rollouts["0", 0]["spans"]] == [
        "rollout",
        "chat",
        "execute_tool calculator",
    ]
    assert rollouts["1", 0]["split"] == "eval"


def test_a_training_batch_of_the_real_trainer_has_groups_and_advantages(
    tmp_path: Path,
) -> None:
    run_program(tmp_path, VERL_BATCH_OF_TENSORS + ENDED, real=True)

    found = recorded(tmp_path)
    first, second = rollouts_in(found)
    assert (first["group"], first["reward"], first["advantage"]) == ("u1", 2.0, 1.0)
    assert (second["reward"], second["advantage"]) == (9.5, 0.5)
    assert first["rewards"] == {"acc": 1.0, "format": 0.5, "trained_step": 5.0}
    assert rows_of(found, "trainer/lineage/consumed") == [(5, 2)]
    assert first["metadata"]["ground_truth"] == "4"


LOGPROBS = """
tensors["rollout_log_probs"] = torch.tensor([[-0.5, -2.0], [-1.0, 0.0]])
tensors["old_log_probs"] = torch.tensor([[-0.7, -1.25], [-0.75, -9.0]])
"""
MISMATCH = ("trainer/tokens/mismatch/k1", "trainer/tokens/mismatch/k3")


def with_logprobs(config: str) -> str:
    """A program whose batch has log-probabilities of the engine and its own, which verl compares too."""
    compared = """
import json
from verl.trainer.ppo.rollout_corr_helper import compute_offpolicy_metrics
names = ("old_log_probs", "rollout_log_probs", "response_mask")
computed = compute_offpolicy_metrics(*(batch.batch[name] for name in names))
print("computed", json.dumps([computed["kl"], computed["k3_kl"]]))
"""
    code = VERL_BATCH_OF_TENSORS.replace(
        "batch = DataProto", LOGPROBS + "batch = DataProto"
    )
    configured = f"from omegaconf import OmegaConf\ntrainer.config = OmegaConf.create({config})\n"
    return code.replace("extra = {", configured + "extra = {") + ENDED + compared


def test_the_mismatch_of_engine_and_trainer_is_what_verl_computes(
    tmp_path: Path,
) -> None:
    done = run_program(tmp_path, with_logprobs("{'algorithm': {}}"), real=True)

    found = recorded(tmp_path)
    (line,) = [one for one in done.stdout.splitlines() if one.startswith("computed ")]
    ((step, *values),) = rows_of(found, *MISMATCH)
    assert (step, values) == (
        5,
        pytest.approx(json.loads(line.removeprefix("computed "))),
    )
    assert rows_of(found, "trainer/tokens/count", "trainer/tokens/advantage") == [
        (5, 3, pytest.approx(2.5 / 3))
    ]


def test_where_verl_takes_the_log_probabilities_of_the_engine_there_is_no_mismatch(
    tmp_path: Path,
) -> None:
    bypassed = "{'algorithm': {'rollout_correction': {'bypass_mode': True}}}"

    run_program(tmp_path, with_logprobs(bypassed), real=True)

    found = recorded(tmp_path)
    assert rows_of(found, "trainer/tokens/logprob/engine") == [
        (5, pytest.approx(-3.5 / 3))
    ]
    assert rows_of(found, *MISMATCH) == []


def test_a_batch_in_transfer_queue_has_groups_versions_and_the_mismatch_that_verl_computes(
    tmp_path: Path,
) -> None:
    done = run_program(tmp_path, VERL_BATCH_IN_QUEUE, real=True)

    found = recorded(tmp_path)
    # verl sorts by the number of the rollout.
    facts = ("group", "reward", "advantage", "policy_version")
    assert [tuple(one[fact] for fact in facts) for one in rollouts_in(found)] == [
        ("u1", 1.0, -1.0, 3),
        ("u1", 2.0, 1.0, 4),
    ]
    (line,) = [one for one in done.stdout.splitlines() if one.startswith("computed ")]
    ((step, *values),) = rows_of(found, *MISMATCH)
    assert (step, values) == (
        5,
        pytest.approx(json.loads(line.removeprefix("computed "))),
    )
    keys = ("tokens/count", "tokens/entropy", "tokens/advantage", "lineage/consumed")
    assert rows_of(found, *(f"trainer/{key}" for key in keys[:3])) == [
        (5, 3, 1.0, pytest.approx(1 / 3))
    ]
    assert rows_of(found, f"trainer/{keys[3]}") == [(5, 2)]
    assert report_of(runs(tmp_path)).drops == {}
