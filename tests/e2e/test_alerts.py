"""Rules of ``OTEL_BRIDGE_ALERTS`` raise an alert once, wherever the bridge runs, across kills, in every tracker."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from otel_bridge.exporter import RunInfo
from otel_bridge.journal.report import read_report
from otel_bridge.records import run_id_of
from support.collector.service_process import service
from support.trackers import mlflow_reading, trackio_store, wandb_reading
from support.trainers.e2e_jobs import (
    CLEAN,
    bridges,
    command,
    ended,
    environment,
    lines,
    no_bridge_left,
    only_folder,
    report_when,
    run,
    script,
    start,
    until,
)

pytestmark = pytest.mark.slow

TRAIN = """
import math, otel_bridge

run = otel_bridge.init("alerts", "one", role="trainer")
for step, kl in enumerate([0.1, 0.5, 0.1, 0.5, 0.1, math.nan, math.inf, 0.5]):
    run.log({"kl": kl, "loss": 1.0}, step=step)
run.finish(timeout_s=60)
"""
RULES = "trainer/kl>0.2, nan"
RAISED = [("trainer/kl above 0.2", "warn", 1), ("trainer/kl is NaN", "error", 5)]


def alerts(base: Path) -> list[tuple[object, object, object]]:
    return [
        (line["title"], line["level"], line["step"])
        for line in lines(base)
        if line["kind"] == "alert"
    ]


def test_the_bridge_of_a_plain_program_takes_the_rules_of_its_environment(
    tmp_path: Path,
) -> None:
    runs = tmp_path / "runs"
    env = environment(runs, OTEL_BRIDGE_ALERTS=RULES)

    with no_bridge_left(runs):
        done = run(script(tmp_path / "train.py", TRAIN), env)
        until(lambda: ended(runs))

    shown = command("status", runs, env=env, cwd=tmp_path).stdout
    assert (done.returncode, done.stderr) == (0, "")
    assert alerts(runs) == RAISED
    assert "2 alerts, last " in shown
    assert "trainer/kl is NaN (error)" in shown


def test_the_launcher_takes_the_rules_of_its_environment(tmp_path: Path) -> None:
    runs, train = tmp_path / "runs", script(tmp_path / "train.py", TRAIN)

    done = command(
        "run", "--exporters", "file", "--", sys.executable, str(train),
        env={**CLEAN, "OTEL_BRIDGE_DIR": str(runs), "OTEL_BRIDGE_ALERTS": RULES}, cwd=tmp_path,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert alerts(runs) == RAISED


def test_a_service_watches_all_its_runs_by_its_own_rules(tmp_path: Path) -> None:
    served = {
        **CLEAN,
        "OTEL_BRIDGE_DIR": str(tmp_path / "served"),
        "OTEL_BRIDGE_ALERTS": RULES,
    }

    with service(tmp_path, served, "--exporters", "file") as running:
        sent = environment(
            tmp_path / "here", "otlp", OTEL_EXPORTER_OTLP_ENDPOINT=running.grpc
        )
        done = run(script(tmp_path / "train.py", TRAIN), sent)
        until(lambda: ended(tmp_path / "served"))
        running.end()

    assert done.returncode == 0, done.stderr
    assert alerts(tmp_path / "served") == RAISED


def test_a_rule_that_cannot_be_used_is_an_error_of_init(tmp_path: Path) -> None:
    done = run(
        script(tmp_path / "train.py", TRAIN),
        environment(tmp_path / "runs", OTEL_BRIDGE_ALERTS="kl=0.2"),
    )

    assert done.returncode == 1
    assert (
        "OTEL_BRIDGE_ALERTS='kl=0.2': 'kl=0.2' is not a rule; expected nan, stalled:DURATION"
        in done.stderr
    )
    assert not list((tmp_path / "runs").glob("*/segments/*"))


SILENT = """
import sys, otel_bridge

run = otel_bridge.init("alerts", "one", role="trainer")
run.log({"loss": 1.0}, step=3)
sys.stdin.readline()
run.finish(timeout_s=60)
"""


@pytest.mark.long
def test_a_stalled_role_is_noticed_once_though_the_bridge_is_killed_meanwhile(
    tmp_path: Path,
) -> None:
    runs = tmp_path / "runs"
    env = environment(runs, OTEL_BRIDGE_ALERTS="stalled:1s")

    with no_bridge_left(runs):
        job = start(script(tmp_path / "train.py", SILENT), env)
        report_when(runs, lambda report: report.position)
        for pid in bridges(runs):
            os.kill(pid, signal.SIGKILL)
        until(lambda: not bridges(runs))
        # A training program starts the next bridge; here it waits, and another process of the run does.
        helper = 'import otel_bridge; otel_bridge.init("alerts", "one", role="judge").finish(timeout_s=0)'
        second = run(script(tmp_path / "judge.py", helper), env)
        report_when(runs, lambda report: report.alerts)
        for pid in bridges(runs):
            os.kill(pid, signal.SIGKILL)
        assert job.stdin is not None
        job.stdin.write(b"\n")
        job.stdin.flush()
        job.wait()
        until(lambda: ended(runs))

    assert second.returncode == 0, second.stderr
    assert alerts(runs) == [("trainer sends no rows", "error", 3)]


@pytest.mark.long
def test_every_tracker_shows_the_alert_of_a_rule_once_after_kills_of_the_bridge(
    tmp_path: Path,
) -> None:
    runs, train = tmp_path / "runs", script(tmp_path / "train.py", TRAIN)
    uri = mlflow_reading.database(tmp_path)
    env = environment(
        runs, "wandb,mlflow,trackio", MLFLOW_TRACKING_URI=uri, WANDB_MODE="offline",
        TRACKIO_DIR=str(tmp_path / "trackio"), MLFLOW_DISABLE_TELEMETRY="true", OTEL_BRIDGE_ALERTS=RULES,
    )  # fmt: skip

    drain = script(
        tmp_path / "drain.py",
        f"from otel_bridge.cli import main; main(['drain', {str(runs)!r}])",
    )
    with no_bridge_left(runs):
        assert run(train, {**env, "OTEL_BRIDGE_OFFLINE": "1"}).returncode == 0
        for _ in range(2):  # killed while it reads or writes
            killed = start(drain, env)
            report_when(runs, lambda report: report.position)
            killed.kill()
            killed.wait()
        drained = command("drain", runs, env=env, cwd=tmp_path)

    folder, run_id = only_folder(runs), run_id_of("alerts", "one")
    info = RunInfo(id=run_id, project="alerts", name="one", folder=folder.path)
    report = read_report(folder)
    assert drained.returncode == 0, drained.stdout + drained.stderr
    assert report is not None
    assert (report.alerts, report.last_alert["title"]) == (2, "trainer/kl is NaN")
    expected = [("trainer/kl above 0.2", "warn"), ("trainer/kl is NaN", "error")]
    assert sorted(trackio_store.held_in(tmp_path / "trackio", info).alerts) == expected
    assert sorted(mlflow_reading.contents(uri, info).alerts) == expected
    assert (
        sorted(set(wandb_reading.offline_contents(folder.path, run_id).alerts))
        == expected
    )
