"""When bridges begin and end: one for a run folder, none left over, none missing."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from otel_bridge.bridge.options import BridgeOptions
from otel_bridge.bridge.serving.lease import FolderLease
from otel_bridge.bridge.serving.run_outcome import SegmentsRead
from otel_bridge.bridge.supervisor import BridgeSupervisor
from otel_bridge.emit.bridge_process.spawn import bridge_environment
from otel_bridge.journal.folder import run_folders
from otel_bridge.records import run_id_of
from support.trackers import trackio_store
from support.trainers.e2e_jobs import (
    acked,
    bridges,
    ended,
    environment,
    lines,
    no_bridge_left,
    only_folder,
    report_when,
    rows,
    run,
    script,
    start,
    status,
    until,
)
from support.waiting import HANG_S

pytestmark = pytest.mark.slow

ROLE = """
import sys, time, otel_bridge
role, begin = sys.argv[1], float(sys.argv[2])
time.sleep(max(begin - time.time(), 0))
run = otel_bridge.init("life", "roles", role=role)
for step in range(100):
    run.log({"loss": step / 2}, step=step)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("rounds", [1, pytest.param(3, marks=pytest.mark.long)])
def test_eight_inits_at_once_end_in_one_bridge(tmp_path: Path, rounds: int) -> None:
    code = script(tmp_path / "train.py", ROLE)
    with no_bridge_left(tmp_path):
        for number in range(rounds):
            base = tmp_path / f"runs{number}"
            begin = str(time.time() + 1.5)
            roles = [f"r{index}" for index in range(8)]
            jobs = [start(code, environment(base), role, begin) for role in roles]
            for job in jobs:
                assert job.stdout is not None
                assert job.stdout.readline() == b"ready\n", job.communicate()
            report_when(
                base,
                lambda report: (
                    report.exporters["file"].written == report.position
                    and report.rows == 800
                ),
            )
            until(lambda base=base: len(bridges(base)) == 1)

            for job in jobs:
                job.communicate(b"", timeout=HANG_S)
            until(lambda base=base: ended(base) and not bridges(base))

            got = Counter(
                (line["role"], line["step"])
                for line in lines(base)
                if line["kind"] == "row"
            )
            assert got == Counter((role, step) for role in roles for step in range(100))
            assert status(base) == ["finished"]


def test_two_roles_started_by_hand_share_one_bridge_and_one_tracker_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in trackio_store.ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    code, base = script(tmp_path / "train.py", ROLE), tmp_path / "runs"
    env = environment(base, "trackio,file", **trackio_store.ENVIRONMENT)
    with no_bridge_left(tmp_path):
        jobs = [start(code, env, role, "0") for role in ("trainer", "explorer")]
        report_when(
            base,
            lambda report: (
                report.steps == {"trainer/step": 99, "explorer/step": 99}
                and all(
                    one.written == report.position for one in report.exporters.values()
                )
            ),
        )
        holders = bridges(base)
        for job in jobs:
            job.communicate(b"", timeout=HANG_S)
        until(lambda: ended(base) and not bridges(base))

    store = trackio_store.storage().SQLiteStorage
    assert len(holders) == 1
    assert [folder.run_id for folder in run_folders(base)] == [
        run_id_of("life", "roles")
    ]
    assert store.get_runs("life") == ["roles"]
    logs = store.get_logs("life", "roles", run_id=run_id_of("life", "roles"))
    for role in ("trainer", "explorer"):
        assert [row["step"] for row in logs if f"{role}/loss" in row] == list(
            range(100)
        )


SHORT = """
import os, sys, otel_bridge
otel_bridge.init, otel_bridge.Rollout
for number in range(int(sys.argv[1]), int(sys.argv[2])):
    pid = os.fork()
    if pid == 0:
        run = otel_bridge.init("life", f"short{number}")
        run.log({"loss": 1.0}, step=number)
        run.finish(timeout_s=300)
        os._exit(0)
    os.waitpid(pid, 0)
"""


@pytest.mark.long
def test_60_short_runs_leave_no_process_behind(tmp_path: Path) -> None:
    code, base = script(tmp_path / "train.py", SHORT), tmp_path / "runs"
    with no_bridge_left(tmp_path):
        jobs = [
            start(code, environment(base), str(first), str(first + 15))
            for first in range(0, 60, 15)
        ]
        for job in jobs:
            _, errors = job.communicate(timeout=HANG_S)
            assert job.returncode == 0, errors

        until(lambda: not bridges(base))

    assert sorted(rows(base)) == list(range(60))
    assert status(base) == ["finished"] * 60


LATE = """
import sys, otel_bridge
run = otel_bridge.init("life", "race")
for step in range(int(sys.argv[1]), int(sys.argv[1]) + 50):
    run.log({"loss": step / 2}, step=step)
run.finish(timeout_s=0)
"""


@pytest.mark.parametrize("order", ["before the unlock", "after the last look"])
def test_a_process_that_comes_while_the_bridge_ends_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    code, base = script(tmp_path / "train.py", LATE), tmp_path / "runs"
    env = environment(base)
    came: list[list[int]] = []

    def come() -> None:
        # An option: a Python of its own, which ends later than its bridge is in the list.
        done = run(code, env, "50", options=["-u"])
        assert done.returncode == 0, done.stderr
        came.append(bridges(base))

    release, anything_new = FolderLease.release, SegmentsRead.anything_new

    def releasing(self: FolderLease) -> None:
        if not came and order == "before the unlock":
            come()
        release(self)

    def looking(self: SegmentsRead) -> bool:
        found = anything_new(self)
        if not came and order == "after the last look":
            come()
        return found

    with no_bridge_left(tmp_path):
        first = run(code, {**env, "OTEL_BRIDGE_OFFLINE": "1"}, "0")
        monkeypatch.setattr(FolderLease, "release", releasing)
        monkeypatch.setattr(SegmentsRead, "anything_new", looking)
        options = BridgeOptions.read(bridge_environment(env), tmp_path)
        BridgeSupervisor(
            base, options, folders=lambda: run_folders(base), until_done=True
        ).serve()
        until(
            lambda: rows(base) == list(range(100)) and ended(base) and not bridges(base)
        )

    assert first.returncode == 0, first.stderr
    # Where the lock was still held nobody was started: the bridge that ended found it. Else the newcomer saw it free.
    assert [len(one) for one in came] == [0 if order == "before the unlock" else 1]


def test_a_folder_deleted_while_the_job_runs_is_begun_again_and_the_old_bridge_ends(
    tmp_path: Path,
) -> None:
    code = script(
        tmp_path / "train.py",
        """
        import time
        acks = Acks(sys.argv[1])
        run = otel_bridge.init("life", "deleted")
        step = 0
        while not os.path.exists(sys.argv[1] + ".stop"):
            acks.log(run, {"loss": step / 2}, step)
            step += 1
            time.sleep(0.01)
        """,
        acknowledging=True,
    )
    base, acks = tmp_path / "runs", tmp_path / "acks"
    with no_bridge_left(tmp_path):
        job = start(code, environment(base), str(acks))
        report_when(base, lambda report: report.rows > 20)
        before = bridges(base)

        _delete(only_folder(base).path)
        deleted_at = len(acked(acks))
        report_when(base, lambda report: report.rows > 20)
        until(lambda: not set(before) & set(bridges(base)))
        Path(f"{acks}.stop").touch()
        _, errors = job.communicate(timeout=HANG_S)
        until(lambda: ended(base) and not bridges(base))

    assert job.returncode == 0, errors
    assert b"was moved or deleted; continuing in a new folder" in errors
    got, last = rows(base), len(acked(acks))
    # What was appended in the second before it was noticed went with the folder; what the old bridge had read by then
    # it may have delivered still.
    assert got == sorted(set(got))
    lost = set(range(last)) - set(got)
    assert not lost or max(lost) - deleted_at < 200


def _delete(folder: Path) -> None:
    """Delete as ``rm -rf`` does, against a bridge that writes into it."""
    for _ in range(50):
        with contextlib.suppress(OSError):
            shutil.rmtree(folder)
            return
    raise AssertionError(f"{folder} cannot be deleted")


def test_a_second_init_of_another_name_finishes_the_first_run(tmp_path: Path) -> None:
    code = script(
        tmp_path / "train.py",
        """
        import otel_bridge
        for name in ("first", "second"):
            run = otel_bridge.init("life", name)
            run.log({"loss": 0.5}, step=1)
        """,
    )
    base = tmp_path / "runs"
    with no_bridge_left(tmp_path):
        done = run(code, environment(base))
        until(lambda: ended(base) and not bridges(base))

    assert done.returncode == 0, done.stderr
    by_run = {folder.run_id: folder for folder in run_folders(base)}
    assert sorted(by_run) == sorted(
        run_id_of("life", name) for name in ("first", "second")
    )
    assert (rows(base), status(base)) == ([1, 1], ["finished", "finished"])


def test_a_killed_bridge_is_replaced_by_the_trainer_that_goes_on(
    tmp_path: Path,
) -> None:
    code = script(
        tmp_path / "train.py",
        """
        import time
        run = otel_bridge.init("life", "again")
        step = 0
        while not os.path.exists(sys.argv[1]):
            run.log({"loss": step / 2}, step=step)
            step += 1
            time.sleep(0.01)
        print(step)
        """,
        acknowledging=True,
    )
    base = tmp_path / "runs"
    with no_bridge_left(tmp_path):
        job = start(code, environment(base), str(tmp_path / "stop"))
        (bridge,) = until(lambda: _settled(base))
        os.kill(bridge, signal.SIGKILL)
        until(lambda: bridge not in bridges(base))
        until(lambda: _settled(base))
        (tmp_path / "stop").touch()
        said, errors = job.communicate(timeout=HANG_S)
        until(lambda: ended(base) and not bridges(base))

    assert job.returncode == 0, errors
    assert rows(base) == list(range(int(said)))


def _settled(base: Path) -> list[int]:
    """Return the one bridge that wrote the report, ``[]`` while there is none."""
    found = bridges(base)
    if len(found) != 1:
        return []
    report = report_when(base, lambda report: report)
    return found if report.bridge.pid == found[0] else []


def test_a_bridge_asked_to_end_by_a_signal_commits_and_the_next_goes_on(
    tmp_path: Path,
) -> None:
    code, base = script(tmp_path / "train.py", ROLE), tmp_path / "runs"
    with no_bridge_left(tmp_path):
        job = start(code, environment(base), "trainer", "0")
        assert job.stdout is not None
        job.stdout.readline()
        (bridge,) = until(lambda: _settled(base))

        os.kill(bridge, signal.SIGTERM)
        until(lambda: not bridges(base))
        job.communicate(b"", timeout=HANG_S)
        until(lambda: ended(base) and not bridges(base))

    assert rows(base, "trainer/loss") == list(range(100))
    assert status(base) == ["finished"]


def test_output_that_is_captured_ends_with_the_script_and_not_with_the_bridge(
    tmp_path: Path,
) -> None:
    code = script(
        tmp_path / "train.py",
        """
        import os, otel_bridge
        run = otel_bridge.init("life", "captured")
        run.log({"loss": 1.0}, step=0)
        assert run.flush(300)
        print("done", flush=True)
        os._exit(0)
        """,
    )
    base = tmp_path / "runs"
    with no_bridge_left(tmp_path):
        done = subprocess.run(
            [sys.executable, str(code)],
            env=environment(base, OTEL_BRIDGE_END_GRACE_S="60"),
            capture_output=True,
            timeout=HANG_S,
            check=False,
        )
        alive = bridges(base)

    assert (done.stdout, len(alive)) == (b"done\n", 1)
