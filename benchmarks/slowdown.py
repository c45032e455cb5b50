"""How much a pure Python training loop at 200 rows/s into MLflow is slowed down, in short interleaved blocks.

A shared machine's speed wanders by more than the goal within seconds, so one process runs many rounds of four blocks of
a third of a second, two kinds and then the same in the reverse order: what drifts evenly falls out of a round. The
other kind is compared with the bare one of its own round by the clock, over all rows; shown is the median, with its
95 % interval, of the half of the rounds whose two bare blocks agree best: in the others the machine was not the same
from block to block. An interval wider than the goal shows the machine's noise and no more: the goal is not met then.
Shorter blocks would overstate the slowdown: the first row after a pause costs four others.

* ``bare``: the work alone. Who delivers is stopped: what is left to deliver falls to the blocks that caused it.
* ``ours``: `Run.log` after each 5 ms of work, the bridge delivering meanwhile.
* ``thread``, the peer: the values go into a queue, from which a thread in the process takes them and calls
  ``log_batch``, with as much in one call as waits.
* ``other``: no telemetry at all, beside a process that does nothing but call MLflow's ``log_batch`` each half second,
  with as many rows: what the machine charges for writing them to MLflow anywhere else than in the loop.
* ``write``: no telemetry and no process, but one ``os.write`` of as many bytes as a row has after each 5 ms of work:
  what the machine charges for having a row in the kernel when the call returns. With ``other`` it is the least that
  any telemetry pays whose rows survive a kill and are delivered by another process. A call costs more than the time it
  takes: the loop finds its caches emptied behind it.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.child import printed
from benchmarks.peers import below
from benchmarks.results import Result, median, reported

SECONDS, PEER_SECONDS = 120, 30
GOAL: Final = 0.5
_LOOP: Final = """
import gc, json, math, os, queue, random, signal, subprocess, sys, threading, time
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
base = Path(os.environ["OTEL_BRIDGE_DIR"])
row = bytes(next(base.glob("*/segments/*.seg")).stat().st_size // 300)
bridge = json.loads(next(base.glob("*/report.json")).read_text())["bridge"]["pid"]
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
    return {"works": works, "calls": calls, "waited_s": waited() - before}

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

def cpu_s(pid):
    with open(f"/proc/{pid}/stat") as file: fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

def signals(pid): return (lambda: os.kill(pid, signal.SIGSTOP)), (lambda: os.kill(pid, signal.SIGCONT))

def watched(kind, call, pid, seconds):
    before = cpu_s(pid)
    rounds = measure(kind, call, *signals(pid), seconds)
    wall_s = sum(sum(block["works"]) + sum(block["calls"]) for one in rounds for block in one[kind])
    return rounds, (cpu_s(pid) - before) / wall_s

ours, share = watched("ours", run.log, bridge, float(sys.argv[1]))
began = time.monotonic(); run.flush(30); left = time.monotonic() - began
run.finish(timeout_s=120)

beside = subprocess.Popen([sys.executable, "-c", sys.argv[3]], stdout=subprocess.PIPE)
beside.stdout.readline()  # it has written once
other, beside_share = watched("other", lambda values, step: None, beside.pid, float(sys.argv[2]))
beside.kill(); beside.wait()
file = os.open(base.with_name("row"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
write = measure("write", lambda values, step: os.write(file, row), lambda: None, lambda: None, float(sys.argv[2]))

from mlflow import MlflowClient
from mlflow.entities import Metric
client = MlflowClient()
tracked, rows = client.create_run(client.create_experiment("thread")).info.run_id, queue.Queue()
gate, held = threading.Lock(), False
def deliver():
    while True:
        batch = [rows.get()]
        with gate:
            while len(batch) < 100 and not rows.empty(): batch.append(rows.get())
            client.log_batch(tracked, [Metric(key, value, 0, step) for at, step in batch for key, value in at.items()])
threading.Thread(target=deliver, daemon=True).start()
def hold(wanted):
    global held
    if wanted != held: gate.acquire() if wanted else gate.release()
    held = wanted
put = lambda values, step: rows.put((values, step))
thread = measure("thread", put, lambda: hold(True), lambda: hold(False), float(sys.argv[2]))
rounds = {"ours": ours, "other": other, "write": write, "thread": thread}
shares = {"share": share, "beside_share": beside_share}
print(json.dumps({**rounds, **shares, "left_s": left, "left_rows": rows.qsize()}))
"""
_BESIDE: Final = """
import itertools, time
from mlflow import MlflowClient
from mlflow.entities import Metric
client = MlflowClient()
tracked = client.create_run(client.create_experiment("beside")).info.run_id
for batch in itertools.count():
    due = time.monotonic() + 0.5
    rows = range(100 * batch, 100 * batch + 100)
    client.log_batch(tracked, [Metric(f"metric/{n}", n + 0.5, step, step) for step in rows for n in range(10)])
    if not batch: print(flush=True)
    time.sleep(max(due - time.monotonic(), 0))
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
        env = {**below(Path(folder)), "OTEL_BRIDGE_HOLD": "0"}
        found = json.loads(printed(_LOOP, env, str(SECONDS), str(PEER_SECONDS), _BESIDE))
    ours, other, write, thread = (_calm(found[kind], kind) for kind in ("ours", "other", "write", "thread"))
    slower, peer = _slower(ours, _clock), _slower(thread, _clock)
    low, high = _interval(slower)
    judged = f"slowdown of a loop at 200 rows/s into MLflow ({len(slower)} rounds, 95 %: {low:.2f} to {high:.2f})"
    whole, shown, left_s = median(slower), high - low <= GOAL, found["left_s"]
    return [
        Result(judged, whole, median(peer), "%", f"<= {GOAL} %", shown and whole <= GOAL),
        reported("the same, of the middle half of the rows", median(_slower(ours, _middle)), "%"),
        reported("of it the calls of log()", _share(ours, _calls), "%"),
        reported("of it waiting for a core", _share(ours, _waited), "%"),
        reported("how busy the bridge is", found["share"] * 100, "% of a core"),
        reported("no telemetry, beside a process that calls log_batch", median(_slower(other, _clock)), "%"),
        reported("how busy that process is", found["beside_share"] * 100, "% of a core"),
        reported("no telemetry, but one write of a row's bytes", median(_slower(write, _clock)), "%"),
        reported("of it the writes", _share(write, _calls), "%"),
        Result("left to deliver when the loop ended", left_s, None, "s", "<= 2 s", left_s <= 2),
        reported("rows left in the peer's queue", 0, "rows", found["left_rows"]),
    ]


def _calm(rounds: Sequence[Mapping[str, list[Mapping[str, Any]]]], kind: str) -> list[Round]:
    """Return the half of the rounds whose bare blocks agree best."""
    read = [Round(*([Block(**block) for block in one[name]] for name in ("bare", kind))) for one in rounds]
    read.sort(key=lambda one: abs(_clock(one.bare[:1]) / _clock(one.bare[1:]) - 1))
    return read[: len(read) // 2 + 1]


def _slower(rounds: Sequence[Round], measure: Callable[[Sequence[Block]], float]) -> list[float]:
    """Return by how many percent each round is slower with telemetry than without."""
    return [(measure(one.told) / measure(one.bare) - 1) * 100 for one in rounds]


def _share(rounds: Sequence[Round], measure: Callable[[Sequence[Block]], float]) -> float:
    """Return how many percent of the work with telemetry *measure* is."""
    return sum(measure(one.told) for one in rounds) / sum(_works(one.told) for one in rounds) * 100


def _works(blocks: Sequence[Block]) -> float:
    return sum(sum(block.works) for block in blocks)


def _calls(blocks: Sequence[Block]) -> float:
    return sum(sum(block.calls) for block in blocks)


def _waited(blocks: Sequence[Block]) -> float:
    return sum(block.waited_s for block in blocks)


def _clock(blocks: Sequence[Block]) -> float:
    return _works(blocks) + _calls(blocks)


def _middle(blocks: Sequence[Block]) -> float:
    rows = sorted(work + call for block in blocks for work, call in zip(block.works, block.calls, strict=True))
    return sum(rows[len(rows) // 4 : -len(rows) // 4])


def _interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the median, by drawing the rounds again."""
    draw = random.Random(1)
    medians = sorted(median(draw.choices(values, k=len(values))) for _ in range(2000))
    return medians[50], medians[-51]
