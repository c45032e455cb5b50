"""Folders, headers and child processes for the tests of the journal."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.frames import Frame
from otel_bridge.journal.header import SegmentHeader
from otel_bridge.journal.segment import read_segment

HEADER = SegmentHeader(
    instance_id="a1",
    run_id="r1",
    project="gsm8k",
    run_name="ppo-7b",
    kind="process",
    resource=b"\x0a\x02\x00\xff",
    exporters={"metrics": ("trackio", "otlp"), "traces": ("mlflow",)},
    destinations={"mlflow": {"MLFLOW_TRACKING_URI": "sqlite:////data/mlflow.db"}},
    host="node1",
    boot_id="boot-1",
    pid=4242,
    start_ticks=77,
    created_unix_ns=1_700_000_000_000_000_000,
    role="trainer",
)
MIB = 1 << 20


def header(**changes: object) -> SegmentHeader:
    return replace(HEADER, **changes)  # type: ignore[arg-type]


def run_folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / ".otel-bridge", "r1")
    folder.create()
    return folder


def all_frames(folder: RunFolder, *, limit_bytes: int = 8 * MIB) -> list[Frame]:
    """Read every segment of a dead process to its end."""
    frames: list[Frame] = []
    for file in folder.segments():
        offset = 0
        while True:
            _, found = read_segment(
                file.path, offset, limit_bytes=limit_bytes, final=True
            )
            frames += found.frames
            if found.end == offset:
                break
            offset = found.end
    return frames


@contextmanager
def python(code: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Run *code* in a process of its own, with pipes; killed at the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


STANDARD_STREAMS = 3


@contextmanager
def no_files_left() -> Iterator[None]:
    """Let this process open no file, until the end.

    Its limit is below the numbers in use: what another thread closes meanwhile (gRPC closes the
    connections of a test before this one late) makes no room.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (STANDARD_STREAMS, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


HANGING_BRIDGE = """
import sys
from pathlib import Path
import orjson
from otel_bridge.journal.folder import LockHolder, RunFolder
from otel_bridge.journal.machine import this_host
lock = RunFolder.at(Path(sys.argv[1])).lock()
lock.acquire()
here = this_host()
lock.write(orjson.dumps(LockHolder(int(sys.argv[2]), here.name, here.boot_id, 0)))
print("locked", flush=True)
sys.stdin.readline()
"""
"""Holds the lock of a run folder, whose file names the process of the second argument."""


def lives_in(folder: RunFolder) -> list[str]:
    """Return the instance ids that have a life file, sorted."""
    return sorted(path.stem for path in folder.processes_dir.glob("*.life"))


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()
