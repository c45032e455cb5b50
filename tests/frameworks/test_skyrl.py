"""SkyRL itself: its experiment, its tracker, its trajectory logger and its evaluation with the adapter's base class."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.trainers.framework_jobs import (
    SKYRL,
    SKYRL_EVAL_ONLY,
    SKYRL_FAILS,
    SKYRL_STEP_WISE,
    SKYRL_TRAINED,
)
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


def test_rows_and_trajectories_arrive_beside_the_own_console(tmp_path: Path) -> None:
    done = run_program(tmp_path, SKYRL_TRAINED, real=True)

    found = recorded(tmp_path)
    assert rows_of(found, "reward/avg_raw_reward", "timing/step") == [
        (1, 0.5, 3.0),
        (2, 0.5, 3.0),
    ]
    assert [(one["split"], one["reward"]) for one in rollouts_in(found)] == [
        ("train", 0.75), ("train", 0.0), ("train", 1.0), ("eval", 0.75), ("eval", 0.0), ("eval", 1.0),
    ]  # fmt: skip
    assert (config_in(found)["trainer"]["run_name"], ends_of(found)) == (
        "one",
        ["finished"],
    )
    assert "{'reward/avg_raw_reward': '0.5000'}" in done.stderr


@pytest.mark.parametrize(
    ("captured", "backend"),
    [("wandb", "wandb"), ("tensorboard", "tensorboard"), ("wandb", "tensorboard")],
)
def test_beside_a_captured_backend_rows_and_trajectories_are_recorded_once(
    tmp_path: Path, captured: str, backend: str
) -> None:
    code = SKYRL_TRAINED.replace(
        '"logger": "console"', f'"logger": "{backend}"'
    ).replace("num_samples=-1", "num_samples=2")

    done = run_captured(tmp_path, captured, code, real=True)

    found = recorded(tmp_path)
    assert rows_of(found, "reward/avg_raw_reward") == [(1, 0.5), (2, 0.5)]
    assert (rows_of(found, "timing/step"), rows_of(found, "eval/all/avg_score")) == (
        [(1, 3.0), (2, 3.0)],
        [(0, 0.25)],
    )
    assert len(rollouts_in(found)) == 6
    tables = [one["key"] for one in found if one["kind"] == "media"]
    assert tables == (
        ["trajectories/train", "trajectories/eval"] if backend == "wandb" else []
    )
    assert (config_in(found)["trainer"]["run_name"], ends_of(found)) == (
        "one",
        ["finished"],
    )
    assert done.stderr.count("metrics of SkyRL are recorded once") == (
        captured == backend
    )


@pytest.mark.parametrize(
    "program",
    [SKYRL_FAILS, SKYRL_STEP_WISE, SKYRL_EVAL_ONLY],
    ids=["fails", "steps", "eval"],
)
def test_failures_steps_and_evaluations_arrive_too(
    tmp_path: Path, program: str
) -> None:
    run_program(tmp_path, program, real=True, fails=program is SKYRL_FAILS)

    found = recorded(tmp_path)
    assert ends_of(found) == ["failed" if program is SKYRL_FAILS else "finished"]
    assert len(rollouts_in(found)) == (4 if program is SKYRL_STEP_WISE else 0)


def test_the_real_evaluation_gives_its_trajectories(tmp_path: Path) -> None:
    code = """
from skyrl.train.evaluate import evaluate

class Generator:
    async def generate(self, input_batch):
        number = len(input_batch["prompts"])
        return {**{name: values[:number] for name, values in OUTPUT.items() if isinstance(values, list)},
                "rollout_metrics": {}, "rollout_logprobs": None, "trajectory_ids": None}

def TRAIN(self):
    rows = [{"prompt": one, "env_class": "gsm8k", "env_extras": {"data_source": "sums"}, "uid": str(number)}
            for number, one in enumerate([PROMPT, OTHER])]
    cfg = config()
    cfg.generator.eval_n_samples_per_prompt = 1
    metrics = asyncio.get_event_loop().create_task(evaluate(
        [rows], Generator(), cfg, 4, Tokenizer(), self.trajectory_logger, self.tracker))
    return metrics

class Evaluated(Trainer):
    async def train(self):
        metrics = await TRAIN(self)
        self.tracker.log(metrics, step=4, commit=True)
        self.tracker.finish()

import asyncio
Trainer = Evaluated
Exp(config()).run()
"""
    run_program(tmp_path, SKYRL + code, real=True)

    found = recorded(tmp_path)
    assert [(one["split"], one["step"], one["reward"]) for one in rollouts_in(found)] == [
        ("eval", 4, 0.75), ("eval", 4, 0.0),
    ]  # fmt: skip
    ((step, score),) = rows_of(found, "eval/all/avg_score")
    assert (step, score) == (4, 0.375)


TOKENS = """
import json
from types import SimpleNamespace
import torch
from skyrl.train.dataset.preprocess import convert_prompts_responses_to_batch_tensors
from skyrl.train.trainer import RayPPOTrainer
from skyrl.train.utils.callbacks import CallbackHandler

class Policy(RayPPOTrainer):
    has_critic = False

    def __init__(self, **named):
        self.tracker, self.cfg = named["tracker"], named["cfg"]
        self.ref_model, self.train_dataloader, self.total_training_steps = None, None, 1
        self.global_step, self._current_epoch, self._training_control = 1, 0, None
        self.all_metrics, self._callback_handler = {}, CallbackHandler()
        self.dispatch = SimpleNamespace(empty_cache=lambda *names: None)

    def _execute_forward_pass(self, model, batch, **named):
        return torch.linspace(-3.0, -0.5, 9).reshape(3, 3)

class Real(BasePPOExp):
    def get_trainer(self, *given, **named):
        return Policy(**named)

class Exp(OtelBridgeExp, Real):
    def __init__(self, cfg):
        self.cfg = cfg

    def _setup_trainer(self):
        trainer = self.get_trainer(cfg=self.cfg, tracker=self.get_tracker())
        trainer.trajectory_logger = self.get_trajectory_logger()
        return trainer

async def train(self):
    output = {**OUTPUT, "rollout_logprobs": [[-1.0, -2.0, -0.5], [-0.25, 0.0, -0.75], [-1.5]]}
    Trainer.trajectories(self, [PROMPT, PROMPT, OTHER], output)
    names = ("prompt_token_ids", "response_ids", "rewards", "loss_masks", "rollout_logprobs")
    tensors = convert_prompts_responses_to_batch_tensors(
        SimpleNamespace(pad_token_id=0), *(output[name] for name in names))
    sequences, attention, response_mask, rewards, loss_mask, logprobs, _ = tensors
    class Batch(dict):
        metadata = {}
        def select(self, keys, metadata_keys):
            return self
    batch = self.fwd_logprobs_values_reward(Batch(
        sequences=sequences, attention_mask=attention, loss_mask=loss_mask, rollout_logprobs=logprobs))
    self._fire("on_step_end", batch=batch, metrics={})
    self.tracker.log(self.all_metrics, step=1, commit=True)
    self.tracker.finish()

Policy.train = train
Exp(config()).run()
"""


def test_the_mismatch_of_engine_and_trainer_is_what_skyrl_computes(
    tmp_path: Path,
) -> None:
    run_program(tmp_path, SKYRL + TOKENS, real=True)

    found = recorded(tmp_path)
    difference = "policy/rollout_train_logprobs_abs_diff"
    ((_, mean, highest),) = rows_of(found, f"{difference}_mean", f"{difference}_max")
    keys = ("tokens/mismatch/mean", "tokens/mismatch/max", "tokens/count")
    assert rows_of(found, *keys) == [
        (1, pytest.approx(mean), pytest.approx(highest), 6)
    ]
