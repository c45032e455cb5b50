"""Run the installed commands as a person does: in a process, a home and a folder of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from otel_bridge.exporter import RunInfo
from otel_bridge.journal.folder import RunFolder, run_folders
from otel_bridge.journal.report import Report, read_report
from support.commands.client import is_plain, run_command, starts_plainly
from support.waiting import HANG_S

BIN = Path(sys.executable).parent
OTEL_BRIDGE = str(BIN / "otel-bridge")
PYTHON = sys.executable
WAIT_S = HANG_S
T = TypeVar("T")


def environment(folder: Path, **variables: str) -> dict[str, str]:
    """An environment with a home of its own below *folder* and nothing of the user's trackers."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    return {
        "PATH": f"{BIN}:/usr/bin:/bin",
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "COLUMNS": "200",
        **variables,
    }


def program(folder: Path, name: str, code: str) -> str:
    """Write a program; returns its path."""
    path = folder / name
    path.write_text(textwrap.dedent(code), "utf-8")
    return str(path)


def call(
    command: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    timeout_s: float = WAIT_S,
) -> subprocess.CompletedProcess[str]:
    """Run *command* to its end."""
    if starts_plainly(env):
        if command[0] == OTEL_BRIDGE:
            return run_command(command, cwd=cwd, env=env, timeout_s=timeout_s)
        if command[0] in {"python", PYTHON} and is_plain(cwd / command[1]):
            return run_command(command[1:], cwd=cwd, env=env, timeout_s=timeout_s)
    return subprocess.run(
        list(command),
        cwd=cwd,
        env=dict(env),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def otel_bridge(
    *arguments: str, cwd: Path, env: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run ``otel-bridge ARGUMENTS`` to its end."""
    return call([OTEL_BRIDGE, *arguments], cwd=cwd, env=env)


@contextmanager
def started(
    command: Sequence[str], *, cwd: Path, env: Mapping[str, str]
) -> Iterator[subprocess.Popen[str]]:
    """Start *command* in a process group of its own; whatever of the group still runs at the end is killed."""
    process = subprocess.Popen(
        list(command),
        cwd=cwd,
        env=dict(env),
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def until(found: Callable[[], T | None], what: str, timeout_s: float = WAIT_S) -> T:
    """Wait for what other processes do; returns the first value that is not ``None`` or false."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = found()
        if value:
            return value
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.02)


def only_folder(base: Path) -> RunFolder:
    """The one run folder below *base*."""
    folders = run_folders(base)
    assert len(folders) == 1, [folder.path.name for folder in folders]
    return folders[0]


def report_of(base: Path) -> Report:
    """The report of the one run folder below *base*."""
    report = read_report(only_folder(base))
    assert report is not None
    return report


def ended(base: Path) -> Report:
    """Wait until the one run below *base* is delivered and ended everywhere."""

    def found() -> Report | None:
        report = read_report(only_folder(base)) if run_folders(base) else None
        return report if report is not None and report.ended else None

    return until(found, f"the end of the run in {base}")


def run_info(base: Path) -> RunInfo:
    """The one run below *base*, as readers of trackers want it."""
    folder, report = only_folder(base), report_of(base)
    return RunInfo(folder.run_id, report.project, report.name, folder.path)


def records(folder: RunFolder) -> list[dict[str, Any]]:
    """What the exporter ``file`` wrote of a run, in its order."""
    lines = [
        line
        for path in sorted(folder.path.glob("file/*.jsonl"))
        for line in path.read_text("utf-8").splitlines()
    ]
    return [json.loads(line) for line in lines]


def values(folder: RunFolder) -> dict[str, list[tuple[int | None, Any]]]:
    """Every key of the rows that ``file`` wrote, with its steps and values in order."""
    found: dict[str, list[tuple[int | None, Any]]] = {}
    for record in records(folder):
        for key, value in record.get("values", {}).items():
            found.setdefault(key, []).append((record["step"], value))
    return found


def statuses(folder: RunFolder) -> list[str]:
    """Every end that ``file`` wrote."""
    return [record["status"] for record in records(folder) if record["kind"] == "end"]


TRAIN = """
    import sys
    import otel_bridge
    run = otel_bridge.init(role=sys.argv[1])
    for step in (1, 2, 3):
        run.log({"loss": step / 2}, step=step)
"""
"""A trainer of three rows; its first argument is its role."""
LOSS = [(1, 0.5), (2, 1.0), (3, 1.5)]


def runs(folder: Path) -> Path:
    return folder / ".otel-bridge"


def rows_read(folder: Path) -> int:
    return rows_in(runs(folder))


def rows_in(base: Path) -> int:
    """The rows that were read of the first run below *base*."""
    found = run_folders(base)
    report = read_report(found[0]) if found else None
    return 0 if report is None else report.rows
