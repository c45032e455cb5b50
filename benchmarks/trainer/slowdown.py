"""How much a pure Python training loop at 200 rows/s into MLflow is slowed down, in short interleaved blocks.

A shared machine's speed wanders by more than the goal within seconds, so one process runs many rounds of blocks of a
third of a second, one of each kind and then the same in the reverse order: what drifts evenly falls out of a round.
Kinds are compared within their round by the clock, over all rows; shown is the median, with its 95 % interval, of the
half of the rounds whose two bare blocks agree best: in the others the machine was not the same from block to block. An
interval wider than the goal shows the machine's noise and no more: the goal is not met then. Shorter blocks would
overstate the slowdown: the first row after a pause costs four others.

* ``bare``: the work alone. Who delivers is stopped: what is left to deliver falls to the blocks that caused it.
* ``ours``: `Run.log` after each 5 ms of work, the bridge delivering meanwhile.
* ``other``: no telemetry at all, beside a process that does nothing but call MLflow's ``log_batch``, once a block and
  with as many rows: what the machine charges for writing them to MLflow anywhere else than in the loop. Where two
  cores are two threads of one, or share their caches with others, that alone is above the goal.
* ``write``: no telemetry and no process, but one ``os.write`` of as many bytes as a row has after each 5 ms of work:
  what the machine charges for having a row in the kernel when the call returns. With ``other`` it is the least that
  any telemetry pays whose rows survive a kill and are delivered by another process.
* ``thread``, the peer, in rounds of its own behind them: the values go into a queue, from which a thread in the process
  takes them and calls ``log_batch``, with as much in one call as waits.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from benchmarks.child import printed
from benchmarks.peers import below
from benchmarks.results import Result, median, reported

SECONDS, PEER_SECONDS = 180, 30
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
def measure(kinds, seconds):
    kinds, rounds, end = {"bare": (rest, rest, lambda values, step: None), **kinds}, [], time.monotonic() + seconds
    while time.monotonic() < end:
        found, order = {name: [] for name in kinds}, random.sample(list(kinds), len(kinds))
        for name in order + order[::-1]:
            before, behind, call = kinds[name]
            before()
            work(samples)
            found[name].append(block(call))
            behind()
        rounds.append(found)
    return rounds

def cpu_s(pid):
    with open(f"/proc/{pid}/stat") as file: fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

def busy(name, pid):
    wall_s = sum(sum(one["works"]) + sum(one["calls"]) for each in rounds for one in each[name])
    return (cpu_s(pid) - before[pid]) / wall_s

rest = lambda: None
# A database of its own: each of the two may be stopped in the midst of a transaction.
own = {**os.environ, "MLFLOW_TRACKING_URI": f"sqlite:///{base.with_name('beside.db')}"}
pipes = {"bufsize": 0, "stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
beside = subprocess.Popen([sys.executable, "-c", sys.argv[3]], env=own, **pipes)
beside.stdout.readline()  # it has written once
def resume(pid, given=None):
    os.kill(pid, signal.SIGCONT)
    if given is not None: given.write(b"x")
def stop(pid): os.kill(pid, signal.SIGSTOP)
file = os.open(base.with_name("row"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
stop(bridge)
before = {pid: cpu_s(pid) for pid in (bridge, beside.pid)}
rounds = measure({
    "ours": (lambda: resume(bridge), lambda: stop(bridge), run.log),
    "other": (lambda: resume(beside.pid, beside.stdin), lambda: stop(beside.pid), lambda values, step: None),
    "write": (rest, rest, lambda values, step: os.write(file, row)),
}, float(sys.argv[1]))
share, beside_share = busy("ours", bridge), busy("other", beside.pid)
beside.kill(); beside.wait()
resume(bridge)
began = time.monotonic(); run.flush(30); left = time.monotonic() - began
run.finish(timeout_s=120)

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
thread = measure({"thread": (lambda: hold(False), lambda: hold(True), put)}, float(sys.argv[2]))
shares = {"share": share, "beside_share": beside_share}
print(json.dumps({"rounds": rounds, "thread": thread, **shares, "left_s": left, "left_rows": rows.qsize()}))
"""
_BESIDE: Final = """
import sys
from mlflow import MlflowClient
from mlflow.entities import Metric
client, step = MlflowClient(), 0
tracked = client.create_run(client.create_experiment("beside")).info.run_id
while True:
    rows = range(step, step + 64)
    step += 64
    client.log_batch(tracked, [Metric(f"metric/{n}", n + 0.5, at, at) for at in rows for n in range(10)])
    if step == 64: print(flush=True)
    if not sys.stdin.buffer.raw.read(1): break
"""


class Block(NamedTuple):
    """64 rows: seconds of the work and of the call of each, and what the loop waited for a core."""

    works: list[float]
    calls: list[float]
    waited_s: float


Round: TypeAlias = Mapping[str, list[Block]]
"""The two blocks of each kind."""


def run() -> list[Result]:
    """Measure."""
    with tempfile.TemporaryDirectory() as folder:
        env = {**below(Path(folder)), "OTEL_BRIDGE_OFFLINE": "0"}
        found = json.loads(
            printed(_LOOP, env, str(SECONDS), str(PEER_SECONDS), _BESIDE)
        )
    rounds, peer = _calm(found["rounds"]), _calm(found["thread"])
    slower, other, write = (
        _slower(rounds, kind) for kind in ("ours", "other", "write")
    )
    low, high = _interval(slower)
    whole, shown, left_s = median(slower), high - low <= GOAL, found["left_s"]
    judged = _ranged(
        f"slowdown of a loop at 200 rows/s into MLflow ({len(rounds)} rounds, 95 %%: %s)",
        slower,
    )
    beyond = _slower(rounds, "ours", "other")
    return [
        Result(
            judged,
            whole,
            median(_slower(peer, "thread")),
            "%",
            f"<= {GOAL} %",
            shown and whole <= GOAL,
        ),
        reported(
            "the same, of the middle half of the rows",
            median(_slower(rounds, "ours", measure=_middle)),
            "%",
        ),
        reported("of it the calls of log()", _share(rounds, "ours", _calls), "%"),
        reported("of it waiting for a core", _share(rounds, "ours", _waited), "%"),
        reported("how busy the bridge is", found["share"] * 100, "% of a core"),
        reported(
            _ranged("no telemetry, beside a process that calls log_batch (%s)", other),
            median(other),
            "%",
        ),
        reported(
            "how busy that process is", found["beside_share"] * 100, "% of a core"
        ),
        reported(_ranged("ours beyond that (%s)", beyond), median(beyond), "%"),
        reported(
            _ranged("no telemetry, but one write of a row's bytes (%s)", write),
            median(write),
            "%",
        ),
        reported("of it the writes", _share(rounds, "write", _calls), "%"),
        Result(
            "left to deliver when the loop ended",
            left_s,
            None,
            "s",
            "<= 2 s",
            left_s <= 2,
        ),
        reported("rows left in the peer's queue", 0, "rows", found["left_rows"]),
    ]


def _calm(rounds: Sequence[Mapping[str, list[Mapping[str, Any]]]]) -> list[Round]:
    """Return the half of the rounds whose bare blocks agree best."""
    read = [
        {kind: [Block(**block) for block in blocks] for kind, blocks in one.items()}
        for one in rounds
    ]
    read.sort(
        key=lambda one: abs(_clock(one["bare"][:1]) / _clock(one["bare"][1:]) - 1)
    )
    return read[: len(read) // 2 + 1]


def _clock(blocks: Sequence[Block]) -> float:
    return _works(blocks) + _calls(blocks)


def _slower(
    rounds: Sequence[Round],
    kind: str,
    than: str = "bare",
    measure: Callable[[Sequence[Block]], float] = _clock,
) -> list[float]:
    """Return by how many percent of the bare loop *kind* is slower than another in each round."""
    return [
        (measure(one[kind]) - measure(one[than])) / measure(one["bare"]) * 100
        for one in rounds
    ]


def _share(
    rounds: Sequence[Round], kind: str, measure: Callable[[Sequence[Block]], float]
) -> float:
    """Return how many percent of the work of *kind* *measure* is."""
    return (
        sum(measure(one[kind]) for one in rounds)
        / sum(_works(one[kind]) for one in rounds)
        * 100
    )


def _works(blocks: Sequence[Block]) -> float:
    return sum(sum(block.works) for block in blocks)


def _calls(blocks: Sequence[Block]) -> float:
    return sum(sum(block.calls) for block in blocks)


def _waited(blocks: Sequence[Block]) -> float:
    return sum(block.waited_s for block in blocks)


def _middle(blocks: Sequence[Block]) -> float:
    rows = sorted(
        work + call
        for block in blocks
        for work, call in zip(block.works, block.calls, strict=True)
    )
    return sum(rows[len(rows) // 4 : -len(rows) // 4])


def _ranged(label: str, values: Sequence[float]) -> str:
    low, high = _interval(values)
    return label % f"{low:.2f} to {high:.2f}"


def _interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the median, by drawing the rounds again."""
    draw = random.Random(1)
    medians = sorted(median(draw.choices(values, k=len(values))) for _ in range(2000))
    return medians[50], medians[-51]
