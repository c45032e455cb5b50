"""The caller's time of ``wandb.log()`` of 10 keys: captured, and the real package offline, in turns."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from benchmarks import peers
from benchmarks.child import printed
from benchmarks.results import Result, median
from otel_bridge.emit.config.capture_env import capture_variables

_ROUNDS = 3
_TIMES = 5
_HOW = ("", "step=step", "with define_metric()")
_CODE = """
import json, time, wandb
values = {f"train/metric{index}": index + 0.5 for index in range(9)}
run = wandb.init(project="bench", settings=wandb.Settings(silent=True, x_disable_stats=True))

def tight(rows, **given):
    began = time.perf_counter()
    for step in range(rows):
        wandb.log({**values, "train/step": float(step)}, **{name: start + step for name, start in given.items()})
    return (time.perf_counter() - began) / rows * 1e6

def settled(rows, **given):
    for _ in range(200):
        began = time.process_time()
        time.sleep(0.05)
        if time.process_time() - began < 0.002:
            break
    return tight(rows, **given)

tight(300)
found = [settled(600), settled(600, step=10_000)]
wandb.define_metric("train/*", step_metric="train/step")
found.append(settled(600))
wandb.finish()
print(json.dumps(found))
"""


def run() -> list[Result]:
    """Measure."""
    times: dict[str, list[list[float]]] = {"ours": [], "wandb": []}
    with tempfile.TemporaryDirectory() as folder:
        env = {
            **peers.below(Path(folder)),
            "OTEL_BRIDGE_OFFLINE": "1",
            "OTEL_BRIDGE_EXPORTERS": "file",
        }
        for _ in range(_ROUNDS):
            times["ours"].append(
                json.loads(printed(_CODE, env | capture_variables(env, ["wandb"])))
            )
            times["wandb"].append(json.loads(printed(_CODE, env)))
    results = []
    for index, how in enumerate(_HOW):
        own, peer = (
            median([found[index] for found in times[name]])
            for name in ("ours", "wandb")
        )
        what = f"captured wandb.log() of 10 keys{how and ', '}{how}"
        results.append(
            Result(what, own, peer, "us", f">= {_TIMES} times", peer >= _TIMES * own)
        )
    return results
