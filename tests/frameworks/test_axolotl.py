"""axolotl's own plugin manager with TRL's own trainer: what the plugin adds records the training."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.trainers.command_runs import report_of, runs
from support.trainers.framework_jobs import AXOLOTL
from support.trainers.framework_programs import GRPO
from support.trainers.framework_runs import (
    NEEDS_REAL,
    config_in,
    ends_of,
    recorded,
    rollouts_in,
    rows_of,
    run_captured,
    run_program,
)

pytestmark = NEEDS_REAL


def test_a_training_with_the_plugin_gives_rows_completions_and_both_configurations(
    tmp_path: Path,
) -> None:
    code = """
trained = trainer("out", max_steps=2)
add_callbacks(trained, wandb_project="math", wandb_name="one")
trained.train()
"""
    run_program(tmp_path, AXOLOTL + GRPO + code, real=True)

    found = recorded(tmp_path)
    assert [step for step, _ in rows_of(found, "train/loss")] == [1, 2]
    assert len(rollouts_in(found)) == 8
    config = config_in(found)
    assert (config["axolotl"]["lora_r"], config["max_steps"], ends_of(found)) == (
        8,
        2,
        ["finished"],
    )
    assert (report_of(runs(tmp_path)).project, report_of(runs(tmp_path)).name) == (
        "math",
        "one",
    )


@pytest.mark.parametrize("captured", ["wandb", "tensorboard"])
def test_beside_a_captured_tracker_rows_and_completions_are_recorded_once_in_the_run_that_the_plugin_names(
    tmp_path: Path, captured: str
) -> None:
    code = f"""
trained = trainer("out", max_steps=2, report_to="{captured}")
add_callbacks(trained, wandb_project="math", wandb_name="one")
trained.train()
"""
    run_captured(tmp_path, captured, AXOLOTL + GRPO + code, real=True)

    found, report = recorded(tmp_path), report_of(runs(tmp_path))
    assert [step for step, _ in rows_of(found, "train/loss")] == [1, 2]
    assert (len(rollouts_in(found)), config_in(found)["axolotl"]["lora_r"]) == (8, 8)
    assert (report.project, report.name) == ("math", "one")
