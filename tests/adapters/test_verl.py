"""verl's backends of the name otel_bridge, with a fake of the package: rows, validations, traces, batches, one end."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.trainers.command_runs import otel_bridge, program, report_of, runs
from support.trainers.framework_programs import (
    VERL_BATCH,
    VERL_ROLLOUTER,
    VERL_TRACES,
    VERL_TRACKING,
    VERL_UNREADABLE,
)
from support.trainers.framework_runs import (
    config_in,
    ends_of,
    framework_environment,
    recorded,
    rollouts_in,
    rows_of,
    run_program,
)

pytestmark = pytest.mark.slow
LOSS = [(0, 0.0), (1, 0.5), (2, 1.0)]
BY_MODULE = {
    "VERL_USE_EXTERNAL_MODULES": "otel_bridge.adapters.verl",
    "VERL_USE_EXTERNAL_PLUGINS": "none",
}


@pytest.mark.parametrize("variables", [{}, BY_MODULE], ids=["entry point", "module"])
def test_rows_and_validation_generations_arrive_and_the_run_ends_once(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    run_program(tmp_path, VERL_TRACKING, **variables)

    found = recorded(tmp_path)
    assert (rows_of(found, "trainer/actor/loss"), ends_of(found)) == (
        LOSS,
        ["finished"],
    )
    validated = [
        (one["split"], one["step"], one["reward"]) for one in rollouts_in(found)
    ]
    assert (validated, config_in(found)) == (
        [("eval", 2, 1.0), ("eval", 2, 0.0)],
        {"trainer": {"n_gpus": 8}},
    )
    assert (report_of(runs(tmp_path)).project, report_of(runs(tmp_path)).name) == (
        "math",
        "one",
    )


@pytest.mark.parametrize("how", ["fails", "raises"])
def test_an_exit_code_or_an_exception_makes_the_end_failed(
    tmp_path: Path, how: str
) -> None:
    run_program(tmp_path, VERL_TRACKING, how, fails=how == "raises")

    assert ends_of(recorded(tmp_path)) == ["failed"]


def test_validation_generations_of_a_process_without_tracking_join_the_run(
    tmp_path: Path,
) -> None:
    run_program(tmp_path, VERL_TRACKING)
    recorded(tmp_path)
    run_program(tmp_path, VERL_ROLLOUTER)

    rollouts = [
        (one["role"], one["split"], one["step"])
        for one in rollouts_in(recorded(tmp_path))
    ]
    assert rollouts == [
        ("trainer", "eval", 2),
        ("trainer", "eval", 2),
        ("rollouter", "eval", 7),
    ]


def test_validation_generations_that_cannot_be_read_are_counted_also_as_the_first_record(
    tmp_path: Path,
) -> None:
    run_program(tmp_path, VERL_UNREADABLE)

    assert [one["step"] for one in rollouts_in(recorded(tmp_path))] == [7]
    assert report_of(runs(tmp_path)).drops == {"adapter_failed": 1}


def test_each_traced_agent_loop_is_a_rollout_with_its_calls(tmp_path: Path) -> None:
    run_program(tmp_path, VERL_TRACES)

    rollouts = {
        (one["group"], one["sample"]): one for one in rollouts_in(recorded(tmp_path))
    }
    assert {place: (one["split"], one["step"]) for place, one in rollouts.items()} == {
        ("0", 0): ("train", 3), ("0", 1): ("train", 3), ("1", 0): ("eval", 3), ("4", 0): ("train", 3),
        ("5", 0): ("train", 3),
    }  # fmt: skip
    one = rollouts["0", 0]
    assert [message["content"] for message in one["messages"]] == ["2+2?", "bc"]
    assert (one["reward"], one["metadata"]["num_turns"], one["error"]) == (0.5, 2, None)
    assert [span["name"] for span in one["spans"]] == [
        "rollout",
        "chat",
        "execute_tool calculator",
    ]
    assert rollouts["4", 0]["error"] == "no answer"
    # A tool that returns a text alone.
    assert rollouts["5", 0]["spans"][-1]["output"] == "found"


def test_a_dumped_training_batch_has_its_groups_and_the_parts_of_its_reward(
    tmp_path: Path,
) -> None:
    run_program(tmp_path, VERL_BATCH)

    found = recorded(tmp_path)
    first, second = rollouts_in(found)
    assert (first["group"], first["step"], first["reward"]) == ("u1", 5, 1.0)
    assert first["rewards"] == {"acc": 1.0, "format": 0.5, "trained_step": 5.0}
    consumed = {"trained_step.label": "5"}
    assert first["metadata"] == {"pred": "4", "ground_truth": "4", **consumed}
    assert second["metadata"] == {"pred": "5", **consumed}
    assert rows_of(found, "trainer/actor/loss") == [(5, 0.5)]
    assert rows_of(found, "trainer/lineage/consumed") == [(5, 2)]


@pytest.mark.parametrize(("how", "status"), [("", "finished"), ("fails", "failed")])
def test_a_trainer_that_is_an_actor_records_its_batches_and_the_run_ends_with_its_fit(
    tmp_path: Path, how: str, status: str
) -> None:
    code = """
    import asyncio, os, sys
    from types import SimpleNamespace
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer
    from verl.utils.tracking import Tracking

    class Trainer(RayPPOTrainer):
        _log_rollout_data = RayPPOTrainer._log_rollout_data  # Ray gives the class of an actor copies of all methods
        _dump_generations = RayPPOTrainer._dump_generations
        current_param_version, local_trigger_step = 3, 1

        def __init__(self):
            self.logger = Tracking("math", "one", ["otel_bridge"], {})

        async def validate(self):
            self.logger.log({"val/reward": 0.25}, step=3)

        async def fit(self):
            for self.local_trigger_step in (2, 1):
                await self.fit_step()
            self.logger.log({"actor/loss": 0.5}, step=4)
            if "fails" in sys.argv:
                raise RuntimeError("out of memory")

        async def fit_step(self):
            batch = SimpleNamespace(non_tensor_batch={"uid": ["u1", "u1"], "min_global_steps": [2, None]}, batch=None)
            self.current_param_version += self.local_trigger_step == 1
            self._log_rollout_data(batch, {}, {}, "out")

    async def main():
        trainer = Trainer()
        await asyncio.create_task(trainer.validate())
        await asyncio.create_task(trainer.fit())

    try:
        asyncio.run(main())
    finally:
        os._exit(0)  # as Ray ends its actors
    """
    run_program(tmp_path, code, how)

    found = recorded(tmp_path)
    assert (
        rows_of(found, "trainer/val/reward"),
        rows_of(found, "trainer/actor/loss"),
    ) == (
        [(3, 0.25)],
        [(4, 0.5)],
    )
    assert [(one["step"], one["policy_version"]) for one in rollouts_in(found)] == [
        (4, 2),
        (4, None),
    ] * 2
    assert ends_of(found) == [status]


def test_a_tracking_that_is_a_local_variable_ends_with_its_function_as_verls_own_backends_do(
    tmp_path: Path,
) -> None:
    code = """
    import gc, os
    from verl.utils.tracking import Tracking

    class TaskRunner:
        def run(self):
            Tracking("math", "one", ["otel_bridge"], {}).log({"actor/loss": 0.5}, step=1)

    gc.collect()
    gc.disable()
    TaskRunner().run()
    os._exit(0)  # as Ray ends its actors
    """

    run_program(tmp_path, code)

    found = recorded(tmp_path)
    assert (rows_of(found, "trainer/actor/loss"), ends_of(found)) == (
        [(1, 0.5)],
        ["finished"],
    )


def test_what_a_captured_backend_records_is_not_recorded_again(tmp_path: Path) -> None:
    code = """
    import wandb
    from verl.utils.tracking import Tracking, ValidationGenerationsLogger

    Tracking.supported_backend.append("wandb")
    wandb.init(project="math", name="one")
    tracking = Tracking("math", "one", ["wandb", "otel_bridge"], {})
    tracking.logger["wandb"] = wandb
    tracking.log({"actor/loss": 0.5}, step=1)
    table = wandb.Table(columns=["step", "input_1", "output_1", "score_1"], data=[[1, "2+2?", "4", 1.0]])
    wandb.log({"val/generations": table}, step=1)
    ValidationGenerationsLogger("math", "one").log(["wandb", "otel_bridge"], [("2+2?", "4", 1.0)], 1)
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
    rows = [
        one
        for one in found
        if one["kind"] == "row" and any("actor/loss" in key for key in one["values"])
    ]
    assert (len(rows), len(rollouts_in(found))) == (1, 1)
    assert (
        done.stderr.count(
            "metrics of verl are recorded once, as wandb gets them, in math/one"
        )
        == 1
    )


def test_an_exit_code_of_the_program_makes_the_end_failed(tmp_path: Path) -> None:
    code = """
    import sys
    from verl.utils.tracking import Tracking

    tracking = Tracking("math", "one", ["otel_bridge"], {})
    tracking.log({"actor/loss": 0.5}, step=1)
    sys.exit(3)
    """

    run_program(tmp_path, code, fails=True)

    assert ends_of(recorded(tmp_path)) == ["failed"]


def test_a_plugin_that_cannot_load_is_reported_and_verl_refuses_the_backend(
    tmp_path: Path,
) -> None:
    code = """
    import sys
    sys.modules["verl.utils.rollout_trace"] = None
    from verl.utils.tracking import Tracking
    try:
        Tracking("math", "one", "otel_bridge")
    except AssertionError as refused:
        print(refused)
    """

    done = run_program(tmp_path, code)

    assert (
        done.stdout,
        "otel-bridge: verl continues without the backend otel_bridge" in done.stderr,
    ) == ("otel_bridge is not supported\n", True)


@pytest.mark.parametrize("kept", ["", "self.logger = "])
@pytest.mark.parametrize(
    ("how", "status"),
    [
        ("", "finished"),
        ("fails", "failed"),
        ("is caught", "failed"),
        ("deletes", "finished"),
    ],
)
def test_an_exception_in_fit_makes_the_end_failed_where_verl_itself_ends_the_tracking(
    tmp_path: Path, how: str, status: str, kept: str
) -> None:
    code = f"""
    import gc, sys
    from verl.utils.tracking import Tracking
    gc.disable()
    how = sys.argv[1]

    class Trainer:
        def fit(self):
            {kept}logger = Tracking("math", "one", ["otel_bridge"], {{}})
            for step in range(2):
                logger.log(data={{"actor/loss": float(step)}}, step=step)
            if how in ("fails", "is caught"):
                raise RuntimeError("out of memory")
            if how == "deletes":
                del logger

    class Runner:  # as a Ray worker runs a method of an actor: an exception is a value
        def run(self):
            trainer = Trainer()
            if how != "is caught":
                return trainer.fit()
            try:
                trainer.fit()
            except RuntimeError as error:
                print(error)

    def worker():
        try:
            Runner().run()
        except RuntimeError as error:
            return str(error)

    worker()
    """

    run_program(tmp_path, code, how or "returns")

    # A tracking that fit() keeps as an attribute is freed with the trainer, so that its end shows no exception.
    assert ends_of(recorded(tmp_path)) == ["finished" if kept else status]
