"""``otel-bridge status``: what a person and a program are given of run folders."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import ANY

import pytest

from otel_bridge.cli.status.run_state import RunState
from otel_bridge.cli.status.view import next_commands
from otel_bridge.journal.folder import LEDGER_FORMAT
from otel_bridge.journal.locks import probe
from otel_bridge.journal.report import Report
from support.bridge.gated_tracker import install
from support.trainers.command_runs import (
    call,
    environment,
    only_folder,
    otel_bridge,
    program,
    started,
    until,
)
from support.waiting import HANG_S

TRAIN = """
    import pathlib, sys, time
    import otel_bridge
    with otel_bridge.init("maths", "ppo", role="trainer") as run:
        for step in (1, 2, 3):
            run.log({"loss": step / 2}, step=step)
        pathlib.Path("ready").touch()
        while len(sys.argv) > 1 and not pathlib.Path("go").exists():
            time.sleep(0.01)
"""


def test_a_running_run_is_shown_with_its_roles_steps_and_a_blocked_tracker(
    tmp_path: Path,
) -> None:
    extra = {
        "OTEL_BRIDGE_EXPORTERS": "gated,file",
        "GATED_BLOCKED": "1",
        **install(tmp_path),
    }
    env, train = environment(tmp_path, **extra), program(tmp_path, "train.py", TRAIN)
    with started(["python", train, "wait"], cwd=tmp_path, env=env) as process:
        until(
            lambda: re.search(
                r"^file +idle", _shown(tmp_path, "gated is blocked") or "", re.MULTILINE
            ),
            "the file",
        )
        shown = until(
            lambda: _shown(tmp_path, "gated is blocked"), "the blocked tracker"
        )

        line = otel_bridge("status", "--json", cwd=tmp_path, env=environment(tmp_path))

        (tmp_path / "go").touch()
        process.wait(60)
    run_id = only_folder(tmp_path / ".otel-bridge").run_id
    lines = [text.split() for text in shown.splitlines()]
    assert lines[0] == ["maths/ppo", f"({run_id})", "running"]
    assert ["trainer", "3", "3", "1", "of", "1", "alive"] in [
        line[:7] for line in lines
    ]
    assert re.search(r"^trainer +3 +3 +1 of 1 alive +\d+ s ago$", shown, re.MULTILINE)
    assert re.search(
        r"^gated +blocked +0 +0 +3 +0 +\d+ s +\d+\.\d KiB$", shown, re.MULTILINE
    )
    assert re.search(
        r"^[\d.]+ rows/s in; \d+\.\d KiB here \(segments .*, ledger .*\)$",
        shown,
        re.MULTILINE,
    )
    assert re.search(
        rf"^space: .* of .* in {tmp_path}/.otel-bridge, held by gated$",
        shown,
        re.MULTILINE,
    )
    assert f"gated is blocked: the gate is shut; touch {tmp_path}/gate" in shown
    given = json.loads(line.stdout)
    assert (given["run_id"], given["bridge_alive"], given["report"]["status"]) == (
        run_id,
        True,
        "running",
    )
    assert given["report"]["steps"] == {"trainer/step": 3}
    assert given["report"]["exporters"]["gated"]["state"] == "blocked"
    assert given["held"]["gated"]["records"] == 3
    assert (
        given["held"]["gated"]["unwritten_unix_ns"] == given["held_since_unix_ns"] > 0
    )
    assert given["held"]["file"] == {
        "records": 0,
        "bytes": 0,
        "unwritten_unix_ns": None,
    }


def _shown(folder: Path, wanted: str, rows: int = 3) -> str | None:
    """Return what status shows once it names *wanted* and the exporter beside it has caught up."""
    done = otel_bridge("status", cwd=folder, env=environment(folder))
    caught_up = ["file", "idle", str(rows), "0", "0"] in [
        line.split()[:5] for line in done.stdout.splitlines()
    ]
    return (
        done.stdout
        if done.returncode == 0 and wanted in done.stdout and caught_up
        else None
    )


def test_an_ended_run_says_how_it_ended_and_where_it_is(tmp_path: Path) -> None:
    train = program(tmp_path, "train.py", TRAIN + "        raise RuntimeError")
    otel_bridge(
        "run",
        "--exporters",
        "file",
        "--",
        "python",
        train,
        cwd=tmp_path,
        env=environment(tmp_path),
    )
    folder = only_folder(tmp_path / ".otel-bridge")

    here = otel_bridge("status", cwd=tmp_path, env=environment(tmp_path))
    by_name = otel_bridge(
        "status", str(folder.path), cwd=tmp_path / "home", env=environment(tmp_path)
    )

    assert here.stdout == by_name.stdout
    assert here.stdout.splitlines()[0] == f"maths/ppo ({folder.run_id}) failed"
    assert f"file  cat {folder.path}/file/*.jsonl" in here.stdout


def test_a_folder_that_nobody_has_read_says_how_it_is_delivered(tmp_path: Path) -> None:
    train = program(tmp_path, "train.py", TRAIN)
    call(
        ["python", train],
        cwd=tmp_path,
        env=environment(
            tmp_path, OTEL_BRIDGE_OFFLINE="1", OTEL_BRIDGE_EXPORTERS="file"
        ),
    )
    folder = only_folder(tmp_path / ".otel-bridge")
    size_bytes = sum(segment.size_bytes for segment in folder.segments())

    done = otel_bridge("status", cwd=tmp_path, env=environment(tmp_path))
    line = otel_bridge("status", "--json", cwd=tmp_path, env=environment(tmp_path))

    first, then, space = done.stdout.splitlines()
    assert (
        first
        == f"maths/ppo ({folder.run_id}): no bridge has read it yet, {size_bytes:,} bytes wait"
    )
    assert re.fullmatch(rf"space: .* of .* in {tmp_path}/.otel-bridge", space)
    assert then == f"  otel-bridge drain {folder.path}"
    assert json.loads(line.stdout) == {
        "run_id": folder.run_id,
        "folder": str(folder.path),
        "bridge_alive": False,
        "report": None,
        "bytes": {"segments": size_bytes, "ledger": 0, "files": ANY},
        "held": {},
        "held_since_unix_ns": None,
        "unread_bytes": size_bytes,
        "refused": "",
        "unseen_senders": False,
    }


def test_a_run_whose_bridge_is_starting_or_failed_to_says_so(tmp_path: Path) -> None:
    train = program(tmp_path, "train.py", TRAIN)
    call(
        ["python", train],
        cwd=tmp_path,
        env=environment(
            tmp_path, OTEL_BRIDGE_OFFLINE="1", OTEL_BRIDGE_EXPORTERS="file"
        ),
    )
    folder = only_folder(tmp_path / ".otel-bridge")
    size_bytes = sum(segment.size_bytes for segment in folder.segments())

    folder.log_path.touch()  # as the one that starts a bridge does
    starting = otel_bridge(
        "status", cwd=tmp_path, env=environment(tmp_path)
    ).stdout.splitlines()
    os.utime(folder.log_path, (time.time() - 3600,) * 2)
    silent = otel_bridge(
        "status", cwd=tmp_path, env=environment(tmp_path)
    ).stdout.splitlines()
    folder.log_path.write_text(
        "Traceback\nModuleNotFoundError: No module named 'orjson'\n"
    )
    failed = otel_bridge(
        "status", cwd=tmp_path, env=environment(tmp_path)
    ).stdout.splitlines()
    lock = folder.lock()
    assert lock.acquire()
    locked = otel_bridge(
        "status", cwd=tmp_path, env=environment(tmp_path)
    ).stdout.splitlines()
    lock.release()

    waits, drain = f"{size_bytes:,} bytes wait", f"  otel-bridge drain {folder.path}"
    watch = f"  otel-bridge status --watch {folder.path}"
    assert starting[:2] == [
        f"maths/ppo ({folder.run_id}): its bridge is starting, {waits}",
        watch,
    ]
    assert silent[:2] == [
        f"maths/ppo ({folder.run_id}): no bridge has read it yet, {waits}",
        drain,
    ]
    said = f"its bridge's log ends: ModuleNotFoundError: No module named 'orjson' (the end of {folder.log_path})"
    assert locked[:2] == [
        f"maths/ppo ({folder.run_id}): its bridge has not reported on it yet, {waits}; {said}",
        watch,
    ]
    assert failed[:2] == [
        f"maths/ppo ({folder.run_id}): no bridge has read it yet, {waits}; {said}",
        drain,
    ]


def test_rows_that_came_after_the_last_bridge_ended_are_shown_with_the_command_that_delivers_them(
    tmp_path: Path,
) -> None:
    train = program(tmp_path, "train.py", TRAIN)
    env = environment(tmp_path, OTEL_BRIDGE_EXPORTERS="file")
    call(["python", train], cwd=tmp_path, env=env)
    folder = only_folder(tmp_path / ".otel-bridge")
    until(lambda: not probe(folder.lock_path), "the bridge's end")
    before = otel_bridge("status", cwd=tmp_path, env=env).stdout
    call(["python", train], cwd=tmp_path, env={**env, "OTEL_BRIDGE_OFFLINE": "1"})

    shown = otel_bridge("status", cwd=tmp_path, env=env).stdout
    (line,) = otel_bridge("status", "--json", cwd=tmp_path, env=env).stdout.splitlines()
    otel_bridge("drain", cwd=tmp_path, env=env)
    after = otel_bridge("status", cwd=tmp_path, env=env).stdout

    assert re.search(
        r"^[\d.]+ KiB arrived after the last bridge exited and are unread$",
        shown,
        re.MULTILINE,
    )
    assert f"  otel-bridge drain {folder.path}" in shown.splitlines()
    assert json.loads(line)["unread_bytes"] > 100
    assert not any(
        "unread" in text or "otel-bridge drain" in text for text in (before, after)
    )


@pytest.mark.long
def test_a_ledger_that_this_version_refuses_is_named_by_finish_status_and_drain(
    tmp_path: Path,
) -> None:
    train = program(tmp_path, "train.py", TRAIN)
    env = environment(tmp_path, OTEL_BRIDGE_EXPORTERS="file")
    call(["python", train], cwd=tmp_path, env=env)
    folder = only_folder(tmp_path / ".otel-bridge")
    until(lambda: not probe(folder.lock_path), "the bridge's end")
    with contextlib.closing(sqlite3.connect(folder.ledger_path)) as ledger:
        ledger.execute("PRAGMA user_version = 1")
    reason = f"{folder.ledger_path}: ledger of format 1, this version reads {LEDGER_FORMAT}; deliver the run"

    trained = call(["python", train], cwd=tmp_path, env=env)
    shown = otel_bridge("status", cwd=tmp_path, env=env)
    (line,) = otel_bridge("status", "--json", cwd=tmp_path, env=env).stdout.splitlines()
    drained = otel_bridge("drain", cwd=tmp_path, env=env)

    assert trained.returncode == 0
    assert f"not delivered yet: {reason}" in trained.stderr
    assert f"this version cannot serve the run: {reason}" in shown.stdout
    assert "otel-bridge drain" not in shown.stdout
    assert json.loads(line)["refused"].startswith(reason)
    assert (
        drained.returncode,
        f"not everything is delivered: {reason}" in drained.stdout,
    ) == (
        1,
        True,
    )


def test_watching_in_a_pipe_says_each_change_once_and_ends_on_an_interrupt(
    tmp_path: Path,
) -> None:
    env, train = (
        environment(tmp_path, OTEL_BRIDGE_EXPORTERS="file"),
        program(tmp_path, "train.py", TRAIN),
    )
    with started(
        ["otel-bridge", "status", "--watch"], cwd=tmp_path, env=env
    ) as watching:
        call(["python", train], cwd=tmp_path, env=env)
        assert watching.stdout is not None
        lines = []
        while not any(
            " finished " in line and "ended, 0 waiting" in line for line in lines
        ):
            lines.append(watching.stdout.readline())
            assert lines[-1], f"it ended with {watching.wait(HANG_S)}: {lines}"

        watching.send_signal(signal.SIGINT)
        code = watching.wait(20)

    run_id = only_folder(tmp_path / ".otel-bridge").run_id
    assert code == 0
    assert (
        lines[-1]
        == f"maths/ppo ({run_id}) finished trainer/step=3; file ended, 0 waiting\n"
    )
    assert len(lines) == len(set(lines))


def test_a_service_is_asked_at_its_address_with_its_token(tmp_path: Path) -> None:
    secret = environment(tmp_path, OTEL_BRIDGE_TOKEN="s3cret")
    address = (
        "--grpc",
        "off",
        "--http",
        "127.0.0.1:0",
        "--exporters",
        "file",
        "--dir",
        str(tmp_path / "served"),
    )
    with started(
        ["otel-bridge", "serve", *address], cwd=tmp_path, env=secret
    ) as service:
        assert service.stderr is not None
        url = re.findall(r"http://[^\s;]+", service.stderr.readline())[-1]
        train = program(tmp_path, "train.py", TRAIN)
        sending = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": url,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        }
        call(["python", train], cwd=tmp_path, env={**secret, **sending})

        shown = until(
            lambda: _with(
                "trainer  3", otel_bridge("status", url, cwd=tmp_path, env=secret)
            ),
            "the run",
        )
        refused = otel_bridge("status", url, cwd=tmp_path, env=environment(tmp_path))
        elsewhere = otel_bridge("status", f"{url}/v1", cwd=tmp_path, env=secret)

    gone = otel_bridge("status", url, cwd=tmp_path, env=secret)
    place = url.removeprefix("http://")
    assert "maths/ppo" in shown
    assert f"in {tmp_path}/served at {url}" in shown
    assert (refused.returncode, refused.stderr) == (
        1, f"Error: {url} refuses access; set OTEL_BRIDGE_TOKEN to a token of the service\n",
    )  # fmt: skip
    assert f"{url}/v1 answered 404" in elsewhere.stderr
    assert (
        gone.returncode,
        "does not answer" in gone.stderr,
        place in gone.stderr,
    ) == (
        1,
        True,
        True,
    )


def _with(wanted: str, done: subprocess.CompletedProcess[str]) -> str | None:
    return (
        done.stdout
        if " ".join(wanted.split()) in " ".join(done.stdout.split())
        else None
    )


def test_a_malformed_address_of_a_service_is_said_in_one_line(tmp_path: Path) -> None:
    done = otel_bridge("status", "http://[bad", cwd=tmp_path, env=environment(tmp_path))

    assert (done.returncode, done.stderr) == (
        1,
        "Error: http://[bad does not answer (InvalidURL); is `otel-bridge serve` there?\n",
    )


def test_the_commands_of_each_run_stand_under_it(tmp_path: Path) -> None:
    train = program(tmp_path, "train.py", TRAIN)
    env = environment(
        tmp_path,
        OTEL_BRIDGE_OFFLINE="1",
        OTEL_BRIDGE_EXPORTERS="file",
        OTEL_BRIDGE_NEW_RUN="1",
    )
    for _ in range(2):
        call(["python", train], cwd=tmp_path, env=env)

    done = otel_bridge("status", cwd=tmp_path, env=environment(tmp_path))

    lines = done.stdout.splitlines()[:-1]
    runs = ["".join(re.findall(r"\b[0-9a-f]{16}\b", line)) for line in lines]
    assert (len(runs), runs[0], runs[2], runs[3]) == (5, runs[1], "", runs[4])
    assert runs[0] != runs[3]


def test_a_run_whose_trainer_and_bridge_were_killed_together_is_not_shown_as_running(
    tmp_path: Path,
) -> None:
    extra = {
        "OTEL_BRIDGE_EXPORTERS": "gated,file",
        "GATED_BLOCKED": "1",
        **install(tmp_path),
    }
    env, train = environment(tmp_path, **extra), program(tmp_path, "train.py", TRAIN)
    with started(["python", train, "wait"], cwd=tmp_path, env=env) as process:
        running = until(lambda: _shown(tmp_path, "gated is blocked"), "the rows")
        folder = only_folder(tmp_path / ".otel-bridge")
        bridge = folder.holder()
        assert bridge is not None
        for pid in (bridge.pid, process.pid):
            os.kill(pid, signal.SIGKILL)
        process.wait(60)
        until(lambda: not probe(folder.lock_path), "the end of the bridge")

    shown = otel_bridge("status", cwd=tmp_path, env=env).stdout.splitlines()
    given = json.loads(otel_bridge("status", "--json", cwd=tmp_path, env=env).stdout)

    named = f"maths/ppo ({folder.run_id})"
    assert running.splitlines()[0] == f"{named} running"
    assert re.fullmatch(
        rf"{re.escape(named)} no bridge, and none of its processes runs, last seen \d+ s ago",
        shown[0],
    )
    lines = [line.split() for line in shown]
    assert ["trainer", "3", "3", "0", "of", "1", "alive"] in [
        line[:7] for line in lines
    ]
    assert ["file", "stopped", "3"] in [line[:3] for line in lines]
    assert f"  otel-bridge drain {folder.path}" in shown
    assert given["report"]["roles"] == {"trainer": {"alive": 0, "processes": 1}}
    assert [one["alive"] for one in given["report"]["processes"].values()] == [False]


@pytest.mark.parametrize("launched", [True, False])
def test_a_process_that_was_killed_is_counted_once_beside_one_that_runs(
    tmp_path: Path, launched: bool
) -> None:
    worker = """
    import os, pathlib, signal, sys, time
    import otel_bridge
    otel_bridge.init("maths", "ppo").log({"loss": 1.0})
    if sys.argv[1] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    pathlib.Path("ready").touch()
    while not pathlib.Path("go").exists():
        time.sleep(0.01)
    """
    both = """
    import pathlib, subprocess, sys, time
    with subprocess.Popen([sys.executable, "worker.py", "lives"]):
        while not pathlib.Path("ready").exists():
            time.sleep(0.01)
        subprocess.call([sys.executable, "worker.py", "killed"])
    """
    program(tmp_path, "worker.py", worker)
    env = environment(tmp_path, OTEL_BRIDGE_EXPORTERS="file")
    launcher = ["otel-bridge", "run", "--"] if launched else []

    with started(
        [*launcher, "python", program(tmp_path, "both.py", both)], cwd=tmp_path, env=env
    ) as process:
        shown = until(
            lambda: _shown(tmp_path, "1 of 2 alive", rows=2), "the killed process"
        )
        line = otel_bridge("status", "--json", cwd=tmp_path, env=environment(tmp_path))
        (tmp_path / "go").touch()
        process.wait(60)

    assert re.search(r"^ *0 +2 +1 of 2 alive +\d+ s ago$", shown, re.MULTILINE)
    assert json.loads(line.stdout)["report"]["roles"] == {
        "": {"alive": 1, "processes": 2}
    }


def test_a_run_without_an_exporter_is_shown_with_a_command_that_names_one(
    tmp_path: Path,
) -> None:
    tmp_path /= "my runs"
    tmp_path.mkdir()
    train = program(
        tmp_path,
        "train.py",
        """
        import otel_bridge
        with otel_bridge.init("maths", "ppo", role="trainer") as run:
            run.log({"loss": 0.5}, step=1)
        """,
    )
    env = environment(tmp_path)
    call(["python", train], cwd=tmp_path, env=env)

    unread = otel_bridge("status", cwd=tmp_path, env=env).stdout.splitlines()[1]
    refused = otel_bridge("drain", cwd=tmp_path, env=env)
    after = otel_bridge("status", cwd=tmp_path, env=env).stdout.splitlines()
    read = next_commands(
        RunState("r", "/runs/r", report=Report(1, "p", "n", status="running")),
        here=True,
    )

    assert refused.returncode == 1
    assert re.fullmatch(r"  otel-bridge drain --exporters \w+ '/.+/my runs/.+'", unread)
    assert unread in after
    assert read == [f"{unread.partition(' ' + chr(39))[0]} /runs/r"]
    assert otel_bridge(*shlex.split(unread)[1:], cwd=tmp_path, env=env).returncode == 0


def test_a_directory_that_is_full_of_what_file_wrote_for_ended_runs_says_so_and_what_to_delete(
    tmp_path: Path,
) -> None:
    train = program(
        tmp_path,
        "train.py",
        """
        import otel_bridge
        with otel_bridge.init("maths", "ppo", role="trainer") as run:
            for step in range(300):
                run.log({f"k{number}": step / 2 for number in range(100)}, step=step)
        """,
    )
    env = environment(tmp_path, OTEL_BRIDGE_EXPORTERS="file")
    call(["python", train], cwd=tmp_path, env=env)
    folder = only_folder(tmp_path / ".otel-bridge")
    until(lambda: not probe(folder.lock_path), "the end of the bridge")
    full = {**env, "OTEL_BRIDGE_MAX_BYTES": "500k"}

    shown = [
        otel_bridge("status", cwd=tmp_path, env=one).stdout.splitlines()[-1]
        for one in (full, env)
    ]
    refused = call(
        ["python", train], cwd=tmp_path, env={**full, "OTEL_BRIDGE_QUIET": "0"}
    ).stderr

    assert re.search(
        r"; .*B of 1 ended run are files of exporters: delete their folders when you no longer need them$",
        shown[0],
    )
    assert "files of exporters" not in shown[1]
    assert "`otel-bridge status` shows what uses the space" in refused


def test_a_role_with_rollouts_alone_has_the_step_of_the_last_one(
    tmp_path: Path,
) -> None:
    code = """
    import otel_bridge
    run = otel_bridge.init("maths", "ppo", role="explorer")
    for step in range(6):
        run.log_rollouts([{"messages": "2 + 2?", "reward": 1.0}], step=step)
    run.finish()
    """
    env = environment(tmp_path, OTEL_BRIDGE_EXPORTERS="file")
    done = call(
        [sys.executable, program(tmp_path, "explorer.py", code)], cwd=tmp_path, env=env
    )
    assert done.returncode == 0, done.stderr

    shown = otel_bridge("status", cwd=tmp_path, env=environment(tmp_path)).stdout

    assert re.search(r"^explorer +5 ", shown, re.MULTILINE), shown
