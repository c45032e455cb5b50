"""The callback of transformers and TRL, with a fake of both: each completion once, rows as transformers names them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from support.trainers.command_runs import report_of, runs
from support.trainers.framework_runs import (
    config_in,
    ends_of,
    recorded,
    recorded_runs,
    rollouts_in,
    rows_of,
    run_program,
    summary_in,
)

pytestmark = pytest.mark.slow

TRAIN = """
from transformers import GRPOTrainer
from otel_bridge.adapters.transformers import OtelBridgeCallback

trainer = GRPOTrainer([OtelBridgeCallback(tags=["a"])], run_name="one", learning_rate=0.1)
trainer.event("on_train_begin")
trainer.step(["2+2", "3+3"], log={"loss": 0.5, "reward": None})
trainer.step(log={"loss": 0.25})
trainer.step(["2+2", "3+3"], ["4+4", "2+2"])
trainer.evaluate(["5+5"], ["6+6"])
trainer.step(["7+7", "8+8"], log={"loss": 0.125})
trainer.event("on_log", logs={"train_runtime": 2.0, "train_loss": 0.25, "total_flos": 7.0})
trainer.event("on_train_end")
trainer.event("on_log", logs={"eval_reward": 1.0})
"""


def test_each_completion_is_a_rollout_once_with_its_group_and_each_reward(
    tmp_path: Path,
) -> None:
    run_program(tmp_path, TRAIN)

    rollouts = rollouts_in(recorded(tmp_path))
    assert Counter((one["split"], one["step"]) for one in rollouts) == {
        ("train", 1): 4, ("train", 3): 8, ("eval", 3): 4, ("train", 4): 4,
    }  # fmt: skip
    assert {one["group"]: one["messages"][0]["content"] for one in rollouts if one["step"] == 3} == {
        "train-3-0": "2+2", "train-3-1": "3+3", "train-3-2": "4+4", "train-3-3": "2+2",
        "eval-3-0": "5+5", "eval-3-1": "6+6",
    }  # fmt: skip
    first, second = (one for one in rollouts if one["group"] == "train-1-0")
    assert (first["sample"], first["reward"], first["rewards"]) == (
        0,
        1.5,
        {"length": 1.0, "vowels": 1.0, "trained_step": 2.0},
    )
    assert (second["sample"], second["reward"], second["rewards"]) == (
        1,
        0.0,
        {"length": 0.0, "trained_step": 2.0},
    )
    assert (first["advantage"], second["advantage"], first["metadata"]["letters"]) == (
        0.5,
        -0.5,
        3,
    )


def test_each_step_names_the_completions_that_it_consumed_also_those_of_a_former_step(
    tmp_path: Path,
) -> None:
    run_program(tmp_path, TRAIN)

    found = recorded(tmp_path)
    assert rows_of(found, "lineage/consumed", "lineage/uses/max") == [
        (1, 4, 1),
        (2, 4, 2),
        (3, 8, 1),
        (4, 4, 1),
    ]


def test_a_step_that_consumes_an_unknown_part_of_a_batch_names_none(
    tmp_path: Path,
) -> None:
    shuffled = "trainer.args.steps_per_generation = 2\ntrainer.event('on_train_begin')"
    run_program(tmp_path, TRAIN.replace('trainer.event("on_train_begin")', shuffled))

    found = recorded(tmp_path)
    assert len(rollouts_in(found)) == 20
    assert rows_of(found, "lineage/consumed") == []


def test_a_value_of_the_users_with_the_name_of_a_total_has_a_curve(
    tmp_path: Path,
) -> None:
    own = 'log={"loss": 0.25, "train_loss": 0.5}'
    run_program(tmp_path, TRAIN.replace('log={"loss": 0.25}', own))

    found = recorded(tmp_path)
    assert rows_of(found, "train/train_loss") == [(2, 0.5)]
    assert summary_in(found)["train_loss"] == 0.25


def test_rows_have_the_names_of_transformers_and_the_end_of_a_training_is_not_that_of_the_run(
    tmp_path: Path,
) -> None:
    run_program(tmp_path, TRAIN)

    found = recorded(tmp_path)
    assert rows_of(found, "train/loss") == [(1, 0.5), (2, 0.25), (4, 0.125)]
    assert rows_of(found, "eval/reward") == [(3, 0.5), (4, 1.0)]
    assert (rows_of(found, "train/reward"), summary_in(found)) == (
        [], {"train_runtime": 2.0, "train_loss": 0.25, "total_flos": 7.0}
    )  # fmt: skip
    assert not any(
        key.startswith("train/train_")
        for one in found
        if one["kind"] == "row"
        for key in one["values"]
    )
    config = config_in(found)
    assert (config["learning_rate"], config["model"]) == (
        0.1,
        {"hidden_size": 16, "num_parameters": 7},
    )
    report = report_of(runs(tmp_path))
    assert (ends_of(found), report.project, report.name) == (
        ["finished"],
        "huggingface",
        "one",
    )
    assert report.drops == {}


@pytest.mark.parametrize(
    ("variables", "arguments", "warned"),
    [
        ({}, "", 1),
        ({"WANDB_PROJECT": "mine"}, "", 0),
        ({"OTEL_BRIDGE_PROJECT": "huggingface"}, "", 0),
        ({}, "project='mine'", 0),
    ],
)
def test_the_default_project_of_all_jobs_is_one_line_once(
    tmp_path: Path, variables: dict[str, str], arguments: str, warned: int
) -> None:
    code = f"""
    from transformers import GRPOTrainer
    from otel_bridge.adapters.transformers import OtelBridgeCallback

    for main in (True, True, False):
        trainer = GRPOTrainer([OtelBridgeCallback({arguments})], main=main, run_name="one")
        trainer.step(log={{"loss": 0.5}})
    """

    done = run_program(tmp_path, code, **variables)

    line = "otel-bridge: the run is in the project huggingface, the default of transformers"
    assert done.stderr.count(line) == warned


def test_a_callback_by_name_and_one_that_is_added_later_record_once_together(
    tmp_path: Path,
) -> None:
    code = """
    from transformers import GRPOTrainer
    from otel_bridge.adapters.transformers import OtelBridgeCallback, register

    register()
    trainer = GRPOTrainer(report_to="otel_bridge", project="mine", run_name="one")
    trainer.add_callback(OtelBridgeCallback(trainer))
    trainer.event("on_train_begin")
    trainer.step(["2+2", "3+3"], log={"loss": 0.5})
    other = GRPOTrainer([OtelBridgeCallback()], main=False)
    other.event("on_train_begin")
    other.step(["2+2", "3+3"], log={"loss": 0.5})
    """

    run_program(tmp_path, code)

    found = recorded(tmp_path)
    assert (rows_of(found, "train/loss"), len(rollouts_in(found))) == ([(1, 0.5)], 4)
    report = report_of(runs(tmp_path))
    assert (report.project, report.name) == ("mine", "one")


@pytest.mark.parametrize(
    ("version", "arguments", "is_named"),
    [("5.23.0", "", True), ("4.57.6", "", False), ("4.57.6", "name='out'", True)],
)
def test_a_run_name_that_is_the_output_dir_counts_unless_transformers_4_has_set_it(
    tmp_path: Path, version: str, arguments: str, is_named: bool
) -> None:
    code = f"""
    import transformers
    from otel_bridge.adapters.transformers import OtelBridgeCallback

    transformers.__version__ = "{version}"
    trainer = transformers.GRPOTrainer([OtelBridgeCallback({arguments})], output_dir="out", run_name="out")
    trainer.step(log={{"loss": 0.5}})
    """

    run_program(tmp_path, code)

    assert rows_of(recorded(tmp_path), "train/loss") == [(1, 0.5)]
    assert (report_of(runs(tmp_path)).name == "out") is is_named


def test_model_and_trainer_are_freed_with_their_last_reference(tmp_path: Path) -> None:
    code = """
    import gc, weakref
    from transformers import GRPOTrainer
    from otel_bridge.adapters.transformers import OtelBridgeCallback

    class Model:
        config = {}

    def fold():
        trainer = GRPOTrainer([OtelBridgeCallback()], run_name="one")
        trainer.model = Model()
        trainer.train({"loss": 0.5})
        return weakref.ref(trainer), weakref.ref(trainer.model)

    gc.collect()
    gc.disable()
    print([one() for one in fold()])
    """

    assert run_program(tmp_path, code).stdout == "[None, None]\n"


@pytest.mark.long
def test_each_trial_of_a_search_is_a_run_with_its_config_in_one_group(
    tmp_path: Path,
) -> None:
    code = """
    from transformers import GRPOTrainer
    from otel_bridge.adapters.transformers import OtelBridgeCallback

    trainer = GRPOTrainer([OtelBridgeCallback(project="p")], run_name="search")
    for number in range(3):
        trainer.args.learning_rate = number
        try:
            trainer.train({"loss": number}, trial={}, trial_name="hp" if number else None, fails=number == 1)
        except RuntimeError:
            pass
        trainer.event("on_log", logs={"eval_loss": number})
    trainer.train({"loss": 7.0})
    """

    run_program(tmp_path, code)

    found = {
        rows_of(of_run, "train/loss")[0][1]: (
            report.name, ends_of(of_run), config_in(of_run)["learning_rate"], rows_of(of_run, "eval/loss"),
        )
        for report, of_run in recorded_runs(tmp_path)
    }  # fmt: skip
    assert found == {
        0: ("search-1", ["finished"], 0, [(1, 0)]),
        1: ("hp", ["failed"], 1, [(1, 1)]),
        2: ("hp", ["finished"], 2, [(1, 2)]),
        7.0: ("search", ["finished"], 2, []),
    }


def test_arguments_that_change_before_the_next_training_are_recorded_again(
    tmp_path: Path,
) -> None:
    code = """
    from transformers import GRPOTrainer
    from otel_bridge.adapters.transformers import OtelBridgeCallback

    trainer = GRPOTrainer([OtelBridgeCallback()], run_name="one", learning_rate=0.1)
    trainer.train({"loss": 0.5})
    trainer.train({"loss": 0.5})
    trainer.args.learning_rate = 0.5
    trainer.train({"loss": 0.25})
    """

    run_program(tmp_path, code)

    found = recorded(tmp_path)
    assert [
        one["config"]["learning_rate"] for one in found if one["kind"] == "config"
    ] == [
        0.1,
        0.5,
    ]


def test_one_callback_of_two_trainers_records_the_completions_of_both(
    tmp_path: Path,
) -> None:
    code = """
    from transformers import GRPOTrainer
    from otel_bridge.adapters.transformers import OtelBridgeCallback

    callback = OtelBridgeCallback(name="shared")
    first, second = GRPOTrainer([callback]), GRPOTrainer([callback])
    for number, trainer in enumerate((first, second, first)):
        trainer.step([f"{number}+{number}"], log={"loss": number})
    """

    run_program(tmp_path, code)

    found = recorded(tmp_path)
    assert [one["messages"][0]["content"] for one in rollouts_in(found)] == [
        "0+0"
    ] * 2 + ["1+1"] * 2 + ["2+2"] * 2
    assert rows_of(found, "train/loss") == [(1, 0), (1, 1), (2, 2)]


def test_a_trainer_with_other_logs_or_a_broken_one_costs_no_row(tmp_path: Path) -> None:
    code = """
    from transformers import GRPOTrainer
    from otel_bridge.adapters.transformers import OtelBridgeCallback

    trainer = GRPOTrainer([OtelBridgeCallback()], run_name="one")
    trainer._logs["prompt"] = None
    trainer.step(log={"loss": 0.5})
    del trainer._logs
    trainer.generate = lambda: None
    trainer.step(log={"loss": 0.25})
    """

    done = run_program(tmp_path, code)

    assert rows_of(recorded(tmp_path), "train/loss") == [(1, 0.5), (2, 0.25)]
    assert (
        "an adapter failed, and the framework continues: OtelBridgeCallback.on_step_end: TypeError"
        in done.stderr
    )
    assert report_of(runs(tmp_path)).drops == {"adapter_failed": 1}


@pytest.mark.parametrize(("trainer", "number"), [("GRPO", 4), ("GOLD", 0)])
def test_completions_under_the_older_name_are_recorded_where_they_have_advantages(
    tmp_path: Path, trainer: str, number: int
) -> None:
    code = f"""
    from transformers import GRPOTrainer
    from otel_bridge.adapters.transformers import OtelBridgeCallback

    trainer = GRPOTrainer([OtelBridgeCallback()], run_name="one")
    trainer.generate("2+2", "3+3")
    trainer._textual_logs = trainer.__dict__.pop("_logs")
    trainer.generate = lambda: None
    if {trainer == "GOLD"}:
        trainer._textual_logs["advantages"].clear()
    trainer.step(log={{"loss": 0.5}})
    """

    run_program(tmp_path, code)

    found = recorded(tmp_path)
    assert (rows_of(found, "train/loss"), len(rollouts_in(found))) == (
        [(1, 0.5)],
        number,
    )
    assert report_of(runs(tmp_path)).drops == {}


def test_a_model_whose_config_cannot_be_read_costs_no_row(tmp_path: Path) -> None:
    code = """
    from types import SimpleNamespace
    from transformers import GRPOTrainer
    from otel_bridge.adapters.transformers import OtelBridgeCallback

    trainer = GRPOTrainer([OtelBridgeCallback()], run_name="one")
    trainer.model = SimpleNamespace(config=SimpleNamespace(hidden_size=16))  # a module of the user's own
    trainer.event("on_train_begin")
    trainer.step(log={"loss": 0.5})
    """

    run_program(tmp_path, code)

    found = recorded(tmp_path)
    assert (rows_of(found, "train/loss"), config_in(found)["run_name"]) == (
        [(1, 0.5)],
        "one",
    )
    assert config_in(found)["model"] == {"hidden_size": 16}
