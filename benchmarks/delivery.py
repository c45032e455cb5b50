"""Rows a second from the segments to each tracker alone, decode and ledger included, against the tracker's own loop."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.peers import QUIET
from benchmarks.results import Result, median

_ROUNDS = 3
_ROWS = {"trackio": 60_000, "wandb": 40_000, "mlflow": 2_000}
_PEER_ROWS = {"trackio": 60_000, "wandb": 40_000, "mlflow": 300}
_GOALS = {"trackio": 0.9, "wandb": 0.8, "mlflow": 4.0}

_EMIT = """
import sys, otel_bridge
run = otel_bridge.init(project="bench", name="delivery", role="trainer", exporters=sys.argv[1])
values = [{f"metric/{n}": n + step / 7 for n in range(10)} for step in range(100)]
for step in range(int(sys.argv[2])): run.log(values[step % 100], step=step)
"""
# The rate is that of the process once its tracker is imported and its store made, as for the peer.
_DRAIN = """
import dataclasses, os, sys, time
from pathlib import Path
from otel_bridge.bridge.host import Host
from otel_bridge.bridge.options import BridgeOptions
from otel_bridge.journal.folder import run_folders
name, rows = sys.argv[1], int(sys.argv[2])
base = Path(os.environ["OTEL_BRIDGE_DIR"])
options = dataclasses.replace(BridgeOptions.read(dict(os.environ), Path.cwd()), closing=True)
host = Host(base, options, until_done=True)
__import__(name)
if name == "mlflow":
    import mlflow; mlflow.set_experiment("warm")
began = time.perf_counter()
host.start()
while True:
    written = [one.rows for run in host.progress().values() for one in run.exporters.values()]
    if written and min(written) >= rows: break
    time.sleep(0.005)
print(rows / (time.perf_counter() - began))
host.stop()
"""
_PEER = """
import sys, time
from pathlib import Path
from benchmarks import peers
name, rows = sys.argv[1], int(sys.argv[2])
peers.prepare(Path(sys.argv[3]))
values = [{f"metric/{n}": n + step / 7 for n in range(10)} for step in range(100)]
with getattr(peers, name)() as log:
    began = time.perf_counter()
    for step in range(rows): log(values[step % 100], step)
# Behind finish(): a row in a queue is not in the tracker.
print(rows / (time.perf_counter() - began))
"""


def run() -> list[Result]:
    """Measure."""
    results = []
    for name, goal in _GOALS.items():
        pairs = [(_ours(name), _peer(name)) for _ in range(_ROUNDS)]
        own, peer = median([one for one, _ in pairs]), median([one for _, one in pairs])
        ratio = median([one / other for one, other in pairs])
        what = f"rows/s into {name} (ours / peer = {ratio:.2f})"
        results.append(Result(what, own, peer, "rows/s", f">= {goal:g} of its own loop", ratio >= goal))
    return results


def _ours(name: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        env = {
            **os.environ, **QUIET, "OTEL_BRIDGE_DIR": f"{folder}/runs", "OTEL_BRIDGE_HOLD": "1", "WANDB_DIR": folder,
            "TRACKIO_DIR": f"{folder}/trackio", "MLFLOW_TRACKING_URI": f"sqlite:///{Path(folder) / 'mlflow.db'}",
        }  # fmt: skip
        _child(_EMIT, env, name, str(_ROWS[name]))
        return float(_child(_DRAIN, env, name, str(_ROWS[name])))


def _peer(name: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        return float(_child(_PEER, dict(os.environ), name, str(_PEER_ROWS[name]), folder))


def _child(code: str, env: dict[str, str], *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], env=env, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    lines = done.stdout.strip().splitlines()
    return lines[-1] if lines else ""
