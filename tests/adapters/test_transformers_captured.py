"""The callback of transformers beside captured trackers: one run, its names, and each row once."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.trainers.command_runs import otel_bridge, program, report_of, runs
from support.trainers.framework_runs import (
    framework_environment,
    recorded,
    rollouts_in,
    rows_of,
    run_captured,
)

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("order", "tables", "rollouts"),
    [("[wandb_callback, own]", False, 2), ("[own, wandb_callback]", True, 0)],
)
def test_rows_that_a_captured_callback_of_wandb_records_are_not_recorded_again(
    tmp_path: Path, order: str, tables: bool, rollouts: int
) -> None:
    code = f"""
    import wandb
    from transformers import GRPOTrainer, TrainerCallback
    from otel_bridge.adapters.transformers import OtelBridgeCallback

    class WandbCallback(TrainerCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            wandb.init(project="huggingface", name=args.run_name)

        def on_log(self, args, state, control, logs=None, **kwargs):
            wandb.log({{"train/loss": logs["loss"], "train/global_step": state.global_step}})

    wandb_callback, own = WandbCallback(), OtelBridgeCallback(project="mine")
    trainer = GRPOTrainer({order}, run_name="one", log_completions={tables})
    trainer.event("on_train_begin")
    trainer.step(["2+2"], log={{"loss": 0.5}})
    trainer.step(log={{"loss": 0.25}})
    """
    env = framework_environment(tmp_path, real=False)
    command = (
        "run",
        "--capture",
        "wandb",
        "--",
        "python",
        program(tmp_path, "train.py", code),
    )

    done = otel_bridge(*command, cwd=tmp_path, env=env)

    assert done.returncode == 0, done.stderr
    found = recorded(tmp_path)
    assert (
        [loss for _, loss in rows_of(found, "train/loss")],
        len(rollouts_in(found)),
    ) == (
        [0.5, 0.25],
        rollouts,
    )
    assert done.stderr.count("recorded once, as wandb gets them, in mine/one") == 1


@pytest.mark.parametrize(
    "order",
    ["[theirs, own]", pytest.param("[own, theirs]", marks=pytest.mark.long)],
)
def test_an_evaluation_before_the_training_begins_one_run_beside_a_captured_callback(
    tmp_path: Path, order: str
) -> None:
    code = f"""
    import wandb
    from transformers import GRPOTrainer, TrainerCallback
    from otel_bridge.adapters.transformers import OtelBridgeCallback

    class WandbCallback(TrainerCallback):
        _initialized = False

        def setup(self, args, state, model, **kwargs):
            self._initialized = True
            wandb.init(project="theirs", name=args.run_name)

        def on_log(self, args, state, control, model=None, logs=None, **kwargs):
            if not self._initialized:
                self.setup(args, state, model)
            wandb.log({{**logs, "train/global_step": state.global_step}})

    theirs, own = WandbCallback(), OtelBridgeCallback(project="mine")
    GRPOTrainer({order}, run_name="one").evaluate(["2+2"])
    """

    run_captured(tmp_path, "wandb", code)

    found, report = recorded(tmp_path), report_of(runs(tmp_path))
    assert (len(rows_of(found, "eval_reward")), len(rollouts_in(found))) == (1, 2)
    assert (report.project, report.name) == ("theirs", "one")


@pytest.mark.parametrize("evaluates_first", [False, True])
def test_the_first_event_of_a_captured_tensorboard_begins_the_run_that_the_callback_names(
    tmp_path: Path, evaluates_first: bool
) -> None:
    code = f"""
    from tensorboardX import SummaryWriter
    from transformers import GRPOTrainer, TrainerCallback
    from otel_bridge.adapters.transformers import OtelBridgeCallback

    class TensorBoardCallback(TrainerCallback):
        writer = SummaryWriter("events")

        def on_train_begin(self, args, state, control, **kwargs):
            self.writer.add_text("args", "text")

        def on_log(self, args, state, control, logs=None, **kwargs):
            for name, value in logs.items():
                if isinstance(value, (int, float)):
                    self.writer.add_scalar("train/" + name, value, state.global_step)

    trainer = GRPOTrainer([TensorBoardCallback(), OtelBridgeCallback(project="mine", name="two")])
    if {evaluates_first}:
        trainer.event("on_log", logs={{"loss": 1.0}})
    trainer.event("on_train_begin")
    trainer.step(log={{"loss": 0.5, "lengths": [1, 2]}})
    """
    run_captured(tmp_path, "tensorboard", code)

    found, report = recorded(tmp_path), report_of(runs(tmp_path))
    assert [loss for _, loss in rows_of(found, "train/loss")] == [1.0, 0.5][
        not evaluates_first :
    ]
    assert (report.project, report.name, len(rows_of(found, "train/lengths"))) == (
        "mine",
        "two",
        1,
    )


def test_rows_are_recorded_beside_a_callback_of_a_disabled_wandb(
    tmp_path: Path,
) -> None:
    code = """
    import wandb
    from transformers import GRPOTrainer, TrainerCallback
    from otel_bridge.adapters.transformers import OtelBridgeCallback

    class WandbCallback(TrainerCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            wandb.init(project="huggingface", name=args.run_name, mode="disabled")

    trainer = GRPOTrainer([WandbCallback(), OtelBridgeCallback(project="mine")], run_name="one")
    trainer.event("on_train_begin")
    trainer.step(["2+2"], log={"loss": 0.5})
    """
    env = framework_environment(tmp_path, real=False)
    command = (
        "run",
        "--capture",
        "wandb",
        "--",
        "python",
        program(tmp_path, "train.py", code),
    )

    done = otel_bridge(*command, cwd=tmp_path, env=env)

    assert done.returncode == 0, done.stderr
    found = recorded(tmp_path)
    assert (rows_of(found, "train/loss"), report_of(runs(tmp_path)).project) == (
        [(1, 0.5)],
        "mine",
    )
