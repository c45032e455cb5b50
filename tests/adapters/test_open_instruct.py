"""Capture of open-instruct with a package of the same form: function names, signatures and dataclasses of e6c3044."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.trainers.command_runs import (
    environment,
    only_folder,
    otel_bridge,
    program,
    records,
    report_of,
    runs,
    statuses,
)

pytestmark = pytest.mark.slow

RL_UTILS = """
import json, os

def save_rollout_metadata(save_path, run_name, model_name):
    os.makedirs(save_path, exist_ok=True)
    with open(os.path.join(save_path, f"{run_name}_metadata.jsonl"), "w") as file:
        file.write("{}")

def save_rollouts_to_disk(
    save_path, run_name, step, batch, result, advantages, num_samples_per_prompt, total_samples_written
):
    os.makedirs(save_path, exist_ok=True)
    with open(os.path.join(save_path, f"{run_name}_rollouts.jsonl"), "a") as file:
        file.write(json.dumps({"step": step, "queries": batch.queries}))
"""
DATA_LOADER = """
from dataclasses import dataclass, field
import numpy as np
from open_instruct.rl_utils import save_rollout_metadata, save_rollouts_to_disk

@dataclass
class StreamingDataLoaderConfig:
    save_traces: bool = False
    rollouts_save_path: str = "deletable_rollouts"

@dataclass
class ToolCallStats:
    tool_name: str
    success: bool
    runtime: float

@dataclass
class RequestInfo:
    num_calls: list
    timeouts: list
    tool_errors: list
    tool_outputs: list
    tool_runtimes: list
    tool_calleds: list
    tool_call_stats: list = field(default_factory=list)
    rollout_states: list = field(default_factory=list)

@dataclass
class GenerationResult:
    responses: list
    finish_reasons: list
    masks: list
    request_info: RequestInfo
    index: int = None
    logprobs: list = field(default_factory=list)

@dataclass
class Batch:
    queries: list
    ground_truths: list
    datasets: list
    raw_queries: list = None
    decoded_responses: list = None
    indices: list = None
    scores: list = None
    active_tools: list = None
    model_steps: list = field(default_factory=list)

class Tokenizer:
    def decode(self, tokens):
        return " ".join(f"t{token}" for token in tokens)

class DataPreparationActor:
    def __init__(self, config, run_name):
        self.config, self.run_name, self.tokenizer = config, run_name, Tokenizer()

    def _data_preparation_loop(self, texts):
        if not (self.config.save_traces and self.config.rollouts_save_path):
            return
        save_rollout_metadata(self.config.rollouts_save_path, self.run_name, "tiny")
        info = RequestInfo([1, 0], [0, 0], ["", "late"], ["4", ""], [0.5, 0.0], [True, False],
                           [[ToolCallStats("python", True, 0.5)], []], [{"step_count": 2}, {}])
        result = GenerationResult([[7, 8, 9], [7]], ["stop", "length"], [[1, 1, 1], [1]], info,
                                  logprobs=[[-0.1, -0.2, -0.3], [-0.4]])
        batch = Batch([[1, 2], [1, 2]], [[4], [4]], ["gsm8k", ["gsm8k", "length"]], indices=[17, 17],
                      scores=[1.0, 0.0], model_steps=[3, 4])
        if texts:
            batch.raw_queries, batch.decoded_responses = ["2 + 2?", "2 + 2?"], ["four", "five"]
        save_rollouts_to_disk(self.config.rollouts_save_path, self.run_name, 5, batch, result,
                              np.array([0.5, -0.5]), 2, 0)
"""
DRIVER = """
import pickle, subprocess, sys
import wandb
from open_instruct.data_loader import StreamingDataLoaderConfig

config = StreamingDataLoaderConfig(save_traces="--save_traces" in sys.argv)
run = wandb.init(project="tulu", name="grpo__1", config=vars(config))
run.define_metric("*", step_metric="training_step")
actor = subprocess.run([sys.executable, "actor.py", *sys.argv[1:]], input=pickle.dumps(config))
run.log({"training_step": 6, "loss": 0.5})
"""
ACTOR = """
import os, pickle, signal, sys
from open_instruct.data_loader import DataPreparationActor
DataPreparationActor(pickle.load(sys.stdin.buffer), "grpo__1")._data_preparation_loop("--texts" in sys.argv)
os.kill(os.getpid(), signal.SIGKILL)  # as ray.kill() at the end of the job
"""


def trained(
    folder: Path, *options: str, captured: str = "wandb,open_instruct"
) -> list[dict[str, Any]]:
    """Run the job below ``otel-bridge run``; returns its rollouts."""
    (package := folder / "open_instruct").mkdir()
    for name, code in (
        ("__init__.py", ""),
        ("rl_utils.py", RL_UTILS),
        ("data_loader.py", DATA_LOADER),
    ):
        program(package, name, code)
    program(folder, "actor.py", ACTOR)
    command = [
        "run",
        "--exporters",
        "file",
        "--capture",
        captured,
        "--",
        "python",
        program(folder, "t.py", DRIVER),
    ]
    done = otel_bridge(*command, *options, cwd=folder, env=environment(folder))
    assert done.returncode == 0, done.stderr
    return [
        record
        for record in records(only_folder(runs(folder)))
        if record["kind"] == "rollout"
    ]


def test_the_rollouts_of_the_actor_are_in_the_run_of_the_job_with_all_their_facts(
    tmp_path: Path,
) -> None:
    first, second = sorted(
        trained(tmp_path, "--texts"), key=lambda record: record["sample"]
    )

    assert [message["content"] for message in first["messages"]] == ["2 + 2?", "four"]
    facts = (
        "key",
        "step",
        "split",
        "group",
        "prompt_index",
        "reward",
        "advantage",
        "finish_reason",
        "policy_version",
    )
    assert [first[fact] for fact in facts] == [
        "rollout/rollouts",
        5,
        "train",
        "0",
        0,
        1.0,
        0.5,
        "stop",
        3,
    ]
    assert [(one["dataset"], one["dataset_index"]) for one in (first, second)] == [
        ("gsm8k", 17),
        ("gsm8k,length", 17),
    ]
    assert first["tools"] == {"calls": 1, "timeouts": 0, "errors": "", "runtimes": 0.5}
    assert second["tools"]["errors"] == "late"
    metadata = first["metadata"]
    assert (metadata["ground_truth"], metadata["logprobs"]) == ([4], [-0.1, -0.2, -0.3])
    assert metadata["tool_call_stats"] == [
        {"tool_name": "python", "success": True, "runtime": 0.5}
    ]
    assert (metadata["tool_outputs"], metadata["rollout_states"]) == (
        "4",
        {"step_count": 2},
    )


def test_a_job_whose_actor_is_killed_at_its_end_has_finished(tmp_path: Path) -> None:
    trained(tmp_path, "--texts")

    assert statuses(only_folder(runs(tmp_path))) == ["finished"]
    assert report_of(runs(tmp_path)).drops == {}


def test_tokens_without_texts_are_decoded_by_the_tokenizer_of_the_job(
    tmp_path: Path,
) -> None:
    rollouts = trained(tmp_path)

    texts = sorted(
        [message["content"] for message in rollout["messages"]] for rollout in rollouts
    )
    assert texts == [["t1 t2", "t7"], ["t1 t2", "t7 t8 t9"]]


@pytest.mark.parametrize("options", [(), ("--save_traces",)])
def test_its_own_files_are_written_only_where_they_are_asked_for(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    assert len(trained(tmp_path, *options)) == 2

    written = sorted(path.name for path in tmp_path.glob("deletable_rollouts/*"))
    assert written == (
        ["grpo__1_metadata.jsonl", "grpo__1_rollouts.jsonl"] if options else []
    )
    assert not list(tmp_path.glob("otel-bridge:*"))
    [config] = [
        record
        for record in records(only_folder(runs(tmp_path)))
        if record["kind"] == "config"
    ]
    assert json.loads(json.dumps(config["config"]["save_traces"])) is bool(options)


def test_without_the_capture_of_open_instruct_there_are_no_rollouts(
    tmp_path: Path,
) -> None:
    assert trained(tmp_path, "--save_traces", captured="wandb") == []
