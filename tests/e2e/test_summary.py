"""A summary survives the kill of its process, a restart adds to it, and every tracker shows the last values."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from otel_bridge.exporter import RunInfo
from otel_bridge.journal.folder import run_folders
from otel_bridge.records import run_id_of
from support.collector.service_process import service
from support.trackers import mlflow_reading, trackio_store, wandb_reading
from support.trainers.e2e_jobs import (
    CLEAN,
    command,
    ended,
    environment,
    lines,
    run,
    script,
    until,
)

pytestmark = pytest.mark.slow

TRAIN = """
import os, signal, sys, otel_bridge

run = otel_bridge.init("results", "one", role="trainer")
run.log({"loss": 0.5}, step=1)
run.summary({"best": float(sys.argv[1]), "verdict": sys.argv[2]})
otel_bridge.summary(attempts=int(sys.argv[3]))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.long
def test_the_last_summary_before_a_kill_is_shown_by_every_tracker(
    tmp_path: Path,
) -> None:
    runs, train = tmp_path / "runs", script(tmp_path / "train.py", TRAIN)
    uri = mlflow_reading.database(tmp_path)
    env = environment(
        runs, "wandb,mlflow,trackio", OTEL_BRIDGE_OFFLINE="1", MLFLOW_TRACKING_URI=uri, WANDB_MODE="offline",
        TRACKIO_DIR=str(tmp_path / "trackio"), MLFLOW_DISABLE_TELEMETRY="true",
    )  # fmt: skip

    for arguments in (("0.5", "failed", "1"), ("0.75", "passed", "2")):
        assert run(train, env, *arguments).returncode == -signal.SIGKILL
        drained = command(
            "drain", runs, env={**env, "OTEL_BRIDGE_OFFLINE": ""}, cwd=tmp_path
        )
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
    assert [[contents.summary.get(key) for key in keys] for contents in shown] == [
        ["0.75", "passed", "2.0"]
    ] * 3


SENDER = """
import otel_bridge

run = otel_bridge.init("results", "far", role="trainer")
histogram = otel_bridge.Histogram(counts=[1, 2], edges=[0.0, 1.0, 2.0])
run.log({"hist": histogram}, step=1, time_unix_ns=1_600_000_000_000_000_000)
run.summary({"best": 0.5})
run.summary({"best": 0.75, "verdict": "passed"})
run.alert("kl", "too large", level="error")
run.finish(timeout_s=60)
"""


def test_what_a_process_far_away_says_of_its_run_arrives_by_otlp(
    tmp_path: Path,
) -> None:
    served = {**CLEAN, "OTEL_BRIDGE_DIR": str(tmp_path / "served")}

    with service(tmp_path, served, "--exporters", "file") as running:
        sent = environment(
            tmp_path / "here", "otlp", OTEL_EXPORTER_OTLP_ENDPOINT=running.grpc
        )
        done = run(script(tmp_path / "train.py", SENDER), sent)
        until(lambda: ended(tmp_path / "served"))
        running.end()

    assert done.returncode == 0, done.stderr
    found = {
        kind: [line for line in lines(tmp_path / "served") if line["kind"] == kind]
        for kind in ("row", "alert")
    }
    ((row,), (alert,)) = found["row"], found["alert"]
    assert (row["time_unix_ns"], row["values"]["trainer/hist"]["counts"]) == (
        1_600_000_000_000_000_000,
        [1, 2],
    )
    assert (alert["title"], alert["text"], alert["level"], alert["step"]) == (
        "kl",
        "too large",
        "error",
        1,
    )
    shown: dict[str, object] = {}
    for line in lines(tmp_path / "served"):
        shown |= line.get("summary", {})
    assert shown == {"trainer/best": 0.75, "trainer/verdict": "passed"}
