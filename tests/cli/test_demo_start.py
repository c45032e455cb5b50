"""``otel-bridge demo`` where the bridge cannot start."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from otel_bridge.demo.job import Job
from support.trainers.command_runs import (
    BIN,
    PYTHON,
    call,
    ended,
    environment,
    otel_bridge,
    program,
    rows_in,
    started,
    until,
)
from support.waiting import HANG_S

WITHOUT_NUMPY = """
    import sys
    from importlib.machinery import PathFinder

    find = PathFinder.find_spec
    PathFinder.find_spec = lambda name, *where: None if name == "numpy" else find(name, *where)

    from otel_bridge.cli import main
    main(sys.argv[1:])
"""
BROKEN = """
import importlib, os, sys
if sys.argv[0] == "otel-bridge":  # the bridge; a command has its path there
    raise ImportError("no SQLite on this machine")
sys.path.remove(os.path.dirname(__file__))
del sys.modules["_sqlite3"]
sys.modules["_sqlite3"] = importlib.import_module("_sqlite3")
"""


def test_without_numpy_it_says_what_to_install(tmp_path: Path) -> None:
    bare = program(tmp_path, "bare.py", WITHOUT_NUMPY)

    shown = call(
        [PYTHON, bare, "demo", "--help"], cwd=tmp_path, env=environment(tmp_path)
    )
    done = call(
        [PYTHON, bare, "demo", "--exporters", "file"],
        cwd=tmp_path,
        env=environment(tmp_path),
    )

    install = "pip install 'otel-bridge[all]' numpy"
    said = f"Error: the demo needs numpy, for its policy, and the trackers that it shows: {install}\n"
    assert (shown.returncode, done.returncode, done.stderr) == (0, 1, said)


@pytest.mark.long
def test_a_bridge_that_does_not_start_is_said_with_the_last_line_of_its_log(
    tmp_path: Path,
) -> None:
    broken = tmp_path / "site"
    broken.mkdir()
    (broken / "_sqlite3.py").write_text(BROKEN)
    env = environment(tmp_path, PYTHONPATH=str(broken))

    done = otel_bridge(
        "demo", "--steps", "3", "--exporters", "file", cwd=tmp_path, env=env
    )

    (log,) = tmp_path.glob("otel-bridge-demo/runs/*/bridge.log")
    said = f"Error: the bridge does not start: ImportError: no SQLite on this machine (the end of {log})"
    assert (done.returncode, done.stderr.strip().splitlines()[-1]) == (1, said)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_the_roles_in_order_and_what_they_logged_is_delivered(
    tmp_path: Path, number: signal.Signals
) -> None:
    runs = tmp_path / "demo" / "runs"
    command = [
        str(BIN / "otel-bridge"),
        "demo",
        "--steps",
        "1000",
        "--exporters",
        "file",
        "--dir",
        "demo",
    ]
    with started(command, cwd=tmp_path, env=environment(tmp_path)) as demo:
        until(lambda: rows_in(runs) > 5, "some rows")
        if number == signal.SIGINT:
            os.killpg(demo.pid, number)  # as a terminal does
        else:
            demo.send_signal(number)
        said, errors = demo.communicate(timeout=HANG_S)

        report = ended(runs)

    assert (demo.returncode, errors) == (128 + number, "")
    line = "interrupted; the bridge delivers what was logged, to watch it: otel-bridge status"
    assert said.splitlines()[-1] == f"{line} {runs}"
    assert (report.status, report.rows > 5) == ("finished", True)


def test_a_role_that_cannot_be_started_leaves_no_other_one_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[subprocess.Popen[bytes]] = []
    start = subprocess.Popen

    def start_two(command: list[str], env: dict[str, str]) -> subprocess.Popen[bytes]:
        if len(begun) == 2:
            raise BlockingIOError("no further process")
        begun.append(start(command, env=env))
        return begun[-1]

    monkeypatch.setattr(subprocess, "Popen", start_two)
    job = Job(tmp_path, steps=3, seed=0, env=environment(tmp_path))
    with pytest.raises(BlockingIOError), job:
        pass

    assert len(begun) == 2
    assert None not in [process.poll() for process in begun]
