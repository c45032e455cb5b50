"""Jobs of frameworks that begin several runs or processes; they run alike with the fakes and with the real packages."""

TRINITY = """
import subprocess, sys
import pandas as pd
from trinity.common.config import Config
from trinity.utils.monitor import MONITOR

PATH = "otel_bridge.adapters.trinity.OtelBridgeMonitor"

def monitor(role, arguments=None, **named):
    config = Config(project="math", group="sweep", name="one")
    config.monitor.monitor_type = PATH
    made = MONITOR.get(PATH)
    config.monitor.monitor_args = made.default_args() if arguments is None else arguments
    names = {"project": config.project, "group": config.group, "name": config.name, **named}
    return made(**names, role=getattr(config, role).name, config=config)
"""
TRINITY_ROLES = (
    TRINITY
    + """
def explore():
    one = monitor("explorer")
    for step in range(1, 4):
        one.log({"rollout/model_version": step - 1, "explorer/time/wait_explore_step": 0.5}, step=step)
    one.log({"explore/time/sync_interval": 1.5}, step=3)
    one.close()
    one.close()

def train():
    one = monitor("trainer")
    for step in (1, 2):
        one.log({"actor/loss": step / 2}, step)
    samples = [{"prompt": "2+2?", "response": "4", "reward": 1.0}, {"prompt": "3+3?", "response": "7", "reward": 0.25},
               {"prompt": "4+4?", "response": "?"}]
    one.log_table("rollout_examples", pd.DataFrame(samples), 2)
    one.log_table("lengths", pd.DataFrame({"task": ["a", "b"], "tokens": [3, 4]}), 2)
    del one

if len(sys.argv) > 1:
    {"explorer": explore, "trainer": train}[sys.argv[1]]()
else:
    roles = [subprocess.Popen([sys.executable, __file__, role]) for role in ("explorer", "trainer")]
    assert [one.wait() for one in roles] == [0, 0]
"""
)
SKYRL = """
import sys, typing
try:
    import typing_extensions
    typing.TypedDict = typing_extensions.TypedDict  # SkyRL 0.3 with pydantic, before Python 3.12
except ImportError:
    pass
from skyrl.train.config import SkyRLTrainConfig
from skyrl.train.entrypoints.main_base import BasePPOExp
from skyrl.train.generators.base import TrajectoryID
from otel_bridge.adapters.skyrl import OtelBridgeExp

class Tokenizer:
    def decode(self, ids, skip_special_tokens=False):
        return "".join(chr(96 + one) for one in ids if one or not skip_special_tokens)

PROMPT = [{"role": "user", "content": "2+2?"}]
OTHER = [{"role": "system", "content": "Sum."}, {"role": "user", "content": "1+1?"}]
OUTPUT = {
    "prompt_token_ids": [[9, 1], [9, 1], [9, 2]], "response_ids": [[1, 2, 0], [3, 5, 4], [5]],
    "rewards": [[0.0, 0.25, 0.5], [0.0, 0.0, 0.0], [1.0]], "loss_masks": [[1, 1, 1], [1, 0, 1], [1]],
    "stop_reasons": ["stop", "length", "stop"], "rollout_metrics": {}, "rollout_logprobs": None,
    "trajectory_ids": None, "env_metrics": [{"tries": 1}, {"tries": 2}, {}],
}

class Trainer:
    def __init__(self, tracker):
        self.tracker, self.global_step, self.trajectory_logger = tracker, 1, None

    def trajectories(self, prompts, output, split="train", turns=None):
        self.trajectory_logger.log(
            tracker=self.tracker, num_samples=-1, prompts=prompts, generator_output=output, tokenizer=Tokenizer(),
            global_step=self.global_step, num_turns_list=turns, wandb_key="trajectories/" + split)

    def flush_pending_metrics(self):
        self.tracker.log({"timing/generate": 2.0}, step=self.global_step, commit=True)

    async def train(self):
        TRAIN(self)
        self.tracker.finish()

class Exp(OtelBridgeExp, BasePPOExp):
    def __init__(self, cfg):
        self.cfg = cfg

    def _setup_trainer(self):
        self.trainer = Trainer(self.get_tracker())
        self.trainer.trajectory_logger = self.get_trajectory_logger()
        return self.trainer

def config(**more):
    made = SkyRLTrainConfig()
    for name, value in {"project_name": "math", "run_name": "one", "logger": "console", "tags": ["a"], **more}.items():
        setattr(made.trainer, name, value)
    return made
"""
SKYRL_TRAINED = (
    SKYRL
    + """
def TRAIN(self):
    self.tracker.log({"eval/all/avg_score": 0.25}, step=0, commit=True)
    for self.global_step in (1, 2):
        self.tracker.log({"reward/avg_raw_reward": 0.5}, step=self.global_step, commit=False)
        self.tracker.log({"timing/step": 3.0}, step=self.global_step, commit=True)
    self.trajectories([PROMPT, PROMPT, OTHER], OUTPUT)
    self.trajectories([PROMPT, PROMPT, OTHER], OUTPUT, "eval")
    self.trajectories([], {"response_ids": []})

Exp(config()).run()
"""
)
SKYRL_FAILS = (
    SKYRL
    + """
def TRAIN(self):
    self.tracker.log({"reward/avg_raw_reward": 0.5}, step=self.global_step, commit=False)
    raise RuntimeError("out of memory")

Exp(config()).run()
"""
)
SKYRL_STEP_WISE = (
    SKYRL
    + """
def TRAIN(self):
    one, other = TrajectoryID("a", 0), TrajectoryID("b", 0)
    output = {
        "prompt_token_ids": [[9, 1], [9, 1, 3, 4, 4], [9, 2]], "response_ids": [[3], [5], [6]],
        "rewards": [0.0, 1.0, 0.5], "loss_masks": [[1], [1], [1]], "stop_reasons": ["stop", "stop", "length"],
        "trajectory_ids": [one, one, other], "is_last_step": [False, True, True],
    }
    self.trajectories([PROMPT, OTHER], output)
    last = {name: [value for value, kept in zip(values, output["is_last_step"]) if kept]
            for name, values in output.items()}
    self.trajectories([PROMPT, OTHER], last, "eval", [2, 1])

Exp(config()).run()
"""
)
SKYRL_EVAL_ONLY = (
    SKYRL
    + """
import asyncio
from skyrl.train.entrypoints.main_generate import EvalOnlyEntrypoint

class Evaluation(EvalOnlyEntrypoint):
    def __init__(self, cfg):
        self.cfg = cfg

    async def run(self, inference_engine_client):
        results = {"eval/all/avg_score": 0.5}
        self.get_tracker().log(results, step=0, commit=True)
        if "failed" in sys.argv:
            raise RuntimeError("out of memory")
        return results

class Exp(OtelBridgeExp, Evaluation):
    pass

assert asyncio.run(Exp(config()).run(None)) == {"eval/all/avg_score": 0.5}
"""
)
AXOLOTL = """
from axolotl.integrations.base import PluginManager
from axolotl.utils.dict import DictDefault

manager = PluginManager.get_instance()
manager.register("otel_bridge.adapters.axolotl.OtelBridgePlugin")

def add_callbacks(trainer, **names):
    cfg = DictDefault({"base_model": "tiny", "lora_r": 8, "datasets": [{"path": "sums"}], **names})
    for one in manager.add_callbacks_post_trainer(cfg, trainer):
        trainer.add_callback(one)
"""
TUNE = """
import sys
import tempfile
from pathlib import Path

import ray
from ray import tune
if hasattr(tune, "RunConfig"):
    api = tune
else:  # Tune before 2.43 has them from Ray Train
    from ray import train as api
from otel_bridge.adapters.ray_tune import OtelBridgeLoggerCallback

ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)

def train(config):
    checkpoint = api.get_checkpoint()
    first = int(Path(checkpoint.path, "step").read_text()) + 1 if checkpoint else 1
    for step in range(first, 4):
        if config["fails"] and step == 3 and not Path(config["mended"]).exists():
            raise RuntimeError("out of memory")
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "step").write_text(str(step))
            api.report({"loss": config["lr"] * step}, checkpoint=api.Checkpoint(folder))

def tuner(callback, space, experiment="search"):
    path = str(Path("results").resolve())
    config = api.RunConfig(name=experiment, storage_path=path, callbacks=[callback], verbose=0)
    return tune.Tuner(train, param_space=space, run_config=config)

MENDED = str(Path("mended").resolve())
"""
