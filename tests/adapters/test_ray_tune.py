"""Ray Tune's logger callback, with a fake of the package: a run a trial, its status, its config, many trials."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from otel_bridge.journal.folder import run_folders
from otel_bridge.journal.report import read_report
from support.trainers.command_runs import (
    PYTHON,
    call,
    environment,
    program,
    records,
    runs,
    until,
)
from support.trainers.framework_runs import (
    config_in,
    ends_of,
    rows_of,
    run_captured,
    run_program,
)

pytestmark = pytest.mark.slow
TUNE = """
import pickle
from ray.tune.experiment import Trial
from otel_bridge.adapters.ray_tune import OtelBridgeLoggerCallback
from otel_bridge.adapters import ray_tune

callback = OtelBridgeLoggerCallback("p", tags=["a"])

def report(trial, **metrics):
    callback.on_trial_result(9, [], trial, trial.result(**metrics))
"""


def runs_of(folder: Path) -> dict[str, tuple[str, list[dict[str, Any]]]]:
    """Status and records of each run by its name, once all have ended."""

    def found() -> dict[str, tuple[str, list[dict[str, Any]]]] | None:
        reports = {one: read_report(one) for one in run_folders(runs(folder))}
        if not reports or not all(
            report is not None and report.ended for report in reports.values()
        ):
            return None
        return {
            report.name: (report.status, records(one))
            for one, report in reports.items()
            if report is not None
        }

    return until(found, "the end of all trials")


def keys_of(entries: list[dict[str, Any]]) -> set[str]:
    """Keys of all rows of a run."""
    return {key for one in entries if one["kind"] == "row" for key in one["values"]}


def test_trials_at_the_same_time_are_runs_with_their_config_and_status(
    tmp_path: Path,
) -> None:
    code = """
one, other = Trial(0, lr=0.1, callbacks=object()), Trial(1, lr=0.2)
callback.on_trial_start(0, [], one)
callback.on_trial_start(0, [], other)
for step in (1, 2):
    report(one, loss=step / 2, nested={"accuracy": 0.5})
    report(other, loss=step / 4)
callback.on_trial_complete(9, [], one)
callback.on_trial_error(9, [], other)
callback.on_experiment_end([one, other])
"""
    run_program(tmp_path, TUNE + code)

    found = runs_of(tmp_path)
    assert {name: status for name, (status, _) in found.items()} == {
        "train_a1b2c_00000": "finished",
        "train_a1b2c_00001": "failed",
    }
    first, second = (found[f"train_a1b2c_0000{number}"][1] for number in (0, 1))
    assert rows_of(first, "loss", "nested/accuracy", "time_total_s") == [
        (1, 0.5, 0.5, 0.5),
        (2, 1.0, 0.5, 1.0),
    ]
    assert rows_of(second, "loss") == [(1, 0.25), (2, 0.5)]
    keys = {key for one in first if one["kind"] == "row" for key in one["values"]}
    assert keys == {"loss", "nested/accuracy", "time_total_s", "time_this_iter_s"}
    assert config_in(first) == {
        "lr": 0.1,
        "tune": {
            "experiment": "search", "trial_id": "a1b2c_00000", "experiment_tag": "0_lr=0.1",
            "hostname": "host", "node_ip": "10.0.0.1", "pid": 7,
        },
    }  # fmt: skip


def test_event_files_that_tune_writes_of_its_trials_are_left_out_below_a_capture(
    tmp_path: Path,
) -> None:
    code = """
from tensorboardX import SummaryWriter

one = Trial(0, lr=0.1)
one.local_path = "results/one"
of_tune, of_user = SummaryWriter("results/one"), SummaryWriter("results/mine")
callback.on_trial_start(0, [], one)
of_tune.add_scalar("ray/tune/loss", 0.5, 1)
report(one, loss=0.5)
of_user.add_scalar("mine", 7.0, 1)
callback.on_trial_complete(9, [], one)
callback.on_experiment_end([one])
"""
    run_captured(tmp_path, "tensorboard", TUNE + code)

    found = sorted(
        points
        for _, entries in runs_of(tmp_path).values()
        for points in keys_of(entries)
    )
    assert found == ["loss", "mine", "time_this_iter_s", "time_total_s"]


def test_a_change_of_the_config_by_a_scheduler_is_recorded(tmp_path: Path) -> None:
    code = """
one = Trial(0, lr=0.1, layers=[1, 2])
report(one, loss=1.0)
one.config["lr"] = 0.5
report(one, loss=2.0)
callback.on_experiment_end([one])
"""
    run_program(tmp_path, TUNE + code)

    ((status, found),) = runs_of(tmp_path).values()
    assert (status, config_in(found)["lr"], config_in(found)["layers"]) == (
        "killed",
        0.5,
        [1, 2],
    )


def test_a_parameter_that_cannot_be_shown_costs_the_config_and_not_the_trial(
    tmp_path: Path,
) -> None:
    code = """
class Gone:
    def __repr__(self):
        raise RuntimeError
one = Trial(0, net=Gone())
report(one, loss=1.0)
report(one, loss=2.0)
callback.on_trial_complete(9, [], one)
callback.on_experiment_end([one])
"""
    run_program(tmp_path, TUNE + code)

    ((status, found),) = runs_of(tmp_path).values()
    assert (status, rows_of(found, "loss")) == ("finished", [(1, 1.0), (2, 2.0)])


def test_a_restored_experiment_goes_on_with_the_runs_of_its_trials(
    tmp_path: Path,
) -> None:
    code = """
one = Trial(0, lr=0.1)
report(one, loss=1.0)
callback.on_trial_error(9, [], one)
callback.on_experiment_end([one])
callback = pickle.loads(pickle.dumps(callback))
callback.on_trial_start(0, [], one)
report(one, loss=2.0)
callback.on_trial_complete(9, [], one)
callback.on_experiment_end([one])
"""
    run_program(tmp_path, TUNE + code)

    ((status, found),) = runs_of(tmp_path).values()
    assert (status, rows_of(found, "loss")) == ("finished", [(1, 1.0), (2, 2.0)])


def test_equal_names_of_trials_are_runs_of_their_own_and_so_are_experiments(
    tmp_path: Path,
) -> None:
    code = """
for one in Trial(0, name="same"), Trial(1, name="same"), Trial(0, name="same", experiment="other"):
    report(one, loss=1.0)
    callback.on_trial_complete(9, [], one)
callback.on_experiment_end([])
"""
    run_program(tmp_path, TUNE + code)

    runs_of(tmp_path)
    assert len(run_folders(runs(tmp_path))) == 3


def test_more_trials_than_may_be_open_are_all_recorded(tmp_path: Path) -> None:
    code = """
ray_tune.MAX_OPEN_TRIALS = 2
trials = [Trial(number, lr=number) for number in range(4)]
for trial in trials * 2:  # paused in turn
    report(trial, loss=1.0)
    assert len(callback._open) <= 2
for trial in trials:
    callback.on_trial_complete(9, [], trial)
callback.on_experiment_end(trials)
assert not callback._open and not callback._waits
"""
    run_program(tmp_path, TUNE + code)

    found = runs_of(tmp_path)
    assert len(found) == 4
    assert [rows_of(one, "loss") for _, one in found.values()] == [
        [(1, 1.0), (2, 1.0)]
    ] * 4


def test_handles_are_released_by_trials_that_have_ended(tmp_path: Path) -> None:
    code = """
from otel_bridge.emit import process_runs
process_runs.MAX_HANDLES = 3
for number in range(8):
    trial = Trial(number)
    report(trial, loss=1.0)
    callback.on_trial_complete(9, [], trial)
assert not process_runs.runs._beside
"""
    done = run_program(
        tmp_path, TUNE + code, OTEL_BRIDGE_EXPORTERS="", OTEL_BRIDGE_OFFLINE="1"
    )

    assert ("Ray Tune continues" in done.stderr, len(run_folders(runs(tmp_path)))) == (
        False,
        8,
    )


def test_a_setting_that_cannot_be_used_is_one_line_and_tune_goes_on(
    tmp_path: Path,
) -> None:
    code = """
callback = OtelBridgeLoggerCallback(exporters="wadnb")
for number in range(3):
    report(Trial(number), loss=1.0)
callback.log_trial_result(1, None, {})
print("on")
"""
    done = run_program(tmp_path, TUNE + code)

    assert (done.stderr.count("otel-bridge: Ray Tune continues"), done.stdout) == (
        1,
        "on\n",
    )


def test_a_variable_of_otel_bridge_wins_over_the_project(tmp_path: Path) -> None:
    code = "report(Trial(0), loss=1.0)"

    run_program(
        tmp_path,
        TUNE + code,
        OTEL_BRIDGE_PROJECT="q",
        OTEL_BRIDGE_RUN_NAME="of the driver",
    )

    (folder,) = run_folders(runs(tmp_path))
    report = until(lambda: read_report(folder), "the report")
    assert (report.project, report.name) == ("q", "train_a1b2c_00000")


@pytest.mark.parametrize("argument", ["id='x'", "projekt='q'"])
def test_an_argument_that_cannot_be_given_is_an_error_at_once(
    tmp_path: Path, argument: str
) -> None:
    done = run_program(
        tmp_path, f"{TUNE}\nOtelBridgeLoggerCallback({argument})", fails=True
    )

    assert f"ConfigError: {argument.partition('=')[0]}= " in done.stderr


def test_without_ray_the_error_names_what_to_install(tmp_path: Path) -> None:
    code = "import sys; sys.modules['ray'] = None; import otel_bridge.adapters.ray_tune"

    done = call(
        [PYTHON, program(tmp_path, "train.py", code)],
        cwd=tmp_path,
        env=environment(tmp_path),
    )

    assert (
        "MissingExtraError: ray.tune cannot be imported; this adapter needs ray[tune]>=2.7"
        in done.stderr
    )


def test_the_ends_of_all_trials_are_recorded_once(tmp_path: Path) -> None:
    code = """
one = Trial(0)
report(one, loss=1.0)
callback.on_trial_complete(9, [], one)
callback.on_trial_complete(9, [], one)
callback.on_experiment_end([one])
callback.on_experiment_end([one])
"""
    run_program(tmp_path, TUNE + code)

    ((_, found),) = runs_of(tmp_path).values()
    assert ends_of(found) == ["finished"]
