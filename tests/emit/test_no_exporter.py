"""Nothing chosen is not nothing recorded: such a run is appended, and its lines name how to deliver it."""

from __future__ import annotations

import re
import shlex
import signal
from pathlib import Path

import pytest

import otel_bridge
from otel_bridge.emit import startup
from otel_bridge.journal.folder import run_folders
from otel_bridge.journal.locks import probe
from otel_bridge.journal.report import ExporterReport, Report, write_report
from support.trainers.e2e_jobs import (
    bridges,
    command,
    environment,
    lines,
    rows,
    run,
    script,
    start,
    until,
)
from support.trainers.emit_samples import CLEAN, environment_of, seen_in

KILLED = """
import os, signal, otel_bridge
run = otel_bridge.init("forgot", "one", config={"lr": 0.1})
for step in range(20):
    run.log({"loss": float(step)}, step=step)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_a_killed_run_without_an_exporter_is_delivered_by_the_command_that_its_line_names(
    tmp_path: Path,
) -> None:
    env = environment(
        tmp_path / "my runs", "", OTEL_BRIDGE_QUIET="0", OTEL_BRIDGE_END_GRACE_S="0"
    )

    done = run(script(tmp_path / "train.py", KILLED), env)

    (folder,) = run_folders(tmp_path / "my runs")
    assert done.returncode == -signal.SIGKILL
    assert done.stderr.count("\n") == 3
    found = re.search(
        r"deliver with: (otel-bridge drain --exporters trackio \S.*)", done.stderr
    )
    assert found is not None, done.stderr
    assert (
        "OTEL_BRIDGE_EXPORTERS to some of: trackio, mlflow, wandb, file; none records nothing"
        in done.stderr
    )
    assert not probe(folder.lock_path)
    _, drain, *arguments = shlex.split(found[1].replace("trackio", "file"))
    drained = command(drain, *arguments, env=env, cwd=tmp_path)
    assert drained.returncode == 0, drained.stdout + drained.stderr
    assert rows(tmp_path / "my runs") == list(range(20))
    assert [
        line["config"]
        for line in lines(tmp_path / "my runs")
        if line["kind"] == "config"
    ][-1:] == [{"lr": 0.1}]
    assert [
        line["status"] for line in lines(tmp_path / "my runs") if line["kind"] == "end"
    ] == ["killed"]


OWNER = """
import otel_bridge, sys
run = otel_bridge.init("forgot", "joined", role="trainer")
run.log({"loss": 1.0}, step=1)
print("began", flush=True)
sys.stdin.readline()
run.finish(timeout_s=60)
"""
JOINING = """
import otel_bridge
run = otel_bridge.init("forgot", "joined", role="explorer")
run.log({"reward": 2.0}, step=1)
assert run.flush(60)
"""


@pytest.mark.slow
def test_a_process_that_forgets_the_exporter_is_delivered_by_the_bridge_of_its_run(
    tmp_path: Path,
) -> None:
    base = tmp_path / "runs"
    owner = start(script(tmp_path / "owner.py", OWNER), environment(base))
    assert owner.stdout is not None
    assert owner.stdin is not None
    owner.stdout.readline()
    until(lambda: bridges(base))
    until(lambda: probe(run_folders(base)[0].lock_path))

    joined = run(
        script(tmp_path / "join.py", JOINING),
        environment(base, "", OTEL_BRIDGE_QUIET="0"),
    )
    owner.communicate(b"\n")

    assert joined.returncode == 0, joined.stderr
    assert "which the run's bridge delivers; no exporter chosen here" in joined.stderr
    assert rows(base, "explorer/reward") == [1]


def test_such_a_run_has_a_bound_of_its_own_which_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(startup, "UNCHOSEN_BYTES", 200_000)
    with environment_of({**CLEAN, "OTEL_BRIDGE_DIR": str(tmp_path)}):
        run = otel_bridge.init("p", "n")
        for _ in range(1_000):
            run.log({f"key_{n}": 1.0 for n in range(10)})
        run.finish()

    (seen,) = seen_in(tmp_path)
    assert 0 < len(seen.rows) < 500
    assert seen.event("rl.dropped").body == {"run_full": 1_000 - len(seen.rows)}
    assert "beyond 1 GiB of a run without an exporter" in capsys.readouterr().err


def test_where_it_cannot_be_appended_the_program_goes_on_and_it_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    with environment_of({**CLEAN, "OTEL_BRIDGE_DIR": str(tmp_path / "file" / "runs")}):
        run = otel_bridge.init("p", "n")
        run.log({"loss": 1.0})

        assert not run.recording
    assert "no exporter chosen, and nothing is recorded: " in capsys.readouterr().err


@pytest.mark.parametrize("resumed", [False, True])
def test_a_held_run_names_the_same_command_when_it_begins_and_when_it_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], resumed: bool
) -> None:
    base = tmp_path / "my runs"
    with environment_of(
        {
            **CLEAN,
            "OTEL_BRIDGE_DIR": str(base),
            "OTEL_BRIDGE_QUIET": "0",
            "OTEL_BRIDGE_OFFLINE": "1",
        }
    ):
        first = otel_bridge.init("p", "n")
        assert first.recorder is not None
        folder = first.recorder.folder
        first.finish()
        if resumed:
            write_report(folder, Report(exporters={"file": ExporterReport()}))
        capsys.readouterr()

        otel_bridge.init("p", "n").finish()

    lines = capsys.readouterr().err.splitlines()
    command = (
        f"otel-bridge drain '{base}'"
        if resumed
        else f"otel-bridge drain --exporters trackio '{folder.path}'"
    )
    assert (
        len([line for line in lines if line.endswith(f"deliver with: {command}")]) == 1
    )
    assert lines[-1].endswith(f"deliver them with: {command}")
