"""CPU of the bridge beside a training process that logs 200 rows/s of ten values: what it takes of the machine."""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.child import printed
from benchmarks.peers import below
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
            share = float(
                printed(
                    _CODE, {**below(Path(folder)), "OTEL_BRIDGE_OFFLINE": "0"}, name
                )
            )
        results.append(
            reported(f"CPU of the bridge, 200 rows/s into {name}", share, "% of a core")
        )
    return results
