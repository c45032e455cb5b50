"""Alerts reach the webhook of the environment once, by `init`, `run` and `serve`, across kills of the bridge."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from otel_bridge.journal.report import read_report
from support.collector.service_process import service
from support.free_ports import free_port
from support.trackers.webhook_server import webhook
from support.trainers.e2e_jobs import (
    CLEAN,
    bridges,
    command,
    ended,
    environment,
    no_bridge_left,
    only_folder,
    report_when,
    rows,
    run,
    script,
    until,
)

pytestmark = pytest.mark.slow

TRAIN = """
import otel_bridge

run = otel_bridge.init("alerts", "one", role="trainer")
for step, kl in enumerate([0.1, 0.5, 0.5]):
    run.log({"kl": kl}, step=step)
run.alert("by hand", "see the log", level="info")
run.finish(timeout_s=60)
"""
RULE = {"OTEL_BRIDGE_ALERTS": "trainer/kl>0.2"}
POSTED = ["trainer/kl above 0.2", "by hand"]


def test_a_plain_program_posts_its_alerts_and_the_address_is_nowhere(
    tmp_path: Path,
) -> None:
    runs = tmp_path / "runs"

    with webhook(503) as running, no_bridge_left(runs):
        env = environment(
            runs, OTEL_BRIDGE_ALERT_WEBHOOK=running.url, OTEL_BRIDGE_QUIET="", **RULE
        )
        done = run(script(tmp_path / "train.py", TRAIN), env)
        until(lambda: ended(runs))
        shown = [
            command(*words, env=env, cwd=tmp_path)
            for words in (("status", runs), ("status", "--json", runs), ("doctor",))
        ]

    texts = [done.stdout, done.stderr, *(one.stdout + one.stderr for one in shown)]
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert running.titles == [
        POSTED[0],
        *POSTED,
    ]  # the first was refused, and posted again
    assert [text for text in texts if "SECRET" in text] == []
    assert [one for one in files if b"SECRET" in one] == []
    assert "OTEL_BRIDGE_ALERT_WEBHOOK" in shown[2].stdout


@pytest.mark.long
def test_the_launcher_posts_and_so_does_a_service_for_all_its_runs(
    tmp_path: Path,
) -> None:
    train = script(tmp_path / "train.py", TRAIN)
    with webhook() as running:
        env = {
            **CLEAN,
            **RULE,
            "OTEL_BRIDGE_DIR": str(tmp_path / "here"),
            "OTEL_BRIDGE_ALERT_WEBHOOK": running.url,
        }
        done = command(
            "run",
            "--exporters",
            "file",
            "--",
            sys.executable,
            str(train),
            env=env,
            cwd=tmp_path,
        )
    with webhook() as other:
        served = {
            **CLEAN,
            **RULE,
            "OTEL_BRIDGE_DIR": str(tmp_path / "served"),
            "OTEL_BRIDGE_ALERT_WEBHOOK": other.url,
        }
        with service(tmp_path, served, "--exporters", "file") as listening:
            sent = run(
                train,
                environment(
                    tmp_path / "sent",
                    "otlp",
                    OTEL_EXPORTER_OTLP_ENDPOINT=listening.grpc,
                ),
            )
            until(lambda: ended(tmp_path / "served"))
            listening.end()

    assert (done.returncode, sent.returncode) == (0, 0), done.stderr + sent.stderr
    assert (running.titles, other.titles) == (POSTED, POSTED)


def test_a_proxy_of_the_environment_gets_no_alert_that_is_for_this_machine(
    tmp_path: Path,
) -> None:
    runs = tmp_path / "runs"
    proxies = {"HTTP_PROXY": f"http://127.0.0.1:{free_port()}"}  # where nothing listens

    with webhook() as running, no_bridge_left(runs):
        env = environment(
            runs, OTEL_BRIDGE_ALERT_WEBHOOK=running.url, **RULE, **proxies
        )
        run(script(tmp_path / "train.py", TRAIN), env)
        until(lambda: ended(runs))

    assert running.titles == POSTED


def test_a_bridge_that_is_killed_while_it_waits_for_the_answer_posts_no_alert_twice(
    tmp_path: Path,
) -> None:
    runs, train = (
        tmp_path / "runs",
        script(tmp_path / "train.py", TRAIN.replace("timeout_s=60", "timeout_s=0")),
    )

    with webhook("hang") as running, no_bridge_left(runs):
        env = environment(runs, OTEL_BRIDGE_ALERT_WEBHOOK=running.url, **RULE)
        run(train, env)
        assert running.came.wait(60)
        for pid in bridges(runs):
            os.kill(pid, signal.SIGKILL)
        until(lambda: not bridges(runs))
        drained = command("drain", runs, env=env, cwd=tmp_path)

    report = read_report(only_folder(runs))
    assert drained.returncode == 0, drained.stdout + drained.stderr
    assert running.titles == POSTED
    assert report is not None
    assert list(report.exporters["webhook"].left_out.values()) == [1]


def test_a_webhook_that_was_withdrawn_blocks_itself_alone(tmp_path: Path) -> None:
    runs = tmp_path / "runs"

    with webhook(*[404] * 100) as running, no_bridge_left(runs):
        env = environment(
            runs, OTEL_BRIDGE_ALERT_WEBHOOK=running.url, OTEL_BRIDGE_QUIET="", **RULE
        )
        done = run(script(tmp_path / "train.py", TRAIN), env)
        report = report_when(
            runs, lambda report: report.exporters["webhook"].state == "blocked"
        )
        running.answers.clear()
        drained = command("drain", runs, env=env, cwd=tmp_path)

    assert (done.returncode, report.exporters["file"].rows) == (0, 3)
    assert "webhook is blocked" in done.stderr
    assert "the webhook answered HTTP 404" in done.stderr
    assert "check OTEL_BRIDGE_ALERT_WEBHOOK where the bridge runs" in done.stderr
    assert drained.returncode == 0, drained.stdout + drained.stderr
    assert running.titles[-2:] == POSTED


def test_without_an_exporter_nothing_is_posted_until_one_is_chosen(
    tmp_path: Path,
) -> None:
    runs, train = tmp_path / "runs", script(tmp_path / "train.py", TRAIN)

    with webhook() as running:
        env = environment(runs, "", OTEL_BRIDGE_ALERT_WEBHOOK=running.url, **RULE)
        assert run(train, env).returncode == 0
        before = list(running.titles)
        drained = command("drain", "--exporters", "file", runs, env=env, cwd=tmp_path)
        none = run(train, {**env, "OTEL_BRIDGE_EXPORTERS": "none"})

    assert (before, drained.returncode, none.returncode) == ([], 0, 0)
    assert running.titles == POSTED


@pytest.mark.long
def test_alerts_that_a_drain_posts_of_a_run_without_an_exporter_cost_no_record(
    tmp_path: Path,
) -> None:
    runs, train = tmp_path / "runs", script(tmp_path / "train.py", TRAIN)

    with webhook() as running:
        env = environment(runs, "", OTEL_BRIDGE_ALERT_WEBHOOK=running.url, **RULE)
        assert run(train, env).returncode == 0
        posted = command("drain", "--exporters", "webhook", runs, env=env, cwd=tmp_path)
        status = command("status", runs, env=env, cwd=tmp_path)
        drained = command("drain", "--exporters", "file", runs, env=env, cwd=tmp_path)

    assert (posted.returncode, running.titles) == (1, POSTED), (
        posted.stdout + posted.stderr
    )
    assert (
        "webhook takes alerts only; no exporter is chosen; pass --exporters"
        in posted.stdout
    )
    assert (
        f"  otel-bridge drain --exporters trackio {only_folder(runs).path}\n"
        in status.stdout
    )
    assert (drained.returncode, rows(runs, "trainer/kl")) == (0, [0, 1, 2]), (
        drained.stdout
    )


def test_a_run_may_have_alerts_alone(tmp_path: Path) -> None:
    runs = tmp_path / "runs"

    with webhook() as running, no_bridge_left(runs):
        env = environment(
            runs, "webhook", OTEL_BRIDGE_ALERT_WEBHOOK=running.url, **RULE
        )
        done = run(script(tmp_path / "train.py", TRAIN), env)
        until(lambda: ended(runs))

    assert (done.returncode, running.titles) == (0, POSTED), done.stderr
