"""A summary survives the kill of its process, a restart adds to it, and every tracker shows the last values."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from otel_bridge.exporter import RunInfo
from otel_bridge.journal.folder import run_folders
from otel_bridge.records import run_id_of
from support.trackers import mlflow_reading, trackio_store, wandb_reading
from support.trainers.e2e_jobs import command, environment, run, script

pytestmark = pytest.mark.slow

TRAIN = """
import os, signal, sys, otel_bridge

run = otel_bridge.init("results", "one", role="trainer")
run.log({"loss": 0.5}, step=1)
run.summary({"best": float(sys.argv[1]), "verdict": sys.argv[2]})
otel_bridge.summary(attempts=int(sys.argv[3]))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_last_summary_before_a_kill_is_shown_by_every_tracker(tmp_path: Path) -> None:
    runs, train = tmp_path / "runs", script(tmp_path / "train.py", TRAIN)
    uri = mlflow_reading.database(tmp_path)
    env = environment(
        runs, "wandb,mlflow,trackio", OTEL_BRIDGE_OFFLINE="1", MLFLOW_TRACKING_URI=uri, WANDB_MODE="offline",
        TRACKIO_DIR=str(tmp_path / "trackio"), MLFLOW_DISABLE_TELEMETRY="true",
    )  # fmt: skip

    for arguments in (("0.5", "failed", "1"), ("0.75", "passed", "2")):
        assert run(train, env, *arguments).returncode == -signal.SIGKILL
        drained = command("drain", runs, env={**env, "OTEL_BRIDGE_OFFLINE": ""}, cwd=tmp_path)
        assert drained.returncode == 0, drained.stdout + drained.stderr

    (folder,) = run_folders(runs)
    run_id = run_id_of("results", "one")
    info = RunInfo(id=run_id, project="results", name="one", folder=folder.path)
    shown = [
        wandb_reading.offline_contents(folder.path, run_id),
        mlflow_reading.contents(uri, info),
        trackio_store.held_in(tmp_path / "trackio", info),
    ]
    keys = ("trainer/best", "trainer/verdict", "trainer/attempts")
    assert [[contents.summary.get(key) for key in keys] for contents in shown] == [["0.75", "passed", "2.0"]] * 3
