"""A job of verl's fully asynchronous mode on the CPU: its own runner, trainer, rollouter and queue, without a model.

Made up are what a GPU does: the response to a prompt, the update of the policy, and the transfer of weights.
"""

VERL_FULLY_ASYNC = '''
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas
import ray
import torch
from hydra import compose, initialize_config_dir
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config
from verl import DataProto
from verl.experimental.fully_async_policy import fully_async_main as main
from verl.trainer.main_ppo import run_ppo

def undecorated(actor):
    return actor.__ray_metadata__.modified_class.__ray_actor_class__

class Server:
    def get_active_server_count(self):
        return 1
    def get_replicas(self):
        return []

class Weights:
    async def update_weights(self, global_steps):
        Path(HERE, "version").write_text(str(global_steps))

class Generator:
    """Two tokens for each prompt; the second sample of a prompt is the better one."""
    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    async def generate_sequences_single(self, prompts):
        return self.generate_sequences(prompts)

    def generate_sequences(self, prompts):
        given = prompts.non_tensor_batch
        ids = torch.tensor([self.tokenizer.encode(one[0]["content"]) for one in given["raw_prompt"]])
        number, length = ids.shape
        responses = torch.tensor([[52 + place, 53] for place in range(number)])
        scores = torch.stack([torch.zeros(number), torch.arange(number) / 2], 1)
        version = np.full(number, int(Path(HERE, "version").read_text()))
        kept = {name: given[name] for name in ("data_source", "reward_model", "uid") if name in given}
        return DataProto.from_dict(
            tensors={"prompts": ids, "responses": responses, "input_ids": torch.cat([ids, responses], 1),
                     "response_mask": torch.ones(number, 2, dtype=torch.long), "rm_scores": scores,
                     "rollout_log_probs": torch.zeros(number, 2),
                     "attention_mask": torch.ones(number, length + 2, dtype=torch.long)},
            non_tensors={**kept, "min_global_steps": version, "max_global_steps": version},
            meta_info={"metrics": [{"generate_sequences": 0.5, "tool_calls": 0.0}] * number, "reward_extra_keys": []})

class Trainer(undecorated(main.FullyAsyncTrainer)):
    async def init_workers(self):
        self.actor_wg = self.actor_rollout_wg = None
        self.resource_pool_manager = SimpleNamespace(get_n_gpus=lambda: 1)

    async def _setup_checkpoint_manager(self):
        self.checkpoint_manager = Weights()

    def _update_actor(self, batch):
        if FAILS and self.global_steps == 3:
            raise RuntimeError("out of memory")
        return DataProto(meta_info={"metrics": {"actor/loss": [float(self.global_steps)]}})

class Rollouter(undecorated(main.FullyAsyncRollouter)):
    async def init_workers(self):
        self._init_async_objects()
        self.llm_server_manager, self.async_rollout_manager = Server(), Generator(self.tokenizer)

class Runner(undecorated(main.FullyAsyncTaskRunner)):
    def run(self, config):
        names = super()._create_trainer.__func__.__globals__
        names["FullyAsyncTrainer"] = ray.remote(num_cpus=1)(Trainer)
        names["FullyAsyncRollouter"] = ray.remote(num_cpus=1, max_concurrency=100)(Rollouter)
        super().run(config)

def model(folder):
    vocabulary = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    vocabulary |= {"<pad>": len(vocabulary), "<eos>": len(vocabulary) + 1}
    made = Tokenizer(models.BPE(vocabulary, []))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<eos>").save_pretrained(folder)
    Qwen2Config(vocab_size=len(vocabulary), hidden_size=16, intermediate_size=16, num_hidden_layers=2,
                num_attention_heads=2, num_key_value_heads=2).save_pretrained(folder)
    return folder

def data(name, prompts):
    pandas.DataFrame([{"prompt": [{"role": "user", "content": one}], "data_source": "sums",
                       "reward_model": {"ground_truth": "4"}} for one in prompts]).to_parquet(name)
    return Path(name).resolve()

HERE, FAILS = str(Path.cwd()), "fails" in sys.argv
with initialize_config_dir(str(Path(main.__file__).with_name("config")), version_base=None):
    config = compose("fully_async_ppo_trainer", [
        "trainer.project_name=math", "trainer.experiment_name=one", "trainer.logger=[console,otel_bridge]",
        "trainer.log_val_generations=2", "trainer.test_freq=1", "trainer.save_freq=-1", "trainer.device=cpu",
        "trainer.n_gpus_per_node=1", "trainer.total_epochs=1", "trainer.resume_mode=disable",
        "trainer.balance_batch=False", f"trainer.rollout_data_dir={HERE}/dumped",
        f"actor_rollout_ref.model.path={model(Path('model').resolve())}", "actor_rollout_ref.hybrid_engine=False",
        "actor_rollout_ref.actor.ppo_mini_batch_size=2", "actor_rollout_ref.rollout.n=2",
        "actor_rollout_ref.rollout.name=vllm", "algorithm.adv_estimator=grpo",
        f"data.train_files={data('train.parquet', [f'{one}+{one}=' for one in range(8)])}",
        f"data.val_files={data('val.parquet', ['1+1=', '0+0='])}", "data.train_batch_size=0", "data.gen_batch_size=1",
        "data.dataloader_num_workers=0", "data.filter_overlong_prompts=False", "data.shuffle=False",
        "rollout.n_gpus_per_node=1", "rollout.total_rollout_steps=8", "async_training.staleness_threshold=1",
        "async_training.trigger_parameter_sync_step=2",
        "ray_kwargs.ray_init.num_cpus=8", "+ray_kwargs.ray_init.include_dashboard=False",
    ])
run_ppo(config, ray.remote(num_cpus=1)(Runner))
'''
