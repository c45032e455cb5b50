"""axolotl's plugin, with fakes of axolotl and transformers: the callback of its trainer, names, config."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.trainers.command_runs import (
    PYTHON,
    call,
    environment,
    program,
    report_of,
    runs,
)
from support.trainers.framework_jobs import AXOLOTL
from support.trainers.framework_runs import (
    config_in,
    ends_of,
    recorded,
    rollouts_in,
    rows_of,
    run_program,
)

TRAIN = """
from transformers import GRPOTrainer
trainer = GRPOTrainer(learning_rate=0.1)
"""
STEPS = """
trainer.event("on_train_begin")
trainer.step(["2+2", "3+3"], log={"loss": 0.5})
trainer.event("on_train_end")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "project", "run"),
    [
        (
            "wandb_project='math', wandb_name='one', mlflow_run_name='two'",
            "math",
            "one",
        ),
        (
            "mlflow_experiment_name='math', trackio_run_name='two', wandb_name=''",
            "math",
            "two",
        ),
        ("wandb_project=None", "huggingface", None),
    ],
)
def test_rows_completions_and_the_configuration_arrive_under_the_names_of_any_tracker(
    tmp_path: Path, names: str, project: str, run: str | None
) -> None:
    run_program(tmp_path, f"{AXOLOTL}{TRAIN}add_callbacks(trainer, {names})\n{STEPS}")

    found = recorded(tmp_path)
    assert (rows_of(found, "train/loss"), len(rollouts_in(found)), ends_of(found)) == (
        [(1, 0.5)],
        4,
        ["finished"],
    )
    config = config_in(found)
    assert (config["learning_rate"], config["axolotl"]["lora_r"]) == (0.1, 8)
    assert config["axolotl"]["datasets"] == [{"path": "sums"}]
    report = report_of(runs(tmp_path))
    assert (report.project, report.name) == (project, run or report.name)


def test_a_configuration_that_cannot_be_read_adds_nothing(tmp_path: Path) -> None:
    code = (
        AXOLOTL + TRAIN + "assert manager.add_callbacks_post_trainer(5, trainer) == []"
    )

    assert (
        "_callbacks: AttributeError: 'int' object" in run_program(tmp_path, code).stderr
    )


def test_without_axolotl_the_error_names_what_to_install(tmp_path: Path) -> None:
    code = "import otel_bridge.adapters.axolotl"

    done = call(
        [PYTHON, program(tmp_path, "train.py", code)],
        cwd=tmp_path,
        env=environment(tmp_path),
    )

    assert (
        "MissingExtraError: axolotl cannot be imported; this adapter needs axolotl"
        in done.stderr
    )
