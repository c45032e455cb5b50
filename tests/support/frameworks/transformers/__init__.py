"""Fake of ``transformers``, with a trainer that keeps completions as TRL's trainers do."""

from __future__ import annotations

from collections import defaultdict, deque
from types import SimpleNamespace

from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK
from transformers.trainer_callback import ExportableState as ExportableState
from transformers.trainer_callback import TrainerCallback as TrainerCallback

__version__ = "5.23.0"


class CallbackHandler:
    def __init__(self, callbacks):
        self.callbacks = callbacks

    def call_event(self, event, args, state, control, **kwargs):
        for callback in self.callbacks:
            getattr(callback, event)(args, state, control, **kwargs)


class Arguments(SimpleNamespace):
    def to_dict(self):
        return dict(vars(self))


class GRPOTrainer:
    num_generations, num_generations_eval, reward_weights = 2, None, (1.0, 0.5)

    def __init__(
        self, callbacks=(), batch=4, main=True, stateful_callbacks=None, **arguments
    ):
        defaults = {
            "report_to": "none",
            "project": "huggingface",
            "run_name": None,
            "output_dir": "out",
        }
        self.args = Arguments(**{**defaults, **arguments})
        made = list(callbacks)
        if self.args.report_to != "none":
            made.append(INTEGRATION_TO_CALLBACK[self.args.report_to]())
        self.callback_handler = CallbackHandler(made)
        self.state = SimpleNamespace(
            global_step=0,
            is_world_process_zero=main,
            stateful_callbacks=dict(stateful_callbacks or {}),
        )
        self.model = SimpleNamespace(
            config={"hidden_size": 16}, num_parameters=lambda: 7
        )
        self.event("on_init_end")
        self._logs = {
            "prompt": deque(maxlen=batch), "completion": deque(maxlen=batch), "advantages": deque(maxlen=batch),
            "rewards": defaultdict(lambda: deque(maxlen=batch)), "extra": defaultdict(lambda: deque(maxlen=batch)),
        }  # fmt: skip

    def add_callback(self, callback):
        self.callback_handler.callbacks.append(callback)

    def train(self, *logs, trial=None, trial_name=None, fails=False):
        """Train one step for each of *logs*, as a trial of a search if *trial* is given."""
        self.state = SimpleNamespace(
            global_step=0, is_world_process_zero=True, stateful_callbacks={
                type(one).__name__: one.state() for one in self.callback_handler.callbacks if hasattr(one, "state")
            }, is_hyper_param_search=trial is not None, trial_name=trial_name,
        )  # fmt: skip
        self.event("on_train_begin")
        for log in logs:
            self.step(log=log)
        if fails:
            raise RuntimeError("out of memory")
        self.event("on_train_end")

    def event(self, name, **kwargs):
        self.callback_handler.call_event(
            name, self.args, self.state, None, model=self.model, **kwargs
        )

    def generate(self, *prompts, completion=""):
        """Generate two completions for each prompt."""
        for prompt in prompts:
            self._logs["prompt"].extend([prompt, prompt])
            self._logs["completion"].extend([completion, completion])
            self._logs["rewards"]["length"].extend([1.0, 0.0])
            self._logs["rewards"]["vowels"].extend([1.0, float("nan")])
            self._logs["advantages"].extend([float("0.5"), float("-0.5")])
            self._logs["extra"]["letters"].extend([3, 4])

    def step(self, *batches, log=None):
        """Take one step, over *batches* of prompts; without one the last completions are trained on again."""
        for number, prompts in enumerate(batches or [()], 1):
            self.generate(*prompts)
            if number < len(batches):
                self.event("on_substep_end")
        self.state.global_step += 1
        self.event("on_step_end")
        if log is not None:
            self.event("on_log", logs=log)

    def evaluate(self, *batches):
        for prompts in batches:
            self.generate(*prompts)
            self.event("on_prediction_step")
        self.event("on_log", logs={"eval_reward": 0.5, "eval_none": None})
