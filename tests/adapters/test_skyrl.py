"""SkyRL's experiment, with a fake of the package: metrics, trajectories, failures, with SkyRL's own logging beside."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.trainers.command_runs import report_of, runs
from support.trainers.framework_jobs import (
    SKYRL,
    SKYRL_EVAL_ONLY,
    SKYRL_FAILS,
    SKYRL_STEP_WISE,
    SKYRL_TRAINED,
)
from support.trainers.framework_runs import (
    config_in,
    ends_of,
    recorded,
    rollouts_in,
    rows_of,
    run_captured,
    run_program,
)

pytestmark = pytest.mark.slow


def test_calls_of_one_step_are_one_row_and_the_own_tracker_goes_on(
    tmp_path: Path,
) -> None:
    done = run_program(tmp_path, SKYRL_TRAINED)

    found = recorded(tmp_path)
    assert rows_of(found, "reward/avg_raw_reward", "timing/step") == [
        (1, 0.5, 3.0),
        (2, 0.5, 3.0),
    ]
    assert rows_of(found, "eval/all/avg_score") == [(0, 0.25)]
    assert (config_in(found)["trainer"]["run_name"], ends_of(found)) == (
        "one",
        ["finished"],
    )
    assert (report_of(runs(tmp_path)).project, report_of(runs(tmp_path)).name) == (
        "math",
        "one",
    )
    assert "Step 1: {'reward/avg_raw_reward': 0.5}" in done.stdout
    assert "TrajectoryLogger -1 trajectories/train console" in done.stdout
    assert done.stdout.count("Tracking finished") == 1


def test_trajectories_in_another_form_are_counted_and_skyrls_own_logger_gets_them(
    tmp_path: Path,
) -> None:
    code = SKYRL_TRAINED.replace("tokenizer=Tokenizer()", "policy=None")
    code = code.replace(
        "class Exp(",
        """
from skyrl.train.utils.trajectory_logging import TrajectoryLogger
TrajectoryLogger.log = lambda self, **keywords: print("logged", keywords["wandb_key"])

class Exp(""",
        1,
    )

    done = run_program(tmp_path, code)

    assert report_of(runs(tmp_path)).drops == {"adapter_failed": 3}
    assert done.stdout.count("logged trajectories/train") == 2


def test_rows_that_a_captured_backend_records_are_not_recorded_again(
    tmp_path: Path,
) -> None:
    code = SKYRL_TRAINED.replace('"logger": "console"', '"logger": "wandb"')

    done = run_captured(tmp_path, "wandb", code)

    found = recorded(tmp_path)
    assert rows_of(found, "reward/avg_raw_reward", "timing/step") == [
        (1, 0.5, 3.0),
        (2, 0.5, 3.0),
    ]
    assert rows_of(found, "eval/all/avg_score") == [(0, 0.25)]
    assert len(rollouts_in(found)) == 6
    assert (config_in(found)["trainer"]["run_name"], ends_of(found)) == (
        "one",
        ["finished"],
    )
    assert (
        done.stderr.count(
            "metrics of SkyRL are recorded once, as wandb gets them, in math/one"
        )
        == 1
    )


def test_trajectories_have_prompt_turns_reward_group_and_stop_reason(
    tmp_path: Path,
) -> None:
    run_program(tmp_path, SKYRL_TRAINED)

    rollouts = rollouts_in(recorded(tmp_path))
    trained = [one for one in rollouts if one["split"] == "train"]
    assert [one["reward"] for one in trained] == [0.75, 0.0, 1.0]
    assert [one["finish_reason"] for one in trained] == ["stop", "length", "stop"]
    assert [[said["role"] for said in one["messages"]] for one in trained] == [
        ["user", "assistant"], ["user", "assistant", "tool", "assistant"], ["system", "user", "assistant"],
    ]  # fmt: skip
    assert [said["content"] for said in trained[1]["messages"]] == [
        "2+2?",
        "c",
        "e",
        "d",
    ]
    assert trained[0]["messages"][1]["content"] == "ab"
    assert trained[0]["group"] == trained[1]["group"] != trained[2]["group"]
    assert [one["metadata"].get("tries") for one in trained] == [1, 2, None]
    assert [(one["split"], one["step"]) for one in rollouts if one not in trained] == [
        ("eval", 2)
    ] * 3


def test_a_trajectory_of_several_steps_is_one_rollout(tmp_path: Path) -> None:
    run_program(tmp_path, SKYRL_STEP_WISE)

    found = recorded(tmp_path)
    rollouts = rollouts_in(found)
    assert rows_of(found, "lineage/consumed", "lineage/uses/max") == [(1, 2, 1)]
    first, second = (one for one in rollouts if one["split"] == "train")
    assert [said["content"] for said in first["messages"]] == ["2+2?", "c", "dd", "e"]
    assert (first["reward"], first["group"], first["trajectory_id"]) == (
        1.0,
        "a",
        "a_0",
    )
    assert [said["content"] for said in second["messages"]] == ["Sum.", "1+1?", "f"]
    last, only = (one for one in rollouts if one["split"] == "eval")
    assert [said["content"] for said in last["messages"]] == ["iacdd", "e"]
    assert [said["content"] for said in only["messages"]] == ["Sum.", "1+1?", "f"]
    assert (last["metadata"]["num_turns"], only["metadata"]["num_turns"]) == (2, 1)


def test_a_failure_is_an_alert_and_the_end_is_failed(tmp_path: Path) -> None:
    done = run_program(tmp_path, SKYRL_FAILS, fails=True)

    found = recorded(tmp_path)
    assert rows_of(found, "reward/avg_raw_reward", "timing/generate") == [(1, 0.5, 2.0)]
    assert ends_of(found) == ["failed"]
    (alert,) = [one for one in found if one["kind"] == "alert"]
    assert (alert["title"], alert["level"]) == (
        "Training failed: RuntimeError",
        "error",
    )
    assert "RuntimeError: out of memory" in alert["text"]
    assert "Training failed at step 1 with RuntimeError" in done.stdout


def test_a_failure_before_the_trainer_exists_makes_the_end_failed(
    tmp_path: Path,
) -> None:
    code = """
class Broken(Exp):
    def _setup_trainer(self):
        self.get_tracker()
        raise RuntimeError("no GPU")

Broken(config()).run()
"""
    run_program(tmp_path, SKYRL + code, fails=True)

    found = recorded(tmp_path)
    assert [one["title"] for one in found if one["kind"] == "alert"] == [
        "Training failed: RuntimeError"
    ]
    assert report_of(runs(tmp_path)).status == "failed"


@pytest.mark.parametrize("status", ["finished", "failed"])
def test_an_entry_point_that_only_evaluates_ends_with_its_outcome(
    tmp_path: Path, status: str
) -> None:
    run_program(tmp_path, SKYRL_EVAL_ONLY, status, fails=status == "failed")

    found = recorded(tmp_path)
    assert (rows_of(found, "eval/all/avg_score"), ends_of(found)) == (
        [(0, 0.5)],
        [status],
    )


def test_with_dynamic_sampling_prompts_are_those_of_the_responses(
    tmp_path: Path,
) -> None:
    code = """
def TRAIN(self):
    self.trajectories([OTHER], OUTPUT)

cfg = config()
cfg.trainer.algorithm.dynamic_sampling.type = "filter"
Exp(cfg).run()
"""
    run_program(tmp_path, SKYRL + code)

    rollouts = rollouts_in(recorded(tmp_path))
    assert [one["messages"][0]["content"] for one in rollouts] == ["ia", "ia", "ib"]
    assert rollouts[0]["group"] == rollouts[1]["group"] != rollouts[2]["group"]


def test_jobs_without_a_name_are_runs_of_their_own(tmp_path: Path) -> None:
    code = """
def TRAIN(self):
    self.tracker.log({"loss": 1.0}, step=1, commit=True)

Exp(config(run_name="test_run", project_name="skyrl")).run()
"""
    run_program(tmp_path, SKYRL + code, WANDB_PROJECT="mine")

    recorded(tmp_path)
    report = report_of(runs(tmp_path))
    assert (report.project, report.name.startswith("skyrl-20")) == ("mine", True)


def test_a_failing_adapter_does_not_reach_skyrl(tmp_path: Path) -> None:
    code = """
def TRAIN(self):
    self.trajectories(5, {"response_ids": [[1]], "trajectory_ids": [None]})
    self.tracker.log({"loss": 1.0}, step=1, commit=True)
    self.trajectory_logger._wrapped = None
    self.trajectories([PROMPT], OUTPUT)

Exp(config()).run()
"""
    done = run_program(tmp_path, SKYRL + code)

    assert (rows_of(recorded(tmp_path), "loss"), "adapter_failed" in done.stderr) == (
        [(1, 1.0)],
        True,
    )


def test_the_import_brings_neither_skyrl_nor_what_records(tmp_path: Path) -> None:
    code = """
import sys, otel_bridge.adapters.skyrl
print([one for one in sys.modules if "skyrl" in one or ".emit" in one])
"""

    assert run_program(tmp_path, code).stdout == "['otel_bridge.adapters.skyrl']\n"
