"""Take the picture of the page on TRL: ``trl_picture.py PICTURES_DIR``, with ``FRAMEWORKS_PYTHON`` set.

A tiny GRPO job with a vocabulary of words learns to count; its run is shown by Trackio.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from support.browser.browser_page import open_page
from support.browser.browser_pictures import trackio_dashboard
from support.trainers.command_runs import ended, runs
from support.trainers.framework_runs import run_program

COUNTING = """
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, set_seed
from trl import GRPOConfig, GRPOTrainer
from otel_bridge.adapters import transformers as adapter

WORDS = "<pad> <eos> count from to : one two three four five six".split()
RIGHT = {"count from one to three :": "one two three", "count from four to six :": "four five six"}

def right_words(prompts, completions, **others):
    pairs = ((RIGHT[prompt].split(), one.split()) for prompt, one in zip(prompts, completions))
    return [sum(a == b for a, b in zip(right, given)) / 3 for right, given in pairs]

def no_repetition(completions, **others):
    return [len(set(one.split())) / max(len(one.split()), 1) for one in completions]

set_seed(1)
made = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<pad>"))
made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<eos>")
config = Qwen2Config(vocab_size=len(WORDS), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                     num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=64)
adapter.register()
arguments = GRPOConfig(output_dir="out", max_steps=120, per_device_train_batch_size=16, num_generations=8, seed=1,
                       max_completion_length=3, logging_steps=1, learning_rate=0.005, report_to="otel_bridge",
                       project="counting", run_name="tiny-grpo", use_cpu=True, bf16=False, save_strategy="no")
GRPOTrainer(model=Qwen2ForCausalLM(config), reward_funcs=[right_words, no_repetition], args=arguments,
            processing_class=tokenizer, train_dataset=Dataset.from_dict({"prompt": list(RIGHT) * 8})).train()
"""


def main() -> None:
    """Train, deliver into Trackio, and take the picture of a rollout of the last step."""
    pictures = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        store = folder / "trackio"
        done = run_program(
            folder,
            COUNTING,
            real=True,
            OTEL_BRIDGE_EXPORTERS="trackio",
            TRACKIO_DIR=str(store),
        )
        print(done.stdout.splitlines()[-2:])
        ended(runs(folder))
        with (
            trackio_dashboard(store, "counting", folder / "served") as address,
            open_page(folder / "page", height=900) as page,
        ):
            page.go(f"{address}/traces?project=counting")
            rows = "[...document.querySelectorAll('tr.trace-row')]"
            page.until(f"{rows}.length > 4", "rollouts")
            page.js(f"{rows}[0].click()")
            time.sleep(2)
            page.picture(pictures / "trl-trackio.png")


if __name__ == "__main__":
    main()
