"""TRL itself under the capture, unchanged or with the callback beside it: every row and each completion once."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.trainers.command_runs import otel_bridge, program, report_of, runs
from support.trainers.framework_programs import GRPO, GRPO_WANDB
from support.trainers.framework_runs import (
    NEEDS_REAL,
    REAL,
    config_in,
    framework_environment,
    recorded,
    rollouts_in,
    rows_of,
    run_captured,
)

pytestmark = NEEDS_REAL


def test_grpo_that_logs_to_wandb_is_recorded_as_it_is(tmp_path: Path) -> None:
    env = framework_environment(tmp_path, real=True)
    script = program(tmp_path, "train.py", GRPO_WANDB)

    done = otel_bridge(
        "run", "--capture", "wandb", "--", REAL, script, cwd=tmp_path, env=env
    )

    assert done.returncode == 0, done.stderr
    found = recorded(tmp_path)
    report = report_of(runs(tmp_path))
    assert (report.name, report.drops, config_in(found)["max_steps"]) == ("tiny", {}, 3)
    assert [step for step, *_ in rows_of(found, "train/loss", "train/reward")] == [
        1,
        2,
        3,
    ]
    assert [step for step, *_ in rows_of(found, "eval/loss")] == [3]
    assert not rows_of(found, "train/eval/loss")
    rollouts = rollouts_in(found)
    assert sorted((one["step"], one["split"]) for one in rollouts) == [
        *((step, "train") for step in (1, 2) for _ in range(4)), *[(3, "eval")] * 4, *[(3, "train")] * 4
    ]  # fmt: skip
    for step, reward in rows_of(found, "train/rewards/length/mean"):
        parts = [
            one["rewards"]["length"]
            for one in rollouts
            if (one["step"], one["split"]) == (step, "train")
        ]
        assert sum(parts) / 4 == pytest.approx(reward)
    assert all(abs(one["advantage"]) < 1 for one in rollouts)
    assert not (tmp_path / "wandb").exists()


def test_the_callback_beside_it_adds_what_the_capture_does_not_have(
    tmp_path: Path,
) -> None:
    env = framework_environment(tmp_path, real=True)
    code = GRPO_WANDB.replace(
        'trainer("out", None', 'trainer("out", [OtelBridgeCallback()]'
    ).replace("log_completions=True, ", "")
    imports = "from otel_bridge.adapters.transformers import OtelBridgeCallback\n"
    script = program(tmp_path, "train.py", imports + code)

    done = otel_bridge(
        "run", "--capture", "wandb", "--", REAL, script, cwd=tmp_path, env=env
    )

    assert done.returncode == 0, done.stderr
    found = recorded(tmp_path)
    assert [step for step, *_ in rows_of(found, "train/loss", "train/reward")] == [
        1,
        2,
        3,
    ]
    assert [step for step, *_ in rows_of(found, "eval/loss")] == [3]
    splits = [one["split"] for one in rollouts_in(found)]
    assert (splits.count("train"), splits.count("eval")) == (12, 4)


@pytest.mark.parametrize("captured", ["wandb", "trackio", "tensorboard"])
def test_the_callback_names_the_run_that_another_one_begins(
    tmp_path: Path, captured: str
) -> None:
    code = f"""
from otel_bridge.adapters.transformers import OtelBridgeCallback
trained = trainer("out", [OtelBridgeCallback(project="math", name="mine")], 2, report_to="{captured}", max_steps=2,
                  num_generations_eval=2)
if "{captured}" != "trackio":  # TRL's profiling calls trackio.log() before trackio.init()
    trained.evaluate()
trained.train()
"""

    run_captured(tmp_path, captured, GRPO + code, real=True)

    found, report = recorded(tmp_path), report_of(runs(tmp_path))
    assert (report.project, report.name) == ("math", "mine")
    assert [step for step, _ in rows_of(found, "train/loss")] == [1, 2]
    evaluates = captured != "trackio"
    assert [step for step, _ in rows_of(found, "eval/loss")] == [0] * evaluates
    splits = [one["split"] for one in rollouts_in(found)]
    assert (splits.count("train"), splits.count("eval")) == (8, 4 * evaluates)
