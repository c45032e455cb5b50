"""How much a pure Python training loop at 200 rows/s into MLflow is slowed down, in short interleaved blocks.

A machine's speed wanders by more than the goal within seconds, so one process runs many rounds of four blocks of a
third of a second, two kinds and then the same in the reverse order: what drifts evenly falls out of a round. The other
kind is compared with the bare one of its own round; the median is shown, with its 95 % interval, of the half of the
rounds whose two bare blocks agree best: in the others the machine itself was not the same from block to block. Shorter
blocks would overstate it: the first row after a pause costs four others, and brings the check that is due each second.

* ``bare``: the work alone. The bridge is stopped, so that what is left to deliver falls to the blocks that caused it.
* ``ours``: `Run.log` after each 5 ms of work, the bridge delivering meanwhile.
* ``alone``: the same with the bridge stopped: `log` itself and what it does to the caches. These rounds are by
  themselves: what they log would fall to the bridge of the others, which would see two rows for each of theirs.
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
from typing import Final, TypeAlias

from benchmarks.peers import QUIET
from benchmarks.results import Result, median

SECONDS, ALONE_SECONDS = 120, 45
_WALL, _TYPICAL, _CPU = range(3)
_Round: TypeAlias = "dict[str, list[list[float]]]"
"""Kind to its two blocks: seconds of all rows by the clock, of their middle half by it, and of the thread's CPU."""
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
for step in range(300): run.log(values, step=step)
run.flush(60)
bridge = json.loads(next(Path(os.environ["OTEL_BRIDGE_DIR"]).glob("*/report.json")).read_text())["bridge"]["pid"]
began = time.perf_counter(); work(300)
samples = max(1, int(300 * 0.005 / (time.perf_counter() - began)))

def block(call):
    global step
    rows, clock, cpu = [], time.perf_counter, time.thread_time()
    for _ in range(64):
        step += 1
        began = clock(); work(samples); call(values, step=step); rows.append(clock() - began)
    return sum(rows), sum(sorted(rows)[16:48]), time.thread_time() - cpu

calls = {"bare": lambda values, step: None, "ours": run.log, "alone": run.log}
gc.disable()
def measure(kinds, seconds):
    rounds, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        found, order = {name: [] for name in kinds}, random.sample(kinds, len(kinds))
        for name in order + order[::-1]:
            os.kill(bridge, signal.SIGCONT if name == "ours" else signal.SIGSTOP)
            work(samples)
            found[name].append(block(calls[name]))
        rounds.append(found)
    os.kill(bridge, signal.SIGCONT)
    began = time.monotonic(); run.flush(30)
    return rounds, time.monotonic() - began

delivering = measure(["bare", "ours"], float(sys.argv[1]))
print(json.dumps([*delivering, measure(["bare", "alone"], float(sys.argv[2]))[0]]))
run.finish(timeout_s=120)
"""


def run() -> list[Result]:
    """Measure."""
    with tempfile.TemporaryDirectory() as folder:
        env = {
            **os.environ, **QUIET, "OTEL_BRIDGE_DIR": f"{folder}/runs", "OTEL_BRIDGE_HOLD": "0",
            "MLFLOW_TRACKING_URI": f"sqlite:///{Path(folder) / 'mlflow.db'}",
        }  # fmt: skip
        command = [sys.executable, "-c", _LOOP, str(SECONDS), str(ALONE_SECONDS)]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    rounds: list[_Round]
    alone: list[_Round]
    rounds, left_s, alone = json.loads(done.stdout.splitlines()[-1])
    judged = "slowdown of a loop at 200 rows/s into MLflow"
    return [
        _result(rounds, _WALL, judged, ("ours", "bare")),
        _result(rounds, _TYPICAL, "the same, of the middle half of the rows", ("ours", "bare")),
        _result(rounds, _CPU, "the same, of the loop's own CPU time", ("ours", "bare")),
        _result(alone, _WALL, "of it by log() itself", ("alone", "bare")),
        Result("left to deliver when the loop ended", left_s, None, "s", "<= 2 s", left_s <= 2),
    ]


def _result(rounds: Sequence[_Round], which: int, what: str, pair: tuple[str, str]) -> Result:
    one, other = pair
    calm = sorted(rounds, key=lambda found: abs(found["bare"][0][_WALL] / found["bare"][1][_WALL] - 1))
    calm = calm[: len(calm) // 2 + 1]
    slower = [(_sum(found[one], which) / _sum(found[other], which) - 1) * 100 for found in calm]
    low, high = _interval(slower)
    found = median(slower)
    named = f"{what} ({len(calm)} rounds, 95 %: {low:.2f} to {high:.2f})"
    return Result(named, found, None, "%", "<= 0.5 %", found <= 0.5)


def _sum(blocks: Sequence[Sequence[float]], which: int) -> float:
    return sum(block[which] for block in blocks)


def _interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the median, by drawing the rounds again."""
    draw = random.Random(1)
    medians = sorted(median(draw.choices(values, k=len(values))) for _ in range(2000))
    return medians[50], medians[-51]
