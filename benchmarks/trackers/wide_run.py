"""Thousands of distinct keys of two roles in one W&B run: every axis right, and what it costs in bytes and seconds.

Offline the size is that of the run's directory; online it is that of what the stand-in server took, config with the
axes and history lines.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from benchmarks.peers import QUIET
from benchmarks.results import Result
from otel_bridge.journal.folder import run_folders
from support.trackers.wandb_backend.server import WandbServer
from support.trackers.wandb_offline import offline_directories, read_offline_run

KEYS, ROWS = 5_000, 50
"""Keys of each role."""
_ROLES = ("trainer", "explorer")
_EMIT = """
import sys, otel_bridge
role, keys, rows = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
run = otel_bridge.init(project="bench", name="wide", role=role, exporters="wandb")
for step in range(rows): run.log({f"metric/{n}": float(n + step) for n in range(step, keys, rows)}, step=step)
"""


def run() -> list[Result]:
    """Measure."""
    return [_offline(), _online()]


def _offline() -> Result:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        run_id, took_s = _delivered(Path(folder), KEYS, {"WANDB_MODE": "offline"})
        (directory,) = offline_directories(Path(folder), run_id)
        size = sum(
            file.stat().st_size for file in directory.rglob("*") if file.is_file()
        )
        axes = {
            name: one.axis for name, one in read_offline_run(directory).metrics.items()
        }
    return _result("offline directory", KEYS, axes, cost=(size, took_s))


def _online() -> Result:
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        WandbServer() as server,
    ):
        run_id, took_s = _delivered(Path(folder), KEYS, server.environment())
        held = server.run(run_id)
        size = len(json.dumps(held.raw_config)) + sum(
            len(line) for line in held.lines if line is not None
        )
        axes = {name: one.axis for name, one in held.metrics.items()}
    return _result("upload to the stand-in", KEYS, axes, cost=(size, took_s))


def _result(
    what: str, keys: int, axes: Mapping[str, str], *, cost: tuple[int, float]
) -> Result:
    expected = {
        f"{role}/metric/{number}": f"{role}/step"
        for role in _ROLES
        for number in range(keys)
    }
    right, (size_bytes, took_s) = (
        sum(axes.get(key) == axis for key, axis in expected.items()),
        cost,
    )
    text = f"keys of {len(expected):,} with the right axis; {what}: {size_bytes / 1e6:.1f} MB, {took_s:.1f} s"
    return Result(text, right, None, "keys", "all", right == len(expected))


def _delivered(folder: Path, keys: int, where: Mapping[str, str]) -> tuple[str, float]:
    """Emit and drain; return the run's id and the seconds from the start of the drain to its end."""
    env = {**os.environ, **QUIET, "WANDB_DIR": str(folder), **where}
    env |= {"OTEL_BRIDGE_DIR": f"{folder}/runs", "OTEL_BRIDGE_OFFLINE": "1"}
    for role in _ROLES:
        subprocess.run(
            [sys.executable, "-c", _EMIT, role, str(keys), str(ROWS)],
            env=env,
            check=True,
        )
    (found,) = run_folders(folder / "runs")
    began = time.perf_counter()
    subprocess.run(
        [Path(sys.executable).with_name("otel-bridge"), "drain"],
        env=env,
        check=True,
        capture_output=True,
    )
    return found.run_id, time.perf_counter() - began
