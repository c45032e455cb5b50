"""Programs of frameworks that run alike with the fakes and with the real packages."""

ACCELERATE_OBJECT = """
from accelerate import Accelerator
from otel_bridge.adapters.accelerate import OtelBridgeTracker

accelerator = Accelerator(log_with=OtelBridgeTracker("grpo", name="one", tags=["a"]), cpu=True)
accelerator.init_trackers("ignored", config={"lr": 0.1, "model": "tiny"})
for step in range(3):
    accelerator.log({"loss": step / 2, "note": "text"}, step=step)
if accelerator.is_main_process:
    assert accelerator.get_tracker("otel_bridge", unwrap=True).name == "one"
accelerator.end_training()
"""
ACCELERATE_NAME = """
from accelerate import Accelerator
from otel_bridge.adapters import accelerate

accelerate.register()
accelerate.register()
accelerator = Accelerator(log_with="otel_bridge", cpu=True)
try:
    accelerator.init_trackers("grpo", config={"lr": 0.1}, init_kwargs={"otel_bridge": {"name": "two"}})
    for step in range(3):
        accelerator.log({"loss": step / 2}, step=step)
    raise RuntimeError("out of memory")
finally:
    accelerator.end_training()
"""
ACCELERATE_BESIDE = """
import sys
import numpy
from accelerate import Accelerator
from otel_bridge.adapters import accelerate

accelerate.register()
captured, *names = sys.argv[1:]
accelerator = Accelerator(log_with=names, cpu=True, project_dir="out")
accelerator.init_trackers("grpo", config={"lr": 0.1}, init_kwargs={"otel_bridge": {"name": "two"}})
for step in range(3):
    accelerator.log({"loss": step / 2, "numpy": numpy.float32(step)}, step=step)
accelerator.get_tracker("otel_bridge").log({"only": 7}, step=3)
accelerator.end_training()
"""
LIGHTNING = """
import sys
import torch
package = sys.argv[1]
if package == "lightning":
    import lightning.pytorch as pl
else:
    import pytorch_lightning as pl
from otel_bridge.adapters.lightning import OtelBridgeLogger

class Model(pl.LightningModule):
    def __init__(self, fails=False):
        super().__init__()
        self.layer, self.fails = torch.nn.Linear(2, 1), fails
        self.save_hyperparameters()
    def training_step(self, batch, index):
        if self.fails and index == 3:
            raise RuntimeError("out of memory")
        loss = self.layer(batch[0]).sum()
        self.log("loss", loss)
        return loss
    def validation_step(self, batch, index):
        self.log("val", 2.0)
    def test_step(self, batch, index):
        self.log("test", 3.0)
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

def loader():
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(4, 2)))

def trainer(logger, epochs=1):
    return pl.Trainer(logger=logger, max_epochs=epochs, accelerator="cpu", log_every_n_steps=2,
                      enable_checkpointing=len(sys.argv) > 2, enable_progress_bar=False, enable_model_summary=False)
"""
LIGHTNING_PHASES = (
    LIGHTNING
    + """
logger = OtelBridgeLogger("sft", "one")
logger.log_hyperparams({"seed": 1})
one = trainer(logger)
assert isinstance(one.logger, pl.loggers.Logger)
one.fit(Model(), loader(), None)
one.validate(Model(), loader())
one.test(Model(), loader())
assert one.logger.experiment.name == one.logger.version == "one"
"""
)
LIGHTNING_FAILS = (
    LIGHTNING
    + """
try:
    trainer(OtelBridgeLogger("sft", "one")).fit(Model(fails=True), loader())
except RuntimeError:
    pass
"""
)
LIGHTNING_ENTRY_POINT = (
    LIGHTNING
    + """
one = trainer(False)
one.fit(Model(), loader())
print("emit" if any(name.startswith("otel_bridge.emit") for name in sys.modules) else "nothing")
"""
)
LIGHTNING_FABRIC = """
import torch
from lightning.fabric import Fabric
fabric = Fabric(accelerator="cpu", devices=1)
model = fabric.setup(torch.nn.Linear(2, 1))
for step in range(3):
    fabric.log_dict({"loss": step / 2}, step=step)
"""
LIGHTNING_BESIDE = (
    LIGHTNING
    + """
from lightning.pytorch.loggers import TensorBoardLogger, WandbLogger

class Only(Model):
    def training_step(self, batch, index):
        if index == 1:
            own, = [one for one in self.loggers if isinstance(one, OtelBridgeLogger)]
            own.log_metrics({"only": 7.0}, step=1)
        return super().training_step(batch, index)

one = trainer(LOGGERS)
one.fit(Only(), loader())
one.validate(Only(), loader())
"""
)
LIGHTNING_BESIDE_FABRIC = """
import torch
from lightning.fabric import Fabric
from lightning.fabric.loggers import TensorBoardLogger
from lightning.pytorch.loggers import WandbLogger
from otel_bridge.adapters.lightning import OtelBridgeLogger

fabric = Fabric(accelerator="cpu", devices=1, loggers=LOGGERS)
model = fabric.setup(torch.nn.Linear(2, 1))
for step in range(3):
    fabric.log_dict({"loss": step / 2}, step=step)
"""
GRPO = """
import json, os, sys
import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, set_seed
from tokenizers import Tokenizer, models, pre_tokenizers, decoders
from trl import GRPOConfig, GRPOTrainer

def tokenizer():
    vocabulary = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    vocabulary |= {"<pad>": len(vocabulary), "<eos>": len(vocabulary) + 1}
    made = Tokenizer(models.BPE(vocabulary, []))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<eos>")

def length(completions, **others):
    return [len(set(one)) / 10 for one in completions]

def vowels(completions, log_extra=None, **others):
    if log_extra is not None:
        print("log_extra offered")
        log_extra("letters", [len(one) for one in completions])
    return [None if index % 4 == 3 else float(sum(letter in "aeiou" for letter in one))
            for index, one in enumerate(completions)]

def known(arguments):
    # TRL 0.18 has no num_generations_eval: its evaluations have num_generations, which is the same here.
    return {name: value for name, value in arguments.items()
            if name != "num_generations_eval" or hasattr(GRPOConfig, name)}

def trainer(out, callbacks=None, evaluated=None, **more):
    set_seed(7)
    prompts = Dataset.from_dict({"prompt": ["two and two", "a colour", "the sea", "a name"] * 4})
    made = tokenizer()
    config = Qwen2Config(vocab_size=len(made), hidden_size=16, intermediate_size=16, num_hidden_layers=2,
                         num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=128)
    arguments = dict(output_dir=out, max_steps=4, per_device_train_batch_size=4, num_generations=2, logging_steps=1,
                     max_completion_length=6, learning_rate=0.01, report_to="none", use_cpu=True, save_strategy="no",
                     reward_weights=[1.0, 0.5], disable_tqdm=True, bf16=False, seed=7)
    return GRPOTrainer(model=Qwen2ForCausalLM(config), reward_funcs=[length, vowels], processing_class=made,
                       args=GRPOConfig(**known({**arguments, **more})), callbacks=callbacks,
                       train_dataset=prompts, eval_dataset=prompts.select(range(evaluated)) if evaluated else None)

def losses(trained):
    keys = ("loss", "reward", "grad_norm", "rewards/length/mean", "train_loss", "completions/mean_length")
    print("losses", json.dumps([[one.get(key) for key in keys] for one in trained.state.log_history]))
    print("logs", len(trained.state.log_history), flush=True)
"""
GRPO_PLAIN = (
    GRPO
    + """
trained = trainer("out")
trained.train()
losses(trained)
"""
)
GRPO_CALLBACK = (
    GRPO
    + """
from otel_bridge.adapters.transformers import OtelBridgeCallback
trained = trainer("out", [OtelBridgeCallback()], run_name="tiny")
trained.train()
losses(trained)
"""
)
GRPO_SAMPLED_BY_AN_ENGINE = (
    GRPO
    + """
import random
from otel_bridge.adapters.transformers import OtelBridgeCallback

class EngineTrainer(GRPOTrainer):
    # As with vLLM, whose log-probabilities are None where it has NaN: another engine samples, TRL corrects for it.
    def _generate_single_turn(self, *arguments):
        self.use_vllm = False
        completions, _ = super()._generate_single_turn(*arguments)
        self.use_vllm = True
        noise = random.Random(str(completions))
        logprobs = [[noise.uniform(-6.0, -5.0) for _ in ids] for ids in completions]
        logprobs[0][0] = None
        return completions, logprobs

GRPOTrainer = EngineTrainer
trained = trainer("out", [OtelBridgeCallback()], max_completion_length=60,
                  mask_truncated_completions="masked" in sys.argv)
trained.use_vllm = True
trained.train()
"""
)
GRPO_REPORT_TO = (
    GRPO
    + """
from otel_bridge.adapters import transformers as adapter
adapter.register()
trained = trainer("out", [adapter.OtelBridgeCallback()] if "twice" in sys.argv else None, 2, report_to="otel_bridge",
                  run_name="tiny", logging_steps=2, max_steps=5, eval_strategy="steps", eval_steps=5,
                  gradient_accumulation_steps=2, steps_per_generation=1, num_generations_eval=2, eval_on_start=False)
trained.train()
losses(trained)
"""
)
GRPO_WANDB = (
    GRPO
    + """
trained = trainer("out", None, 4, report_to="wandb", run_name="tiny", log_completions=True, max_steps=3,
                  eval_strategy="steps", eval_steps=3, num_generations_eval=2)
trained.train()
losses(trained)
"""
)
GRPO_RESUMED = (
    GRPO
    + """
import signal
from transformers import TrainerCallback
from otel_bridge.adapters.transformers import OtelBridgeCallback

class Kill(TrainerCallback):
    def on_step_begin(self, args, state, control, **others):
        if state.global_step == 3:
            os.kill(os.getpid(), signal.SIGKILL)

resumes = "resume" in sys.argv
trained = trainer("out", None if resumes else [Kill()], save_strategy="steps", save_steps=2, max_steps=4)
trained.add_callback(OtelBridgeCallback(trained))
trained.train(resume_from_checkpoint=resumes)
"""
)
VERL = """
import sys, threading
import verl
assert not any(name in sys.modules for name in ("wandb", "mlflow", "trackio", "otel_bridge.emit.api"))
assert [one.name for one in threading.enumerate()] == ["MainThread"]
from verl.utils.tracking import Tracking, ValidationGenerationsLogger
"""
VERL_TRACKING = (
    VERL
    + """
tracking = Tracking("math", "one", ["console", "otel_bridge"], {"trainer": {"n_gpus": 8}})
for step in range(3):
    tracking.log({"actor/loss": step / 2}, step=step)
ValidationGenerationsLogger("math", "one").log(["console", "otel_bridge"], [("2+2?", "4", 1.0), ("3+3?", "5", 0.0)], 2)
if "fails" in sys.argv:
    tracking.finish(1)
    tracking.finish(0)
elif "raises" in sys.argv:
    raise RuntimeError("out of memory")
del tracking
"""
)
VERL_ROLLOUTER = (
    VERL
    + """
assert "otel_bridge" in Tracking.supported_backend
ValidationGenerationsLogger("math", "one").log(["console", "otel_bridge"], [("2+2?", "4", 1.0)], 7)
"""
)
VERL_UNREADABLE = (
    VERL
    + """
generations = ValidationGenerationsLogger("math", "one")
generations.log(loggers=["otel_bridge"], samples=[("2+2?", "4")], step=6)
generations.log(["otel_bridge"], [("2+2?", "4", 1.0)], 7)
"""
)
VERL_TRACES = """
import asyncio
import verl
from types import SimpleNamespace
from verl.utils.rollout_trace import RolloutTraceConfig, rollout_trace_attr, rollout_trace_op

class Tokenizer:
    def decode(self, ids):
        return "".join(chr(97 + one) for one in ids)

class Server:
    tokenizer = Tokenizer()
    @rollout_trace_op
    async def generate(self, request_id, *, prompt_ids, sampling_params=None):
        return SimpleNamespace(token_ids=[1, 2], stop_reason="completed")

class Tool:
    name = "calculator"
    @rollout_trace_op
    async def execute(self, instance_id, parameters, **kwargs):
        return SimpleNamespace(text="4"), 0.0, {}

class Search:
    name = "search"
    @rollout_trace_op
    async def execute(self, instance_id, parameters, **kwargs):
        return "found"

class Loop:
    tokenizer = Tokenizer()
    @rollout_trace_op
    async def run(self, sampling_params, priority=0, **kwargs):
        prompt_ids = [3, 4, 5]
        one = await Server().generate("r", prompt_ids=prompt_ids, sampling_params=sampling_params)
        await Tool().execute("i", {"expression": "2+2"})
        if kwargs.get("odd"):
            await Server().generate("r", prompt_ids=None)
            await Search().execute("i", {})
        if kwargs.get("fails"):
            raise ValueError("no answer")
        return SimpleNamespace(prompt_ids=prompt_ids, response_ids=one.token_ids, num_turns=2, reward_score=0.5)

async def rollout(sample, number, step=3, validate=False, trace=True, **kwargs):
    with rollout_trace_attr(step=step, sample_index=sample, rollout_n=number, validate=validate, trace=trace):
        return await Loop().run({}, raw_prompt=[{"role": "user", "content": "2+2?"}], **kwargs)

async def main():
    await rollout(9, 9)  # before the backend is chosen
    RolloutTraceConfig.init("math", "one", "otel_bridge", True)
    done = await asyncio.gather(rollout(0, 0), rollout(0, 1), rollout(1, 0, validate=True), rollout(2, 0, trace=False))
    assert [one.response_ids for one in done] == [[1, 2]] * 4
    await rollout(5, 0, odd=True)
    try:
        await rollout(4, 0, fails=True)
    except ValueError:
        pass

asyncio.run(main())
"""
VERL_BATCH = (
    VERL
    + """
from types import SimpleNamespace
from verl.trainer.ppo.ray_trainer import RayPPOTrainer

tracking = Tracking("math", "one", ["otel_bridge"], {})
again = Tracking("math", "one", ["otel_bridge"], {})
trainer = RayPPOTrainer.__new__(RayPPOTrainer)
trainer.global_steps = 5
batch = SimpleNamespace(non_tensor_batch={"uid": ["u1", "u1"]}, batch=None)
extra = {"acc": [True, False], "format": [0.5, 0.25], "pred": ["4", "5"], "short": [1]}
RayPPOTrainer._log_rollout_data(trainer, batch, extra, {}, "out")
trainer._dump_generations(["v"], ["v"], [None], [1.0], {}, "out")
tracking.log({"actor/loss": 0.5}, step=5)
"""
)
VERL_BATCH_OF_TENSORS = VERL_BATCH.replace(
    'batch = SimpleNamespace(non_tensor_batch={"uid": ["u1", "u1"]}, batch=None)',
    """
import numpy as np, torch
from verl import DataProto
class Tokenizer:
    def batch_decode(self, ids, skip_special_tokens=True):
        return [self.decode(one) for one in ids]
    def decode(self, ids):
        return " ".join(str(int(one)) for one in ids)
trainer.tokenizer = Tokenizer()
trainer._init_dump_executor()
two = torch.tensor([[1.0, 1.0], [0.5, 9.0]])
tensors = {"prompts": torch.ones(2, 2), "responses": torch.ones(2, 2), "token_level_scores": two,
           "advantages": two, "response_mask": torch.tensor([[1, 1], [1, 0]])}
batch = DataProto.from_dict(
    tensors=tensors,
    non_tensors={"uid": np.array(["u1", "u1"], dtype=object),
                 "reward_model": np.array([{"ground_truth": "4"}, {}], dtype=object)})
""",
)
VERL_BATCH_IN_QUEUE = (
    VERL
    + """
import json
from types import SimpleNamespace
import ray, torch
import transfer_queue as tq
from omegaconf import OmegaConf
from tensordict import NonTensorData, NonTensorStack, TensorDict
from verl.trainer.ppo.rollout_corr_helper import compute_offpolicy_metrics
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

class Tokenizer:
    pad_token_id = 0
    def decode(self, ids, skip_special_tokens=True):
        return " ".join(str(int(one)) for one in ids)

class Trainer(PPOTrainer):
    on_sample_end = on_step_end = None

def nested(*rows):
    return torch.nested.as_nested_tensor([torch.tensor(row) for row in rows], layout=torch.jagged)

def put(tags=None, **fields):
    return tq.kv_batch_put(
        keys=["u1_1_0", "u1_0_0"], partition_id="train", fields=TensorDict(fields, batch_size=2), tags=tags)

ray.init(num_cpus=16, include_dashboard=False)
tq.init()
tracking = Tracking("math", "one", ["otel_bridge"], {})
trainer = Trainer.__new__(Trainer)
trainer.global_steps = 5
trainer.tokenizer = Tokenizer()
trainer.config = OmegaConf.create({"algorithm": {}})
trainer._init_dump_executor()
mask, engine = nested([1, 0, 1], [1]), nested([-0.5, -9.0, -2.0], [-1.0])
truths = [{"ground_truth": "4"}, {"ground_truth": "5"}]
batch = put(
    [{"min_global_steps": 4}, {"min_global_steps": 3}], prompts=nested([1, 2], [1]), responses=nested([3, 4, 5], [6]),
    uid=NonTensorStack("u1", "u1"), rm_scores=nested([0.0, 0.0, 2.0], [1.0]), response_mask=mask,
    reward_model=NonTensorStack(*map(NonTensorData, truths)), rollout_log_probs=engine)
old = nested([-0.75, -1.0, -1.5], [-1.25])
batch = put(old_log_probs=old, entropy=nested([0.5, 9.0, 1.5], [1.0]))
batch = put(advantages=nested([1.0, 1.0, 1.0], [-1.0]))
trainer._log_rollout_data(batch, {}, "out")
trainer._shutdown_dump_executor()
tq.kv_clear(keys=batch.keys, partition_id="train")
tracking.log({"actor/loss": 0.5}, step=5)
padded = [one.to_padded_tensor(0.0) for one in (old, engine, mask)]
computed = compute_offpolicy_metrics(*padded)
print("computed", json.dumps([computed["kl"], computed["k3_kl"]]))
"""
)
SLIME = """
from dataclasses import dataclass, field
from enum import Enum
from types import SimpleNamespace
from typing import Any
from otel_bridge.adapters.slime import log_eval_rollouts, log_rollouts

class Status(Enum):
    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ABORTED = "aborted"

@dataclass
class Sample:
    group_index: int | None = None
    index: int | None = None
    prompt: Any = "2+2?"
    tokens: list = field(default_factory=lambda: [1, 2, 3])
    response: str = "4"
    response_length: int = 1
    label: str | None = "4"
    reward: Any = None
    weight_versions: list = field(default_factory=list)
    status: Status = Status.COMPLETED
    metadata: dict = field(default_factory=dict)
    session_id: str | None = None
"""
