"""verl itself: its Tracking, its validation generations, its traces, with the plugin that it loads."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.trainers.command_runs import report_of, runs
from support.trainers.framework_programs import (
    VERL_BATCH,
    VERL_ROLLOUTER,
    VERL_TRACES,
    VERL_TRACKING,
    VERL_UNREADABLE,
)
from support.trainers.framework_runs import (
    NEEDS_REAL,
    ends_of,
    recorded,
    rollouts_in,
    rows_of,
    run_program,
)

pytestmark = NEEDS_REAL
LOSS = [(0, 0.0), (1, 0.5), (2, 1.0)]
BY_MODULE = {
    "VERL_USE_EXTERNAL_MODULES": "otel_bridge.adapters.verl",
    "VERL_USE_EXTERNAL_PLUGINS": "none",
}


@pytest.mark.parametrize("variables", [{}, BY_MODULE], ids=["entry point", "module"])
def test_rows_and_validation_generations_arrive_and_the_run_ends_once(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    run_program(tmp_path, VERL_TRACKING, real=True, **variables)

    found = recorded(tmp_path)
    assert (rows_of(found, "trainer/actor/loss"), ends_of(found)) == (LOSS, ["finished"])
    validated = [(one["split"], one["step"], one["reward"]) for one in rollouts_in(found)]
    assert validated == [("eval", 2, 1.0), ("eval", 2, 0.0)]


@pytest.mark.parametrize("how", ["fails", "raises"])
def test_an_exit_code_or_an_exception_makes_the_end_failed(tmp_path: Path, how: str) -> None:
    run_program(tmp_path, VERL_TRACKING, how, real=True, fails=how == "raises")

    assert ends_of(recorded(tmp_path)) == ["failed"]


def test_validation_generations_of_a_process_without_tracking_arrive(tmp_path: Path) -> None:
    run_program(tmp_path, VERL_ROLLOUTER, real=True)

    (one,) = rollouts_in(recorded(tmp_path))
    assert (one["role"], one["split"], one["step"], one["reward"]) == ("rollouter", "eval", 7, 1.0)


def test_validation_generations_that_cannot_be_read_are_counted(tmp_path: Path) -> None:
    code = VERL_UNREADABLE.replace('samples=[("2+2?", "4")]', "samples=[(1, 2, 3, 4)]")

    run_program(tmp_path, code, real=True)

    assert [one["step"] for one in rollouts_in(recorded(tmp_path))] == [7]
    assert report_of(runs(tmp_path)).drops == {"adapter_failed": 1}


def test_a_plugin_that_cannot_load_is_one_line_and_verl_refuses_the_backend_itself(
    tmp_path: Path,
) -> None:
    code = """
    import sys
    from importlib.abc import MetaPathFinder

    class Broken(MetaPathFinder):
        def find_spec(self, name, path, target=None):
            if name == "otel_bridge.adapters.parts.verl_traces":
                raise ImportError("half an installation")

    sys.meta_path.insert(0, Broken())
    from verl.utils.tracking import Tracking

    Tracking("math", "one", ["console"]).log({"loss": 1.0}, 1)
    try:
        Tracking("math", "one", ["console", "otel_bridge"])
    except AssertionError as refused:
        print("refused", refused)
    """

    done = run_program(tmp_path, code, real=True)

    assert "refused otel_bridge is not supported" in done.stdout
    (line,) = [one for one in done.stderr.splitlines() if one.startswith("otel-bridge:")]
    assert (
        "verl continues without the backend otel_bridge: ImportError: half an installation" in line
    )


def test_each_traced_agent_loop_is_a_rollout_with_its_calls(tmp_path: Path) -> None:
    run_program(tmp_path, VERL_TRACES, real=True)

    rollouts = {(one["group"], one["sample"]): one for one in rollouts_in(recorded(tmp_path))}
    assert sorted(rollouts) == [("0", 0), ("0", 1), ("1", 0), ("4", 0), ("5", 0)]
    assert [span["name"] for span in rollouts["0", 0]["spans"]] == [
        "rollout",
        "chat",
        "execute_tool calculator",
    ]
    assert rollouts["1", 0]["split"] == "eval"


def test_a_training_batch_of_the_real_trainer_has_groups_and_advantages(tmp_path: Path) -> None:
    code = VERL_BATCH.replace(
        'batch = SimpleNamespace(non_tensor_batch={"uid": ["u1", "u1"]}, batch=None)',
        """
import numpy as np, torch
from verl import DataProto
class Tokenizer:
    def batch_decode(self, ids, skip_special_tokens=True):
        return [" ".join(map(str, one.tolist())) for one in ids]
trainer.tokenizer = Tokenizer()
trainer._init_dump_executor()
two = torch.tensor([[1.0, 1.0], [0.5, 9.0]])
batch = DataProto.from_dict(
    tensors={"prompts": torch.ones(2, 2), "responses": torch.ones(2, 2), "token_level_scores": two,
             "advantages": two, "response_mask": torch.tensor([[1, 1], [1, 0]])},
    non_tensors={"uid": np.array(["u1", "u1"], dtype=object),
                 "reward_model": np.array([{"ground_truth": "4"}, {}], dtype=object)})
""",
    )
    run_program(tmp_path, code + "\ntrainer._shutdown_dump_executor()\n", real=True)

    found = recorded(tmp_path)
    first, second = rollouts_in(found)
    assert (first["group"], first["reward"], first["advantage"]) == ("u1", 2.0, 1.0)
    assert (second["reward"], second["advantage"]) == (9.5, 0.5)
    assert first["rewards"] == {"acc": 1.0, "format": 0.5, "trained_step": 5.0}
    assert rows_of(found, "trainer/lineage/consumed") == [(5, 2)]
    assert first["metadata"]["ground_truth"] == "4"
