"""CPU of the bridge beside a training process that logs 200 rows/s of ten values: what it takes of the machine."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.peers import QUIET
from benchmarks.results import Result, reported

_CODE: str = """
import json, os, sys, time
from pathlib import Path
import otel_bridge, psutil
run = otel_bridge.init(project="bench", name="cpu", exporters=sys.argv[1])
values = {f"metric/{n}": n + 0.5 for n in range(10)}
def log(seconds):
    began, rows = time.monotonic(), 0
    while time.monotonic() - began < seconds:
        run.log(values); rows += 1
        time.sleep(max(0.0, began + rows / 200 - time.monotonic()))
    run.flush(60)  # what is left to deliver is counted too
    return time.monotonic() - began
log(2)
report = next(Path(os.environ["OTEL_BRIDGE_DIR"]).glob("*/report.json"))
bridge = psutil.Process(json.loads(report.read_text())["bridge"]["pid"])
def cpu(): times = bridge.cpu_times(); return times.user + times.system
before = cpu(); took = log(20)
print((cpu() - before) / took * 100)
run.finish(timeout_s=60)
"""


def run() -> list[Result]:
    """Measure."""
    results = []
    for name in ("mlflow", "trackio"):
        with tempfile.TemporaryDirectory() as folder:
            env = {
                **os.environ, **QUIET, "OTEL_BRIDGE_DIR": f"{folder}/runs", "OTEL_BRIDGE_HOLD": "0",
                "TRACKIO_DIR": f"{folder}/trackio", "MLFLOW_TRACKING_URI": f"sqlite:///{Path(folder) / 'mlflow.db'}",
            }  # fmt: skip
            done = subprocess.run(
                [sys.executable, "-c", _CODE, name], env=env, capture_output=True, text=True, check=True
            )
        share = float(done.stdout.splitlines()[-1])
        results.append(reported(f"CPU of the bridge, 200 rows/s into {name}", share, "% of a core"))
    return results
