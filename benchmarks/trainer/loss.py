"""Rows lost when the trainer is killed -9: ours, and ``wandb.log`` offline as the peer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.peers import QUIET
from benchmarks.results import Result

_OURS = """
import os, signal, otel_bridge
run = otel_bridge.init(project="bench", name="kill", exporters="trackio")
for step in range(20): run.log({"loss": step / 7}, step=step)
os.kill(os.getpid(), signal.SIGKILL)
"""
_WANDB = """
import os, signal, time, wandb
run = wandb.init(project="bench", mode="offline", dir=os.environ["WANDB_DIR"], settings=wandb.Settings(silent=True))
for step in range(20): run.log({"loss": step / 7})
time.sleep(1)
os.kill(os.getpid(), signal.SIGKILL)
"""


def run() -> list[Result]:
    """Measure."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        env = {
            **os.environ,
            **QUIET,
            "OTEL_BRIDGE_DIR": str(folder / "runs"),
            "WANDB_DIR": name,
            "OTEL_BRIDGE_OFFLINE": "1",
        }
        for code in (_OURS, _WANDB):
            done = subprocess.run(
                [sys.executable, "-c", code], env=env, check=False, capture_output=True
            )
            if done.returncode != -signal.SIGKILL:
                raise RuntimeError(done.stderr.decode())
        lost, lost_by_peer = (
            20 - _rows_of_segments(folder / "runs"),
            20 - _rows_of_wandb(folder),
        )
    return [
        Result(
            "rows lost of 20 when killed -9, wandb offline",
            lost,
            lost_by_peer,
            "rows",
            "0",
            lost == 0,
        )
    ]


def _rows_of_segments(base: Path) -> int:
    from otel_bridge.journal.folder import run_folders
    from otel_bridge.journal.frames import Signal
    from otel_bridge.journal.segment import read_segment

    return sum(
        frame.signal == Signal.METRICS
        for folder in run_folders(base)
        for segment in folder.segments()
        for frame in read_segment(segment.path, 0, limit_bytes=1 << 30, final=True)[
            1
        ].frames
    )


def _rows_of_wandb(folder: Path) -> int:
    from support.trackers.wandb_offline import read_offline_run

    (directory,) = folder.glob("wandb/offline-run-*")
    return len(read_offline_run(directory).rows)
