"""Commands whose standard streams are closed, full, or a pipe without a reader."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from support.trainers.command_runs import (
    LOSS,
    call,
    ended,
    environment,
    only_folder,
    program,
    runs,
    values,
)

TRAIN = """
    import otel_bridge
    with otel_bridge.init(role="trainer") as run:
        for step in (1, 2, 3):
            run.log({"loss": step / 2}, step=step)
"""
CLOSED = "Error: standard output cannot be written: Bad file descriptor\n"
FULL = "Error: standard output cannot be written: No space left on device\n"


def _in_shell(line: str, *, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a line of bash; its last command is the one whose exit code and stderr are returned."""
    return call(
        ["bash", "-c", line],
        cwd=cwd,
        env=environment(cwd, OTEL_BRIDGE_EXPORTERS="file"),
    )


def _train(folder: Path) -> Path:
    """Leave a run in *folder* that no bridge has read."""
    env = environment(folder, OTEL_BRIDGE_OFFLINE="1", OTEL_BRIDGE_EXPORTERS="file")
    train = program(folder, "train.py", TRAIN)
    assert call(["python", train], cwd=folder, env=env).returncode == 0
    return folder


@pytest.fixture
def undelivered(tmp_path: Path) -> Path:
    """A folder with a run that no bridge has read."""
    return _train(tmp_path)


@pytest.fixture(scope="module")
def looked_at(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Such a folder for commands that only look at it."""
    return _train(tmp_path_factory.mktemp("looked_at"))


@pytest.mark.parametrize(
    ("streams", "printed"), [(">&-", CLOSED), (">/dev/full", FULL), (">&- 2>&-", "")]
)
@pytest.mark.parametrize(
    "command",
    [
        "status",
        "--help",
        *(
            pytest.param(command, marks=pytest.mark.long)
            for command in ("status --json", "doctor", "status --help")
        ),
    ],
)
def test_a_command_that_cannot_show_anything_fails_with_one_line(
    looked_at: Path, command: str, streams: str, printed: str
) -> None:
    done = _in_shell(f"otel-bridge {command} {streams}", cwd=looked_at)

    assert (done.returncode, done.stderr) == (1, printed)


@pytest.mark.parametrize("command", ["status", "status --json", "doctor", "--help"])
def test_a_reader_that_leaves_a_pipe_is_not_reported(
    looked_at: Path, command: str
) -> None:
    done = _in_shell(
        f"otel-bridge {command} | true; exit ${{PIPESTATUS[0]}}", cwd=looked_at
    )

    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize("streams", ["2>&-", "2>/dev/full", "<&-"])
def test_a_command_that_needs_stdout_alone_shows_the_same(
    looked_at: Path, streams: str
) -> None:
    plain, done = (
        _in_shell(f"otel-bridge status --json {one}", cwd=looked_at)
        for one in ("", streams)
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, plain.stdout, "")


@pytest.mark.parametrize(
    ("streams", "printed"),
    [
        (">&-", CLOSED),
        (">/dev/full", FULL),
        (">&- 2>&-", ""),
        ("2>&-", ""),
        ("| true", ""),
    ],
)
def test_drain_delivers_although_it_cannot_print(
    undelivered: Path, streams: str, printed: str
) -> None:
    done = _in_shell(
        f"otel-bridge drain {streams}; exit ${{PIPESTATUS[0]}}", cwd=undelivered
    )

    assert (done.returncode, done.stderr) == (0, printed)
    assert ended(runs(undelivered)).status == "finished"
    assert values(only_folder(runs(undelivered))) == {"trainer/loss": LOSS}


@pytest.mark.parametrize(
    "streams", [">&-", "2>&-", ">&- 2>&-", "2>/dev/full", "2>&1 | true"]
)
def test_run_returns_the_exit_code_of_its_command_and_delivers(
    tmp_path: Path, streams: str
) -> None:
    train = program(tmp_path, "train.py", f"{TRAIN}    raise SystemExit(3)")

    done = _in_shell(
        f"otel-bridge run -- python {train} {streams}; exit ${{PIPESTATUS[0]}}",
        cwd=tmp_path,
    )

    assert done.returncode == 3
    assert "Traceback" not in done.stderr
    assert values(only_folder(runs(tmp_path))) == {"trainer/loss": LOSS}


@pytest.mark.long
@pytest.mark.parametrize("streams", [">&-", ">/dev/full"])
def test_rows_that_the_exporter_console_cannot_print_remain(
    undelivered: Path, streams: str
) -> None:
    drain = "otel-bridge drain --exporters console --discard file"

    done = _in_shell(
        f"OTEL_BRIDGE_DRAIN_TIMEOUT_S=1 {drain} {streams}", cwd=undelivered
    )
    shown = _in_shell(drain, cwd=undelivered)

    assert (done.returncode, "Traceback" in done.stderr, shown.returncode) == (
        1,
        False,
        0,
    )
    assert [f"trainer/step={step}" in shown.stdout for step in (1, 2, 3)] == [True] * 3


def test_a_program_under_run_finds_its_closed_stdout_as_it_would_without(
    tmp_path: Path,
) -> None:
    done = _in_shell("otel-bridge run -- python -c 'print(1)' >&-", cwd=tmp_path)

    assert (done.returncode, done.stderr) == (0, "")


def test_what_a_library_prints_to_a_closed_stream_gets_into_no_file(
    undelivered: Path,
) -> None:
    code = """
        import os
        from otel_bridge.cli.output import call_with_streams

        def work():
            with open("noted", "w") as file:
                file.write(str(file.fileno() > 2))
                os.write(2, b"of a library")

        call_with_streams(work)
    """
    _in_shell(
        f"python {program(undelivered, 'work.py', code)} >&- 2>&- <&-", cwd=undelivered
    )

    assert (undelivered / "noted").read_text() == "True"


def test_a_stream_without_a_character_gets_its_escape(tmp_path: Path) -> None:
    log = """
        import otel_bridge
        with otel_bridge.init("maths", "größer 😀") as run:
            run.log({"loss": 1.0})
    """
    env = environment(tmp_path, OTEL_BRIDGE_EXPORTERS="file", PYTHONIOENCODING="ascii")
    train = program(tmp_path, "train.py", log)
    drained = call(["otel-bridge", "run", "--", "python", train], cwd=tmp_path, env=env)

    shown = call(["otel-bridge", "status"], cwd=tmp_path, env=env)
    parsed = call(["otel-bridge", "status", "--json"], cwd=tmp_path, env=env)

    assert (drained.returncode, shown.returncode, shown.stderr) == (0, 0, "")
    assert "maths/gr\\u00f6\\u00dfer \\ud83d\\ude00" in shown.stdout
    assert json.loads(parsed.stdout)["report"]["name"] == "größer 😀"
