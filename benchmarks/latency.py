"""One ``log()`` to visible through the tracker's own API, in an idle system whose bridge has been started."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.peers import QUIET
from benchmarks.results import Result, median

_CODE = """
import os, sys, time
import otel_bridge
name = sys.argv[1]
run = otel_bridge.init(project="bench", name="latency", role="trainer", exporters=name)
run.log({"loss": 0.0}, step=0)
run.flush(timeout_s=60)
if name == "trackio":
    from trackio.sqlite_storage import SQLiteStorage
    def count(): return len(SQLiteStorage.get_logs("bench", "latency", run_id=run.id))
else:
    from mlflow import MlflowClient
    client = MlflowClient()
    tracked = client.search_runs([client.get_experiment_by_name("bench").experiment_id])[0].info.run_id
    def count(): return len(client.get_metric_history(tracked, "trainer/loss"))
times = []
for step in range(1, 16):
    time.sleep(0.3)
    began = time.perf_counter()
    run.log({"loss": float(step)}, step=step)
    while count() < step + 1: time.sleep(0.005)
    times.append(time.perf_counter() - began)
times.sort()
print(times[len(times) // 2])
run.finish(timeout_s=60)
"""


def run() -> list[Result]:
    """Measure."""
    results = []
    for name in ("trackio", "mlflow"):
        with tempfile.TemporaryDirectory() as folder:
            env = {
                **os.environ, **QUIET, "OTEL_BRIDGE_DIR": f"{folder}/runs", "TRACKIO_DIR": f"{folder}/trackio",
                "MLFLOW_TRACKING_URI": f"sqlite:///{Path(folder) / 'mlflow.db'}",
            }  # fmt: skip
            done = subprocess.run(
                [sys.executable, "-c", _CODE, name], env=env, capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise RuntimeError(done.stderr[-2000:])
            seconds = median([float(done.stdout.strip().splitlines()[-1])])
        results.append(Result(f"one log() to visible in {name}", seconds, None, "s", "<= 1 s median", seconds <= 1.0))
    return results
