"""W&B's table of rollouts, 16 a step: bytes and time a step, and whether later steps cost what the first did.

Against a server on this machine that uses W&B's protocol. An increment's history line repeats the paths of all before
it in its table, so that a table begins anew after a hundred. ``BENCH_STEPS=1000`` measures a long run (minutes).
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from unittest.mock import patch

import orjson

from benchmarks.results import Result, reported
from otel_bridge.records import Status
from otel_bridge.testing import MemoryTable, open_writer, samples
from otel_bridge_wandb import exporter
from otel_bridge_wandb.content.rollout_tables import INCREMENTS
from support.trackers.wandb_backend.server import WandbServer

_STEPS = int(os.environ.get("BENCH_STEPS", "200"))
_ROLLOUTS = 16
_HELD_S = 300.0


def run() -> list[Result]:
    """Measure."""
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        WandbServer() as server,
    ):
        env = {**server.environment(), "OTEL_BRIDGE_WANDB_FINISH_TIMEOUT_S": "600"}
        with patch.dict(os.environ, env):
            return _measured(Path(folder), server, env)


def _measured(folder: Path, server: WandbServer, env: dict[str, str]) -> list[Result]:
    info = samples.run_info(folder, "bench")
    writer = open_writer(
        exporter, info, exporter.read_settings(env, folder), MemoryTable()
    )
    began = time.perf_counter()
    position = 0
    for step in range(1, _STEPS + 1):
        rollouts = samples.placed(
            [samples.rollout(n, step=step) for n in range(_ROLLOUTS)], position + 1
        )
        position += _ROLLOUTS
        writer.write_rollouts(rollouts)
    given_s = time.perf_counter() - began
    deadline = began + given_s + _HELD_S
    while (
        writer.durable() or 0
    ) < position and time.perf_counter() < deadline:  # as delivery waits before the end
        time.sleep(0.5)
    writer.end(Status.FINISHED)
    took_s = time.perf_counter() - began
    lines = [len(orjson.dumps(row)) for row in server.run(info.id).history]
    rows = sum(len(server.table(info.id, key)) for key in _tables(server, info.id))
    files = sum(map(len, server.store.blobs.values()))
    part = min(INCREMENTS, _STEPS // 2)
    growth = sum(lines[-part:]) / sum(lines[:part])
    return [
        Result(
            f"rows held of {_STEPS * _ROLLOUTS}",
            rows,
            None,
            "",
            "all",
            rows == _STEPS * _ROLLOUTS,
        ),
        Result(
            f"history bytes, the last {part} steps / the first",
            growth,
            None,
            "",
            "<= 1.2",
            growth <= 1.2,
        ),
        reported("bytes a step, files", files / _STEPS, "B"),
        reported("bytes a step, history", sum(lines) / _STEPS, "B"),
        reported("time a step, given", given_s / _STEPS * 1e3, "ms"),
        reported("time a step, held by the server", took_s / _STEPS * 1e3, "ms"),
    ]


def _tables(server: WandbServer, run_id: str) -> list[str]:
    return sorted(
        {
            key
            for row in server.run(run_id).history
            for key in row
            if key.startswith("explorer/rollouts")
        }
    )
