"""The caller's time of one ``log()`` of an image and of a table, alternating with ``wandb.log`` offline."""

from __future__ import annotations

import importlib
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

from benchmarks import peers
from benchmarks.results import Result, median

_ROUNDS = 7
_CALLS = 10
_TIMES = 2
"""How many times as long the peer's call takes at least, by goal."""
Make = Callable[[], object]


def run() -> list[Result]:
    """Measure."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        peers.prepare(Path(folder))
        import numpy as np

        peer: Any = importlib.import_module("wandb")

        import otel_bridge

        # The limit of media of a key and step does not matter: each call has a step of its own.
        logs = {
            "ours": stack.enter_context(peers.ours()),
            "wandb": stack.enter_context(peers.wandb()),
        }
        side = np.linspace(0, 255, 256, dtype=np.uint8)
        smooth = np.stack(
            np.broadcast_arrays(side[:, None], side[None, :], side[::-1, None]), axis=-1
        )
        noise = np.random.default_rng(1).integers(0, 256, (256, 256, 3), dtype=np.uint8)
        columns = ["step", "prompt", "answer", "reward", "ok"]
        rows = [
            [row, f"What is {row} + {row}? " * 4, str(2 * row), row / 7, True]
            for row in range(1_000)
        ]
        cases: dict[str, dict[str, Make]] = {
            "Image, 256 x 256 RGB, smooth": {
                "ours": lambda: otel_bridge.Image(smooth), "wandb": lambda: peer.Image(smooth),
            },
            "Image, 256 x 256 RGB, noise": {
                "ours": lambda: otel_bridge.Image(noise), "wandb": lambda: peer.Image(noise),
            },
            "Table, 1,000 x 5": {
                "ours": lambda: otel_bridge.Table(columns, rows), "wandb": lambda: peer.Table(columns, data=rows),
            },
        }  # fmt: skip
        return [_compared(what, logs, makers) for what, makers in cases.items()]


def _compared(what: str, logs: dict[str, peers.Log], makers: dict[str, Make]) -> Result:
    times: dict[str, list[float]] = {name: [] for name in logs}
    steps = iter(range(1 << 30))
    for _ in range(_ROUNDS):
        for name, log in logs.items():
            for _ in range(_CALLS):
                began = time.perf_counter()
                cast("Any", log)({"x": makers[name]()}, next(steps))
                times[name].append((time.perf_counter() - began) * 1e3)
    own, peer = median(times["ours"]), median(times["wandb"])
    return Result(what, own, peer, "ms", f">= {_TIMES} times", peer >= _TIMES * own)
