"""Whole jobs for the end-to-end tests: scripts in processes of their own, the bridges they start, what arrived."""

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
from typing import TypeVar

from otel_bridge.journal.folder import RunFolder, run_folders
from otel_bridge.journal.report import Report, read_report
from support.trainers.command_runs import OTEL_BRIDGE, call
from support.waiting import HANG_S

T = TypeVar("T")
_jobs: list[subprocess.Popen[bytes]] = []

WAIT_S = HANG_S
_NOT_OURS = ("OTEL_", "WANDB_", "MLFLOW_", "TRACKIO_", "PYTHONPATH")
CLEAN = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(_NOT_OURS) and name not in {"RANK", "WORLD_SIZE"}
}

ACKNOWLEDGING = """
import os, sys, otel_bridge

class Acks:
    \"\"\"Says, in one append a row, which rows log() has returned for.\"\"\"

    def __init__(self, path):
        self.fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def log(self, run, values, step):
        run.log(values, step=step)
        os.write(self.fd, b"%d\\n" % step)
"""
"""Begins every script that shows which rows are safe."""
LOGS = """
import otel_bridge
run = otel_bridge.init("faults", "versions")
for step in range(20):
    run.log({"loss": step / 2}, step=step)
run.finish(timeout_s=3)
"""
"""Logs a few rows: for tests of what `init` says and what a folder holds."""


def environment(base: Path, exporters: str = "file", **more: str) -> dict[str, str]:
    """Return the environment of a job whose run folders lie in *base*; a killed process's run ends at once."""
    return {
        **CLEAN,
        "OTEL_BRIDGE_DIR": str(base),
        "OTEL_BRIDGE_EXPORTERS": exporters,
        "OTEL_BRIDGE_QUIET": "1",
        "OTEL_BRIDGE_END_GRACE_S": "0.2",
        **more,
    }


def script(path: Path, code: str, *, acknowledging: bool = False) -> Path:
    """Write a training script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text((ACKNOWLEDGING if acknowledging else "") + textwrap.dedent(code))
    return path


def run(
    file: Path,
    env: Mapping[str, str],
    *arguments: str,
    options: Sequence[str] = (),
    timeout_s: float = HANG_S,
) -> subprocess.CompletedProcess[str]:
    """Run a script to its end, as a user would: in its own folder, its output captured."""
    command = [sys.executable, *options, str(file), *arguments]
    return call(command, cwd=file.parent, env=env, timeout_s=timeout_s)


def start(
    file: Path, env: Mapping[str, str], *arguments: str
) -> subprocess.Popen[bytes]:
    """Start a script in a session of its own."""
    return start_command([sys.executable, str(file), *arguments], env, file.parent)


def start_command(
    command: Sequence[str], env: Mapping[str, str], folder: Path
) -> subprocess.Popen[bytes]:
    """Start a command in a session of its own."""
    job = subprocess.Popen(
        list(command),
        env=dict(env),
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    _jobs.append(job)
    return job


def command(
    *arguments: str | Path, env: Mapping[str, str], cwd: Path
) -> subprocess.CompletedProcess[str]:
    """Run ``otel-bridge``."""
    return call([OTEL_BRIDGE, *map(str, arguments)], cwd=cwd, env=env)


def until(condition: Callable[[], T], timeout_s: float = WAIT_S) -> T:
    """Wait for what other processes do, and return it."""
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.02)
    return found


def acked(path: Path) -> list[int]:
    """Return the steps for which ``log()`` had returned, in the order in which it did."""
    return (
        [int(line) for line in path.read_text().splitlines()] if path.exists() else []
    )


def lines(base: Path) -> list[dict[str, object]]:
    """Return all that the exporter ``file`` holds below *base*, as it stands there."""
    return [
        json.loads(line)
        for file in sorted(base.glob("*/file/records-*.jsonl"))
        for line in file.read_bytes().splitlines(keepends=True)
        if line.endswith(b"\n")
    ]


def rows(base: Path, key: str = "loss") -> list[int]:
    """Return the steps of the rows that hold *key*, as they stand in the ``file`` exporter's files."""
    return [
        line["step"]
        for line in lines(base)
        if line["kind"] == "row" and key in line["values"]
    ]  # type: ignore[operator, misc]


def status(base: Path) -> list[str]:
    """Return every end that the ``file`` exporter was given."""
    return [str(line["status"]) for line in lines(base) if line["kind"] == "end"]


def only_folder(base: Path) -> RunFolder:
    (folder,) = run_folders(base)
    return folder


def report_when(
    base: Path, condition: Callable[[Report], object], timeout_s: float = WAIT_S
) -> Report:
    """Return the first report of the one run below *base* that fulfils *condition*."""

    def seen() -> Report | None:
        found = run_folders(base)
        report = read_report(found[0]) if found else None
        return report if report is not None and condition(report) else None

    report = until(seen, timeout_s)
    assert report is not None
    return report


def ended(base: Path) -> bool:
    """Return whether every run below *base* is delivered and ended."""
    reports = [read_report(folder) for folder in run_folders(base)]
    return bool(reports) and all(
        report is not None and report.ended for report in reports
    )


def bridges(base: Path) -> list[int]:
    """Return the processes that are bridges of run folders below *base*."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            if (
                state != "Z"
                and any(f"{base}/".encode() in word for word in words)
                and b"-I" in words
            ):
                found.append(int(entry.name))
    return sorted(found)


def threads_of(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


@contextmanager
def no_bridge_left(base: Path) -> Iterator[None]:
    """End the jobs that were started and the bridges below *base* when the test is over, whatever became of it."""
    try:
        yield
    finally:
        while _jobs:
            job = _jobs.pop()
            job.kill()
            job.wait()
            for pipe in filter(
                None, (job.stdin, job.stdout, job.stderr)
            ):  # a test may have closed some
                pipe.close()
        for pid in bridges(base):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
