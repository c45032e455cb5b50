"""How much a pure Python training loop at 200 rows/s into MLflow is slowed down, in short blocks of random order.

A machine's speed wanders by more than the goal within a second, so one process runs many rounds of half a second a
block, and each block is compared with the bare one of its own round: the median of these pairs is shown, with its 95 %
interval. The bridge lives all the time; what a block logged is delivered before the next one begins.

* ``bare``: the work alone. ``ours``: `Run.log` after each 5 ms of it, the bridge delivering meanwhile.
* ``alone``: the same while the bridge is stopped: what is left is `log` itself and what it does to the caches.
* ``placebo``: ``json.dumps`` of the same row, for what any call between two pieces of work costs.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.peers import QUIET
from benchmarks.results import Result, median

SECONDS: Final = 75
_LOOP: Final = """
import gc, json, math, os, random, signal, sys, time
from pathlib import Path
import otel_bridge

draw, size = random.Random(7).gauss, 24
weights = [[draw(0, 0.1) for _ in range(size)] for _ in range(size)]
inputs = [[draw(0, 1) for _ in range(size)] for _ in range(64)]

def work(samples):
    for at in range(samples):
        x, target = inputs[at % 64], at % size
        logits = [sum(w * v for w, v in zip(row, x)) for row in weights]
        top = max(logits)
        exps = [math.exp(v - top) for v in logits]
        total = sum(exps)
        for i, row in enumerate(weights):
            slope = 0.001 * (exps[i] / total - (i == target))
            weights[i] = [w - slope * v for w, v in zip(row, x)]

run = otel_bridge.init(project="bench", name="loop", exporters="mlflow")
values = {f"metric/{n}": n + 0.5 for n in range(10)}
for _ in range(300): run.log(values)
run.flush(60)
bridge = json.loads(next(Path(os.environ["OTEL_BRIDGE_DIR"]).glob("*/report.json")).read_text())["bridge"]["pid"]
began = time.perf_counter(); work(300)
samples = max(1, int(300 * 0.005 / (time.perf_counter() - began)))

def block(call):
    rows, clock = [], time.perf_counter
    for _ in range(100):
        began = clock(); work(samples); call(values); rows.append(clock() - began)
    return sum(rows), sorted(rows)[50]

calls = {"bare": lambda values: None, "placebo": json.dumps, "ours": run.log, "alone": run.log}
gc.disable()
rounds, end = [], time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    found = {}
    for name in random.sample(list(calls), len(calls)):
        if name == "alone": os.kill(bridge, signal.SIGSTOP)
        try: found[name] = block(calls[name])
        finally:
            if name == "alone": os.kill(bridge, signal.SIGCONT)
        run.flush(30)
    rounds.append(found)
print(json.dumps(rounds))
run.finish(timeout_s=120)
"""


def run() -> list[Result]:
    """Measure."""
    with tempfile.TemporaryDirectory() as folder:
        env = {
            **os.environ, **QUIET, "OTEL_BRIDGE_DIR": f"{folder}/runs", "OTEL_BRIDGE_HOLD": "0",
            "MLFLOW_TRACKING_URI": f"sqlite:///{Path(folder) / 'mlflow.db'}",
        }  # fmt: skip
        command = [sys.executable, "-c", _LOOP, str(SECONDS)]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    rounds: list[dict[str, tuple[float, float]]] = json.loads(done.stdout.splitlines()[-1])
    return [
        _result(rounds, 0, "slowdown of a loop at 200 rows/s into MLflow", ("ours", "bare")),
        _result(rounds, 1, "the same, of the typical row", ("ours", "bare")),
        _result(rounds, 1, "of it by the bridge at work beside it", ("ours", "alone"), placebo=False),
    ]


def _result(
    rounds: Sequence[dict[str, tuple[float, float]]],
    which: int,
    what: str,
    pair: tuple[str, str],
    *,
    placebo: bool = True,
) -> Result:
    slower = _percent(rounds, which, *pair)
    low, high = _interval(slower)
    peer = median(_percent(rounds, which, "placebo", "bare")) if placebo else None
    named = f"{what} ({len(rounds)} pairs, 95 %: {low:.2f} to {high:.2f}; peer: json.dumps)"
    found = median(slower)
    return Result(
        named if placebo else named.replace("; peer: json.dumps", ""), found, peer, "%", "<= 0.5 %", found <= 0.5
    )


def _percent(rounds: Sequence[dict[str, tuple[float, float]]], which: int, one: str, other: str) -> list[float]:
    return [(found[one][which] / found[other][which] - 1) * 100 for found in rounds]


def _interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the median, by drawing the pairs again."""
    draw = random.Random(1)
    medians = sorted(median(draw.choices(values, k=len(values))) for _ in range(2000))
    return medians[50], medians[-51]
