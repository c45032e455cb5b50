"""SIGKILL of the bridge at any instant loses nothing, and doubles nothing where the tracker can tell what it holds."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
from bridge_doubles import Process, options, run_folder
from bridge_file_tracker import file_exporter

from otel_bridge.bridge.host import Host
from otel_bridge.bridge.options import BridgeOptions

ROUNDS = 60


def _how(file: Path, mode: str) -> BridgeOptions:
    exporter = file_exporter(file, tells_safe=mode == "safe")
    how = options()
    from dataclasses import replace

    return replace(how, places=replace(how.places, load=lambda name: exporter))


def _bridge(base: Path, how: BridgeOptions) -> int:
    """Start a bridge in a forked child; return its pid."""
    pid = os.fork()
    if pid:
        return pid
    try:
        Host(base, how, until_done=True).serve()
    finally:
        os._exit(0)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["safe", "cannot tell"])
def test_bridges_killed_at_random_instants_lose_no_record(tmp_path: Path, mode: str) -> None:
    chance = random.Random(7)
    folder, file = run_folder(tmp_path / "runs"), tmp_path / "tracker"
    how = _how(file, mode)
    processes = [Process.start(folder, "file", role=role, segment_bytes=20_000) for role in ("trainer", "explorer")]
    for _ in range(ROUNDS):
        pid = _bridge(tmp_path / "runs", how)
        until_s = time.monotonic() + chance.uniform(0.0, 0.12)
        while time.monotonic() < until_s:
            for process in processes:
                process.log(chance.randrange(1, 20))
            time.sleep(0.002)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    for process in processes:
        process.end()

    os.waitpid(_bridge(tmp_path / "runs", how), 0)

    lines = [line.split() for line in file.read_text().splitlines()]
    seen = list(dict.fromkeys(name for _, name in lines))
    times = Counter(name for _, name in lines)
    for process in processes:
        mine = [name for name in seen if f":{process.instance}:" in name]
        assert mine == process.row_ids
    if mode == "safe":
        assert (max(times.values()), [int(position) for position, _ in lines]) == (1, sorted(int(p) for p, _ in lines))
    assert folder.segments() == []
