"""One bridge for the handles of a process: who serves, who ends, and what a kill leaves."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from otel_bridge.bridge.serving.companions import Companions
from otel_bridge.journal.folder import RunFolder, companions_mark, put_file, run_folders
from otel_bridge.journal.locks import probe
from support.bridge.bridge_doubles import Process
from support.trainers.e2e_jobs import (
    bridges,
    ended,
    environment,
    rows,
    run,
    script,
    start,
    status,
    until,
)


def _noted(leader: RunFolder, *run_ids: str) -> list[RunFolder]:
    """Return new run folders with a note each."""
    notes = leader.companions_dir("1-2")
    folders = [RunFolder(leader.base, run_id) for run_id in run_ids]
    for folder in folders:
        folder.create()
        notes.mkdir(exist_ok=True)
        put_file(notes / folder.path.name, b"")
    return folders


def test_only_one_bridge_serves_the_noted_runs(tmp_path: Path) -> None:
    leader = RunFolder(tmp_path, "a")
    folders = _noted(leader, "a", "b")
    first, second = Companions(leader, "1-2"), Companions(leader, "1-2")

    assert (first.take(), second.take()) == (True, False)

    assert [folder.path for folder in first.folders()] == [
        folder.path for folder in folders
    ]


@pytest.mark.parametrize("what", ["a note", "a record", "nothing"])
def test_what_comes_while_the_bridge_ends_is_seen_after_its_lock_is_free(
    tmp_path: Path, what: str
) -> None:
    leader = RunFolder(tmp_path, "a")
    [folder] = _noted(leader, "a")
    process = Process.start(folder, "file")
    companions = Companions(leader, "1-2")
    assert companions.take()
    companions.folders()

    if what == "a note":
        _noted(leader, "b")
    elif what == "a record":
        process.log(1)

    assert companions.more_came() is (what != "nothing")
    other = Companions(leader, "1-2")
    assert other.take() is (what == "nothing")
    process.end()


def test_notes_of_processes_that_ended_are_deleted(tmp_path: Path) -> None:
    leader = RunFolder(tmp_path, "a")
    leader.create()
    alive = companions_mark()
    for mark in ("1-2", "999999-1", alive):
        leader.companions_dir(mark).mkdir()

    Companions(leader, "1-2").delete_left()

    assert sorted(path.name for path in leader.path.glob("companions-*")) == sorted(
        ["companions-1-2", f"companions-{alive}"]
    )


def test_a_line_about_a_companion_is_in_its_own_log_too(tmp_path: Path) -> None:
    leader = RunFolder(tmp_path, "a")
    _, other = _noted(leader, "a", "b")
    companions = Companions(leader, "1-2")
    companions.folders()

    for line in (
        "a: the bridge 7 begins",
        "b: MLflow is blocked: no login",
        "unknown: c",
    ):
        companions.log(line)

    assert other.log_path.read_text() == "b: MLflow is blocked: no login\n"
    assert not leader.log_path.exists()


TRIALS = """
import os, sys, time, otel_bridge
trials = [otel_bridge.init("search", f"t{number}", handle=True) for number in range(8)]
for step in range(10):
    for trial in trials:
        trial.log({"loss": step}, step=step)
print("open", flush=True)
sys.stdin.readline()
for step in range(10, 20):
    for trial in trials:
        trial.log({"loss": step}, step=step)
for trial in trials[: len(trials) // 2]:
    trial.finish(timeout_s=60)
print("half", flush=True)
sys.stdin.readline()
more = otel_bridge.init("search", "late", handle=True)
more.log({"loss": 0}, step=0)
for trial in [more, *trials]:
    trial.finish(timeout_s=60)
"""


@pytest.mark.long
@pytest.mark.parametrize("killed", ["nothing", "the bridge", "the program"])
def test_one_bridge_serves_all_handles_and_a_kill_loses_no_row(
    tmp_path: Path, killed: str
) -> None:
    base = tmp_path / "runs"
    job = start(script(tmp_path / "train.py", TRIALS), environment(base))
    assert job.stdin
    assert job.stdout
    assert job.stdout.readline() == b"open\n"
    [bridge] = until(
        lambda: (
            found
            if len(found := bridges(base)) == 1 and len(rows(base)) == 80
            else None
        )
    )
    if killed == "the program":
        job.kill()
        until(lambda: ended(base))
        assert (status(base), sorted(rows(base))) == (
            ["killed"] * 8,
            sorted([*range(10)] * 8),
        )
        return
    if killed == "the bridge":
        os.kill(bridge, signal.SIGKILL)
    job.stdin.write(b"\n")
    job.stdin.flush()
    assert job.stdout.readline() == b"half\n"
    if killed == "nothing":
        assert bridges(base) == [bridge]
    job.stdin.write(b"\n")
    job.stdin.flush()

    assert job.wait() == 0

    until(lambda: ended(base) and not bridges(base))
    assert (status(base), sorted(rows(base))) == (
        ["finished"] * 9,
        sorted([*range(20)] * 8 + [0]),
    )


ONE_AFTER_THE_OTHER = """
import otel_bridge
for number in range(15):
    with otel_bridge.init("search", f"t{number}", handle=True) as trial:
        trial.log({"loss": number}, step=0)
"""


@pytest.mark.long
def test_handles_one_after_the_other_are_all_delivered_and_no_bridge_is_left(
    tmp_path: Path,
) -> None:
    base = tmp_path / "runs"

    run(script(tmp_path / "train.py", ONE_AFTER_THE_OTHER), environment(base))

    until(lambda: ended(base) and not bridges(base))
    assert (status(base), sorted(rows(base))) == (["finished"] * 15, [0] * 15)
    assert not any(probe(folder.lock_path) for folder in run_folders(base))
