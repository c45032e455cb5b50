"""SIGKILL of the bridge at any instant loses nothing, and doubles nothing where the tracker can tell what it holds."""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path

import pytest

from support.bridge.bridge_doubles import Process, run_folder
from support.bridge.bridge_forks import forked_bridges

ROUNDS = 60


@pytest.mark.parametrize(
    "mode", ["durable", pytest.param("cannot tell", marks=pytest.mark.long)]
)
def test_bridges_killed_at_random_instants_lose_no_record(
    tmp_path: Path, mode: str
) -> None:
    chance = random.Random(7)
    folder, file = run_folder(tmp_path / "runs"), tmp_path / "tracker"
    processes = [
        Process.start(folder, "file", role=role, segment_bytes=20_000)
        for role in ("trainer", "explorer")
    ]
    with forked_bridges(tmp_path / "runs", file, mode) as bridges:
        for _ in range(ROUNDS):
            bridges.begin()
            until_s = time.monotonic() + chance.uniform(0.0, 0.12)
            while time.monotonic() < until_s:
                for process in processes:
                    process.log(chance.randrange(1, 20))
                time.sleep(0.002)
            bridges.kill()
        for process in processes:
            process.end()
        bridges.begin()
        assert bridges.ended() == 0

    lines = [line.split() for line in file.read_text().splitlines()]
    seen = list(dict.fromkeys(name for _, name in lines))
    times = Counter(name for _, name in lines)
    for process in processes:
        mine = [name for name in seen if f":{process.instance}:" in name]
        assert mine == process.row_ids
    if mode == "durable":
        assert (max(times.values()), [int(position) for position, _ in lines]) == (
            1,
            sorted(int(p) for p, _ in lines),
        )
    assert folder.segments() == []
