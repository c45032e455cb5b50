"""``otel-bridge run``: signals, Ctrl-C before and during the drain, trackers that keep nobody waiting."""

from __future__ import annotations

import os
import pty
import signal
from pathlib import Path

import psutil
import pytest

from support.bridge.gated_tracker import gated_lines, install
from support.trainers.command_runs import (
    BIN,
    LOSS,
    PYTHON,
    TRAIN,
    environment,
    only_folder,
    otel_bridge,
    program,
    rows_read,
    runs,
    started,
    statuses,
    until,
    values,
)
from support.waiting import HANG_S

RUN = str(BIN / "otel-bridge")


SIGNALLED = """
    import pathlib, signal, socket, sys, time
    import otel_bridge
    seen = []
    def note(number, frame):
        seen.append(number)
    received, given = socket.socketpair()  # a byte for each signal, where Python's handler runs once for two
    received.setblocking(False)
    given.setblocking(False)
    signal.set_wakeup_fd(given.fileno())
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, note)
    with otel_bridge.init(role="trainer") as run:
        run.log({"loss": 0.5}, step=1)
        pathlib.Path("ready").touch()
        while not seen:
            time.sleep(0.01)
        pathlib.Path("first").touch()
        while not pathlib.Path("go on").exists():
            time.sleep(0.01)
        time.sleep(0.5)  # a second signal would come meanwhile
        pathlib.Path("seen").write_text(" ".join(map(str, received.recv(100))))
        run.log({"checkpoint": 1.0}, step=2)
    sys.exit(7)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_reaches_the_command_once_and_what_it_logs_then_is_delivered(
    tmp_path: Path, number: int
) -> None:
    train = program(tmp_path, "train.py", SIGNALLED)
    command = [RUN, "run", "--exporters", "file", "--", "python", train]
    (tmp_path / "go on").touch()
    with started(command, cwd=tmp_path, env=environment(tmp_path)) as process:
        until((tmp_path / "ready").exists, "the command's beginning")

        process.send_signal(number)

        code = process.wait(60)
    folder = only_folder(runs(tmp_path))
    assert code == 7
    assert (tmp_path / "seen").read_text() == str(int(number))
    assert (values(folder), statuses(folder)) == (
        {"trainer/loss": [(1, 0.5)], "trainer/checkpoint": [(2, 1.0)]},
        ["failed"],
    )


@pytest.mark.parametrize("stdin", ["terminal", "pipe", "closed"])
def test_ctrl_c_on_a_terminal_reaches_the_command_once(
    tmp_path: Path, stdin: str
) -> None:
    train = program(tmp_path, "train.py", SIGNALLED)
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        if stdin == "pipe":
            os.dup2(os.pipe()[0], 0)
        if stdin == "closed":
            os.close(0)
        command = [RUN, "run", "--exporters", "file", "--", PYTHON, train]
        os.execve(RUN, command, environment(tmp_path))
    until((tmp_path / "ready").exists, "the command's beginning")

    os.kill(
        pid, signal.SIGSTOP
    )  # so that a second signal, if it sent one, would come well behind the terminal's
    os.write(terminal, b"\x03")
    until((tmp_path / "first").exists, "the terminal's signal")
    os.kill(pid, signal.SIGCONT)
    (tmp_path / "go on").touch()
    _read_to_end(terminal)

    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 7
    assert (tmp_path / "seen").read_text() == str(int(signal.SIGINT))
    assert statuses(only_folder(runs(tmp_path))) == ["failed"]


def _read_to_end(terminal: int) -> None:
    try:
        while os.read(terminal, 4096):
            pass
    except OSError:  # how Linux says that the other side is closed
        os.close(terminal)


def test_ctrl_c_during_the_drain_leaves_the_rest_in_the_folder_and_drain_delivers_it(
    tmp_path: Path,
) -> None:
    env = environment(tmp_path, **install(tmp_path))
    train = program(tmp_path, "train.py", TRAIN)
    command = [RUN, "run", "--exporters", "gated", "--", "python", train, "trainer"]
    with started(command, cwd=tmp_path, env=env) as process:
        until(
            lambda: (
                rows_read(tmp_path) == 3 and not psutil.Process(process.pid).children()
            ),
            "the drain",
        )

        process.send_signal(signal.SIGINT)

        _, errors = process.communicate(timeout=HANG_S)
    folder = only_folder(runs(tmp_path))
    assert process.returncode == 0, errors
    assert gated_lines(tmp_path) == []
    assert "gated is retrying: the gate is shut" in errors
    assert (
        f"not everything is delivered; to continue: otel-bridge drain {folder.path}"
        in errors
    )

    (tmp_path / "gate").touch()
    drained = otel_bridge("drain", str(folder.path), cwd=tmp_path, env=env)

    assert drained.returncode == 0, drained.stdout + drained.stderr
    assert gated_lines(tmp_path) == [
        "trainer/loss 1",
        "trainer/loss 2",
        "trainer/loss 3",
        "end finished",
    ]


def test_a_blocked_exporter_does_not_keep_the_command_waiting(tmp_path: Path) -> None:
    env = environment(tmp_path, GATED_BLOCKED="1", **install(tmp_path))
    train = program(tmp_path, "train.py", TRAIN)

    done = otel_bridge(
        "run",
        "--exporters",
        "gated,file",
        "--",
        "python",
        train,
        "trainer",
        cwd=tmp_path,
        env=env,
    )

    folder = only_folder(runs(tmp_path))
    assert done.returncode == 0
    assert f"gated is blocked: the gate is shut; touch {tmp_path}/gate" in done.stderr
    assert values(folder) == {"trainer/loss": LOSS}
    assert f"otel-bridge drain {folder.path}" in done.stderr
