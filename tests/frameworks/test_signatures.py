"""Fakes of frameworks have the signatures of the real ones: a release that changes one fails here, not at a user."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.trainers.command_runs import PYTHON, call
from support.trainers.framework_runs import NEEDS_REAL, REAL, framework_environment

pytestmark = NEEDS_REAL

SCRIPT = str(Path(__file__).with_name("signatures.py"))
PLACES = {
    "accelerate": [
        "accelerate:Accelerator.end_training",
        "accelerate.tracking:GeneralTracker.__init__",
        "accelerate.tracking:GeneralTracker.finish",
        "accelerate.tracking:GeneralTracker.log",
        "accelerate.tracking:GeneralTracker.start",
        "accelerate.tracking:GeneralTracker.store_init_configuration",
        "accelerate.tracking:LOGGER_TYPE_TO_CLASS",
        "accelerate.tracking:on_main_process",
        "accelerate.tracking:register_tracker_class",
    ],
    "axolotl": [
        "axolotl.integrations.base:BasePlugin.__init__",
        "axolotl.integrations.base:BasePlugin.add_callbacks_post_trainer",
        "axolotl.integrations.base:PluginManager.add_callbacks_post_trainer",
        "axolotl.integrations.base:PluginManager.get_instance",
        "axolotl.integrations.base:PluginManager.register",
    ],
    "lightning": [
        "lightning.fabric:Fabric.call",
        "lightning.fabric:Fabric.log_dict",
        "lightning.fabric.loggers:Logger.finalize",
        "lightning.fabric.loggers:Logger.log_graph",
        "lightning.fabric.loggers:Logger.log_hyperparams",
        "lightning.fabric.loggers:Logger.log_metrics",
        "lightning.fabric.loggers:Logger.name",
        "lightning.fabric.loggers:Logger.save",
        "lightning.fabric.loggers:Logger.version",
        "lightning.pytorch:Callback.setup",
        "lightning.pytorch.loggers:Logger.after_save_checkpoint",
        "lightning.pytorch.loggers:Logger.save_dir",
    ],
    "ray": [
        "ray.tune.experiment:Trial.experiment_dir_name",
        "ray.tune.logger:LoggerCallback.log_trial_end",
        "ray.tune.logger:LoggerCallback.log_trial_restore",
        "ray.tune.logger:LoggerCallback.log_trial_result",
        "ray.tune.logger:LoggerCallback.log_trial_save",
        "ray.tune.logger:LoggerCallback.log_trial_start",
        "ray.tune.logger:LoggerCallback.on_experiment_end",
        "ray.tune.logger:LoggerCallback.on_trial_complete",
        "ray.tune.logger:LoggerCallback.on_trial_error",
        "ray.tune.logger:LoggerCallback.on_trial_result",
        "ray.tune.logger:LoggerCallback.on_trial_start",
        "ray.tune.logger:LoggerCallback.setup",
    ],
    "skyrl": [
        "skyrl.train.entrypoints.main_base:BasePPOExp.__init__",
        "skyrl.train.entrypoints.main_base:BasePPOExp._setup_trainer",
        "skyrl.train.entrypoints.main_base:BasePPOExp.get_tracker",
        "skyrl.train.entrypoints.main_base:BasePPOExp.get_trainer",
        "skyrl.train.entrypoints.main_base:BasePPOExp.get_trajectory_logger",
        "skyrl.train.entrypoints.main_base:BasePPOExp.run",
        "skyrl.train.entrypoints.main_generate:EvalOnlyEntrypoint.run",
        "skyrl.train.generators.base:TrajectoryID.__init__",
        "skyrl.train.generators.base:TrajectoryID.to_string",
        "skyrl.train.utils.tracking:Tracking.__init__",
        "skyrl.train.utils.tracking:Tracking.finish",
        "skyrl.train.utils.tracking:Tracking.log",
        "skyrl.train.utils.tracking:Tracking.log_exception",
        "skyrl.train.utils.tracking:Tracking.log_samples_to_table",
        "skyrl.train.utils.trajectory_logging:TrajectoryLogger.log",
    ],
    "transformers": [
        "transformers.integrations.integration_utils:INTEGRATION_TO_CALLBACK",
        "transformers.trainer_callback:ExportableState.state",
        *(
            f"transformers.trainer_callback:TrainerCallback.{name}"
            for name in (
                "on_init_end",
                "on_log",
                "on_prediction_step",
                "on_step_end",
                "on_substep_end",
                "on_train_begin",
                "on_train_end",
            )
        ),
    ],
    "trinity": [
        "trinity.utils.log:get_logger",
        "trinity.utils.monitor:Monitor.__init__",
        "trinity.utils.monitor:Monitor.close",
        "trinity.utils.monitor:Monitor.default_args",
        "trinity.utils.monitor:Monitor.format_data_str",
        "trinity.utils.monitor:Monitor.log",
        "trinity.utils.monitor:Monitor.log_table",
        "trinity.utils.monitor:WandbMonitor.__init__",
        "trinity.utils.registry:Registry.get",
    ],
    "verl": [
        "verl.trainer.ppo.ray_trainer:RayPPOTrainer._dump_generations",
        "verl.trainer.ppo.ray_trainer:RayPPOTrainer._log_rollout_data",
        "verl.utils.rollout_trace:RolloutTraceConfig.get_backend",
        "verl.utils.rollout_trace:RolloutTraceConfig.get_instance",
        "verl.utils.rollout_trace:RolloutTraceConfig.init",
        "verl.utils.rollout_trace:rollout_trace_attr",
        "verl.utils.rollout_trace:rollout_trace_op",
        "verl.utils.tracking:Tracking.__init__",
        "verl.utils.tracking:Tracking.finish",
        "verl.utils.tracking:Tracking.log",
        "verl.utils.tracking:Tracking.supported_backend",
        "verl.utils.tracking:ValidationGenerationsLogger.log",
    ],
}


@pytest.mark.parametrize("framework", PLACES)
def test_the_fake_has_the_signatures_of_the_real_package(
    tmp_path: Path, framework: str
) -> None:
    fake, real = (signatures(tmp_path, framework, real=real) for real in (False, True))

    assert fake == real


def signatures(folder: Path, framework: str, *, real: bool) -> dict[str, object]:
    env = framework_environment(folder, real=real)
    done = call(
        [REAL if real else PYTHON, SCRIPT, *PLACES[framework]], cwd=folder, env=env
    )
    assert done.returncode == 0, done.stderr
    (line,) = [
        line for line in done.stdout.splitlines() if line.startswith("signatures ")
    ]
    found: dict[str, object] = json.loads(line.removeprefix("signatures "))
    return found
