"""Which run a job is in each tracker: made of project and name, or what the trackers' own variables say."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from otel_bridge.exporter import RunInfo
from otel_bridge.records import run_id_of
from otel_bridge.testing import Contents
from support.trackers import conformance_reading, mlflow_reading
from support.trackers.wandb_offline import offline_directories, read_offline_run
from support.trainers import e2e_jobs as job

TRAIN = """
    import otel_bridge

    with otel_bridge.init("gsm8k", "ppo-7b", role="trainer") as run:
        run.log({"step": 7.0, "actor": {"loss": {"kl": 0.5}}, "grad": [1.0, 2.0, 3.0]}, step=3)
"""


def test_project_and_name_are_parted_in_the_id() -> None:
    ids = {
        run_id_of("a_b", "c"),
        run_id_of("a", "b_c"),
        run_id_of("a", "b\0c"),
        run_id_of("", "a_b_c"),
    }

    assert len(ids) == 4
    assert all(len(id_) == 16 and int(id_, 16) >= 0 for id_ in ids)


def test_an_id_is_the_same_in_every_process() -> None:
    code = (
        "from otel_bridge.records import run_id_of; print(run_id_of('gsm8k', 'ppo-7b'))"
    )
    said = {
        subprocess.check_output([sys.executable, "-c", code], text=True).strip()
        for _ in range(2)
    }

    assert said == {run_id_of("gsm8k", "ppo-7b")}


def trained(tmp_path: Path, variables: Mapping[str, str]) -> str:
    """Run the job into all three trackers; return MLflow's address."""
    uri, base = mlflow_reading.database(tmp_path), tmp_path / "base"
    places = {
        "MLFLOW_TRACKING_URI": uri, "TRACKIO_DIR": str(tmp_path / "trackio"), "WANDB_MODE": "offline",
        "WANDB_DIR": str(tmp_path / "store"),
    }  # fmt: skip
    env = job.environment(base, "wandb,mlflow,trackio", **places, **variables)
    with job.no_bridge_left(base):
        done = job.run(job.script(tmp_path / "work" / "train.py", TRAIN), env)
        assert done.returncode == 0, done.stderr
        job.until(lambda: job.ended(base))
    return uri


def numbers(
    contents: Contents,
) -> tuple[list[tuple[str, int | None, str]], list[tuple[str, float, float]]]:
    spread = [(one.key, one.min, one.max) for one in contents.distributions]
    return sorted(scalar.triple for scalar in contents.scalars), spread


ROW = (
    [("trainer/actor/loss/kl", 3, "0.5"), ("trainer/step_value", 3, "7.0")],
    [("trainer/grad", 1.0, 3.0)],
)
"""Nested keys are flat, a key `step` is not the axis, a list is a distribution."""


@pytest.mark.slow
def test_by_default_project_and_name_are_those_given_in_every_tracker(
    tmp_path: Path,
) -> None:
    uri = trained(tmp_path, {})

    run = RunInfo(run_id_of("gsm8k", "ppo-7b"), "gsm8k", "ppo-7b", tmp_path)
    (offline,) = [
        read_offline_run(found)
        for found in offline_directories(tmp_path / "store", run.id)
    ]
    assert (offline.run_id, offline.project, offline.name) == (
        run.id,
        "gsm8k",
        "ppo-7b",
    )
    assert (
        numbers(conformance_reading.wandb_offline(tmp_path / "store", run).contents)
        == ROW
    )
    assert numbers(conformance_reading.mlflow(uri, run).contents) == ROW
    assert (
        numbers(conformance_reading.trackio(tmp_path / "trackio", run).contents) == ROW
    )


@pytest.mark.long
def test_the_trackers_own_variables_move_the_run_in_their_tracker_alone(
    tmp_path: Path,
) -> None:
    moved = {
        "WANDB_PROJECT": "in-wandb", "WANDB_RUN_ID": "w-1", "MLFLOW_EXPERIMENT_NAME": "in mlflow",
        "TRACKIO_PROJECT": "in-trackio", "OTEL_BRIDGE_RUN_ID": "mine-1",
    }  # fmt: skip

    uri = trained(tmp_path, moved)

    (offline,) = [
        read_offline_run(found)
        for found in offline_directories(tmp_path / "store", "w-1")
    ]
    assert (offline.run_id, offline.project, offline.name) == (
        "w-1",
        "in-wandb",
        "ppo-7b",
    )
    in_mlflow = conformance_reading.mlflow(
        uri, RunInfo("mine-1", "in mlflow", "ppo-7b", tmp_path)
    )
    in_trackio = conformance_reading.trackio(
        tmp_path / "trackio", RunInfo("mine-1", "in-trackio", "ppo-7b", tmp_path)
    )
    assert (numbers(in_mlflow.contents), numbers(in_trackio.contents)) == (ROW, ROW)


@pytest.mark.long
def test_an_mlflow_run_that_is_named_is_the_one_written_to(tmp_path: Path) -> None:
    uri = mlflow_reading.database(tmp_path)
    api = mlflow_reading.client(uri)
    made = api.create_run(
        api.create_experiment("theirs"), run_name="made before"
    ).info.run_id

    base = tmp_path / "base"
    env = job.environment(base, "mlflow", MLFLOW_TRACKING_URI=uri, MLFLOW_RUN_ID=made)
    with job.no_bridge_left(base):
        done = job.run(job.script(tmp_path / "work" / "train.py", TRAIN), env)
        job.until(lambda: job.ended(base))

    held = api.get_run(made)
    assert (done.returncode, held.info.status) == (0, "FINISHED")
    assert held.data.metrics["trainer/actor/loss/kl"] == 0.5
    assert [found.name for found in api.search_experiments()] == ["theirs", "Default"]
