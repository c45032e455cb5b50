"""The callback of transformers in a checkpoint: its arguments, its names for a resumed training, and its pickle."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.trainers.command_runs import report_of, runs
from support.trainers.framework_runs import (
    recorded,
    recorded_runs,
    rollouts_in,
    rows_of,
    run_program,
)

pytestmark = pytest.mark.slow


def test_a_resumed_training_joins_the_run_of_its_checkpoint_also_after_an_evaluation(
    tmp_path: Path,
) -> None:
    code = """
    from transformers import GRPOTrainer
    from otel_bridge.adapters.transformers import OtelBridgeCallback

    trainer = GRPOTrainer([OtelBridgeCallback(project="p")])
    trainer.evaluate()
    trainer.state.stateful_callbacks = {
        "OtelBridgeCallback": {"args": {}, "attributes": {"resumed_names": {"project": "p", "name": "first"}}}
    }
    trainer.event("on_train_begin")
    trainer.step(log={"loss": 0.5})
    """

    run_program(tmp_path, code)

    rows = {
        report.name: rows_of(of_run, "train/loss")
        for report, of_run in recorded_runs(tmp_path)
    }
    assert (len(rows), rows["first"]) == (2, [(1, 0.5)])


def test_a_checkpoint_holds_the_arguments_that_rebuild_the_callback(
    tmp_path: Path,
) -> None:
    code = """
    import json, pathlib
    from otel_bridge.adapters.transformers import OtelBridgeCallback

    given = dict(project="p", name="one", config={"seed": 3}, tags=["a"], group="g")
    callback = OtelBridgeCallback(dir=pathlib.Path("elsewhere"), **given)
    stored = json.loads(json.dumps(callback.state()))
    again = OtelBridgeCallback(**stored["args"])
    assert stored == {"args": given, "attributes": {"resumed_names": {}}}
    assert again.state() == stored
    """

    run_program(tmp_path, code)


def test_a_config_that_transformers_cannot_write_is_left_out_of_the_checkpoint(
    tmp_path: Path,
) -> None:
    code = """
    import json
    from otel_bridge.adapters.transformers import OtelBridgeCallback

    class Odd(dict):
        def items(self):
            raise RuntimeError

    for config in ({1: "a", "b": 2}, {"labels": {0: "no", "other": 1}}, Odd(a=1)):
        stored = OtelBridgeCallback(project="p", config=config).state()
        json.dumps(stored, indent=2, sort_keys=True)  # transformers 5.23, TrainerState.save_to_json
        assert stored["args"] == {"project": "p"}
    """

    run_program(tmp_path, code)


def test_a_callback_is_pickled_without_its_trainer(tmp_path: Path) -> None:
    code = """
    import pickle
    from transformers import GRPOTrainer
    from otel_bridge.adapters.transformers import OtelBridgeCallback

    callback = OtelBridgeCallback(name="one", tags=["a"])
    trainer = GRPOTrainer([callback])
    trainer.event("on_train_begin")
    copy = pickle.loads(pickle.dumps(callback))
    assert copy.state()["args"] == {"name": "one", "tags": ["a"]}
    GRPOTrainer([copy]).step(["2+2"], log={"loss": 0.5})
    """

    run_program(tmp_path, code)

    found = recorded(tmp_path)
    assert (rows_of(found, "train/loss"), len(rollouts_in(found))) == ([(1, 0.5)], 2)


def test_a_checkpoint_carries_the_runs_name_which_a_resumed_training_takes(
    tmp_path: Path,
) -> None:
    code = """
    import sys
    from transformers import GRPOTrainer
    from otel_bridge.adapters.transformers import OtelBridgeCallback

    saved = {"OtelBridgeCallback": [{"args": {}, "attributes": {"resumed_names": {"project": "p", "name": "first"}}}]}
    callback = OtelBridgeCallback()
    assert callback.state() == {"args": {}, "attributes": {"resumed_names": {}}}
    trainer = GRPOTrainer([callback], stateful_callbacks=saved)
    trainer.event("on_train_begin")
    trainer.step(log={"loss": 0.5})
    assert callback.state()["attributes"]["resumed_names"] == {"project": "p", "name": "first"}
    """

    run_program(tmp_path, code)

    assert rows_of(recorded(tmp_path), "train/loss") == [(1, 0.5)]
    assert (report_of(runs(tmp_path)).project, report_of(runs(tmp_path)).name) == (
        "p",
        "first",
    )
