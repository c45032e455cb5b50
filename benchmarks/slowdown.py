"""How much a pure Python training loop at 200 rows/s into MLflow is slowed down.

A shared machine's speed wanders by more than the goal within a row, so the slowdown is put together from what can be
told apart. One process runs many rounds of four blocks of a third of a second, two kinds and then the same in the
reverse order, and takes the time of each row's work and of its call apart:

* *log()*: its share of the rows that the machine let alone, which is judged by their work only: at most 5 % above the
  fastest. The checks of once a second and the rolls of segments fall on such rows as on any.
* *the work beside it*: the work of the fastest quarter of the rows against that of the same round without telemetry, in
  the half of the rounds whose two bare blocks agree best: caches that the call left cold, and the bridge at work.
* *waiting for a core*: what the kernel says the loop waited while the bridge ran in its place.

Shorter blocks would overstate it: the first row after a pause costs four others. The clock alone, over all rows, is
shown beside the same loop with a thread that calls MLflow in the process: where the machine is calm it says the same,
in noise nothing.

* ``bare``: the work alone. The bridge is stopped, so that what is left to deliver falls to the blocks that caused it.
* ``ours``: `Run.log` after each 5 ms of work, the bridge delivering meanwhile.
* ``thread``: the values go into a queue, from which a thread takes what is there and calls ``log_batch``.
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
from typing import Final, NamedTuple

from benchmarks.peers import QUIET
from benchmarks.results import Result, median

SECONDS, THREAD_SECONDS = 120, 30
CALM: Final = 1.05
_LOOP: Final = """
import gc, json, math, os, queue, random, signal, sys, threading, time
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
clock, times = time.perf_counter, []
for _ in range(60):  # for three seconds: a machine that is slow for a while would else be given rows that are too short
    began = clock(); work(10); times.append(clock() - began); time.sleep(0.05)
samples = max(1, int(10 * 0.005 / min(times)))

def waited():
    with open("/proc/self/schedstat") as file: return int(file.read().split()[1]) / 1e9

def block(call):
    global step
    works, calls, before = [], [], waited()
    for _ in range(64):
        step += 1
        began = clock(); work(samples); between = clock(); call(values, step=step); end = clock()
        works.append(between - began); calls.append(end - between)
    return {"works": works, "calls": calls, "waited": waited() - before}

gc.disable()
def measure(kind, call, pause, go_on, seconds):
    rounds, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        found, order = {"bare": [], kind: []}, random.sample(["bare", kind], 2)
        for name in order + order[::-1]:
            go_on() if name == kind else pause()
            work(samples)
            found[name].append(block(call if name == kind else lambda values, step: None))
        rounds.append(found)
    go_on()
    return rounds

send = lambda number: lambda: os.kill(bridge, number)
ours = measure("ours", run.log, send(signal.SIGSTOP), send(signal.SIGCONT), float(sys.argv[1]))
began = time.monotonic(); run.flush(30); left = time.monotonic() - began
run.finish(timeout_s=120)

from mlflow import MlflowClient
from mlflow.entities import Metric
client = MlflowClient()
tracked, rows = client.create_run(client.create_experiment("thread")).info.run_id, queue.Queue()
def deliver():
    while True:
        batch = [rows.get()]
        while len(batch) < 100 and not rows.empty(): batch.append(rows.get())
        client.log_batch(tracked, [Metric(key, value, 0, step) for at, step in batch for key, value in at.items()])
        for _ in batch: rows.task_done()
threading.Thread(target=deliver, daemon=True).start()
put = lambda values, step: rows.put((values, step))
print(json.dumps({"ours": ours, "left_s": left, "thread": measure("thread", put, rows.join, int, float(sys.argv[2]))}))
"""


class Block(NamedTuple):
    """64 rows: seconds of the work and of the call of each, and what the loop waited for a core."""

    works: list[float]
    calls: list[float]
    waited_s: float


class Round(NamedTuple):
    """Two blocks without telemetry and two with."""

    bare: list[Block]
    told: list[Block]


def run() -> list[Result]:
    """Measure."""
    with tempfile.TemporaryDirectory() as folder:
        env = {
            **os.environ, **QUIET, "OTEL_BRIDGE_DIR": f"{folder}/runs", "OTEL_BRIDGE_HOLD": "0",
            "MLFLOW_TRACKING_URI": f"sqlite:///{Path(folder) / 'mlflow.db'}",
        }  # fmt: skip
        command = [sys.executable, "-c", _LOOP, str(SECONDS), str(THREAD_SECONDS)]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    ours, thread = (
        [Round(*([Block(*block.values()) for block in one[kind]] for kind in ("bare", name))) for one in found[name]]
        for name in ("ours", "thread")
    )
    log, calm = _log_share(ours)
    beside, low, high = _beside(ours)
    waited = _waited(ours)
    whole, left_s = log + beside + waited, found["left_s"]
    spread = f"95 %: {whole + low - beside:.2f} to {whole + high - beside:.2f}"
    return [
        Result(f"slowdown of a loop at 200 rows/s into MLflow ({spread})", whole, None, "%", "<= 0.5 %", whole <= 0.5),
        Result(f"of it log(), in the {calm:.0%} of the rows that were let alone", log, None, "%", "reported", met=True),
        Result("of it the work beside it", beside, None, "%", "reported", met=True),
        Result("of it waiting for a core", waited, None, "%", "reported", met=True),
        Result("by the clock alone; peer: a thread", _clock(ours), _clock(thread), "%", "reported", met=True),
        Result("left to deliver when the loop ended", left_s, None, "s", "<= 2 s", left_s <= 2),
    ]


def _log_share(rounds: Sequence[Round]) -> tuple[float, float]:
    """Return the percentage that calls add to calm rows, and how many of the rows are calm."""
    bare = sorted(work for one in rounds for block in one.bare for work in block.works)
    limit = CALM * bare[len(bare) // 50]
    rows = [row for one in rounds for block in one.told for row in zip(block.works, block.calls, strict=True)]
    calm = [row for row in rows if row[0] <= limit]
    return sum(call for _, call in calm) / sum(work for work, _ in calm) * 100, len(calm) / len(rows)


def _beside(rounds: Sequence[Round]) -> tuple[float, float, float]:
    """Return by how many percent work is slower beside telemetry, with its 95 % interval."""
    calm = sorted(rounds, key=lambda one: abs(_quarter(one.bare[:1]) / _quarter(one.bare[1:]) - 1))
    slower = [(_quarter(one.told) / _quarter(one.bare) - 1) * 100 for one in calm[: len(calm) // 2 + 1]]
    draw = random.Random(1)
    medians = sorted(median(draw.choices(slower, k=len(slower))) for _ in range(2000))
    return median(slower), medians[50], medians[-51]


def _quarter(blocks: Sequence[Block]) -> float:
    works = sorted(work for block in blocks for work in block.works)
    return works[len(works) // 4]


def _waited(rounds: Sequence[Round]) -> float:
    bare, told = (
        sum(block.waited_s for one in rounds for block in one[kind])
        / sum(sum(block.works) for one in rounds for block in one[kind])
        for kind in (0, 1)
    )
    return (told - bare) * 100


def _clock(rounds: Sequence[Round]) -> float:
    bare, told = (
        [sum(sum(block.works) + sum(block.calls) for block in one[kind]) for one in rounds] for kind in (0, 1)
    )
    return median([(after / before - 1) * 100 for before, after in zip(bare, told, strict=True)])
