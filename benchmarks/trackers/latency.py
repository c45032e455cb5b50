"""One ``log()`` to visible through the tracker's own API, in an idle system whose bridge has been started."""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.child import printed
from benchmarks.peers import below
from benchmarks.results import Result

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
            seconds = float(printed(_CODE, below(Path(folder)), name))
        results.append(
            Result(
                f"one log() to visible in {name}",
                seconds,
                None,
                "s",
                "<= 1 s median",
                seconds <= 1.0,
            )
        )
    return results
