"""Processes that are given a run's id alone join it under its own name, whichever of them starts first."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from otel_bridge.exporter import RunInfo
from support.collector.service_process import service
from support.trackers import mlflow_reading
from support.trackers.wandb_offline import offline_directories, read_offline_run
from support.trainers.e2e_jobs import (
    CLEAN,
    ended,
    environment,
    no_bridge_left,
    only_folder,
    run,
    script,
    until,
)

RUN_ID = "job-17"
JOB = """
import sys, otel_bridge
project, name = (one if one != "-" else None for one in sys.argv[1:3])
run = otel_bridge.init(project, name, id="job-17", role=sys.argv[3])
run.log({"loss": 1.0})
print(run.project, run.name)
run.finish(timeout_s=300)
"""
NAMED = ("gsm8k", "nice-name", "trainer")
BY_PROJECT_AND_ID = ("gsm8k", "-", "explorer")
BY_ID = ("-", "-", "judge")


def trackers(root: Path) -> dict[str, str]:
    return {
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(root / "wandb"),
        "MLFLOW_TRACKING_URI": mlflow_reading.database(root),
        "TRACKIO_DIR": str(root / "trackio"),
    }


def names_shown(root: Path, env: dict[str, str]) -> dict[str, list[str]]:
    """The names under which each tracker lists the run; W&B: what `wandb sync` would set last."""
    info = RunInfo(RUN_ID, "gsm8k", "nice-name", root)
    directories = offline_directories(Path(env["WANDB_DIR"]), RUN_ID)
    found = mlflow_reading.runs_of(env["MLFLOW_TRACKING_URI"], info)
    return {
        "wandb": [read_offline_run(one).name for one in directories][-1:],
        "mlflow": [one.info.run_name for one in found],
        "trackio": names_in_trackio(root),
    }


def names_in_trackio(root: Path) -> list[str]:
    with closing(sqlite3.connect(root / "trackio" / "gsm8k.db")) as database:
        listed = database.execute(
            "SELECT DISTINCT run_name FROM metrics WHERE run_id = ?", [RUN_ID]
        ).fetchall()
    return [name for (name,) in listed]


@pytest.mark.long
@pytest.mark.parametrize(
    "order",
    [(NAMED, BY_PROJECT_AND_ID, BY_ID), (BY_PROJECT_AND_ID, NAMED, BY_ID)],
    ids=["named first", "by id first"],
)
def test_a_run_joined_by_its_id_keeps_its_name_in_every_tracker(
    tmp_path: Path, order: tuple[tuple[str, ...], ...]
) -> None:
    env = environment(tmp_path / "runs", "wandb,mlflow,trackio", **trackers(tmp_path))
    file = script(tmp_path / "train.py", JOB)

    with no_bridge_left(tmp_path):
        said = [run(file, env, *words) for words in order]
        until(lambda: ended(tmp_path / "runs"))

    assert [(one.returncode, one.stderr) for one in said] == [(0, "")] * 3
    assert said[-1].stdout == "gsm8k nice-name\n"
    assert names_shown(tmp_path, env) == {
        name: ["nice-name"] for name in ("wandb", "mlflow", "trackio")
    }


def test_the_run_of_a_held_folder_is_known_by_its_segments(tmp_path: Path) -> None:
    env = environment(tmp_path / "runs", "file", OTEL_BRIDGE_OFFLINE="1")
    file = script(tmp_path / "train.py", JOB)

    said = [run(file, env, *words).stdout for words in (NAMED, BY_ID)]

    assert said == ["gsm8k nice-name\n"] * 2
    assert only_folder(tmp_path / "runs").run_id == RUN_ID


def test_a_run_gets_its_name_from_a_child_of_a_process_that_has_made_one_up(
    tmp_path: Path,
) -> None:
    env = environment(
        tmp_path / "runs", "trackio", TRACKIO_DIR=str(tmp_path / "trackio")
    )
    child = script(tmp_path / "child.py", JOB)
    parent = f"""
        import subprocess, sys, otel_bridge
        run = otel_bridge.init("gsm8k", id="job-17")
        run.log({{"loss": 1.0}})
        assert run.flush(300)
        subprocess.run([sys.executable, {os.fspath(child)!r}, "-", "nice-name", "trainer"], check=True)
        subprocess.run([sys.executable, {os.fspath(child)!r}, "-", "-", "judge"], check=True)
        run.finish(timeout_s=300)
        """

    with no_bridge_left(tmp_path):
        said = run(script(tmp_path / "parent.py", parent), env)
        until(lambda: ended(tmp_path / "runs"))

    assert said.stdout.split() == ["gsm8k", "nice-name", "gsm8k", "nice-name"]
    assert names_in_trackio(tmp_path) == ["nice-name"]


@pytest.mark.long
@pytest.mark.parametrize(
    "order",
    [(NAMED, BY_PROJECT_AND_ID), (BY_PROJECT_AND_ID, NAMED)],
    ids=["first", "second"],
)
def test_a_service_shows_a_run_of_several_machines_under_the_name_that_one_of_them_gives(
    tmp_path: Path, order: tuple[tuple[str, ...], ...]
) -> None:
    served = {
        **CLEAN, "OTEL_BRIDGE_DIR": str(tmp_path / "served"), "TRACKIO_DIR": str(tmp_path / "trackio"),
        "MLFLOW_TRACKING_URI": mlflow_reading.database(tmp_path),
    }  # fmt: skip
    file = script(tmp_path / "train.py", JOB)

    with (
        service(tmp_path, served, "--exporters", "trackio,mlflow") as running,
        no_bridge_left(tmp_path),
    ):
        for number, words in enumerate(order):
            sent = environment(
                tmp_path / f"machine-{number}",
                "otlp",
                OTEL_EXPORTER_OTLP_ENDPOINT=running.grpc,
            )
            assert run(file, sent, *words).returncode == 0
        until(lambda: ended(tmp_path / "served"))
        running.end()

    found = mlflow_reading.runs_of(
        served["MLFLOW_TRACKING_URI"], RunInfo(RUN_ID, "gsm8k", "nice-name", tmp_path)
    )
    assert names_in_trackio(tmp_path) == ["nice-name"]
    assert [one.info.run_name for one in found] == ["nice-name"]
