"""What the training process pays in all: CPU and memory of a million rows, and import."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from benchmarks.child import printed
from benchmarks.peers import below
from benchmarks.results import Result, median

_IMPORT = "import time; t = time.perf_counter(); import otel_bridge; print((time.perf_counter() - t) * 1e3)"
_LOADED = """
import sys, otel_bridge
print(sum(n.split('.')[0] in {'wandb','mlflow','trackio','grpc'} for n in sys.modules))
"""
_MILLION = """
import json, resource, time
import otel_bridge
run = otel_bridge.init(project="bench", name="million", exporters="trackio")
values = {f"metric/{n}": n + 0.5 for n in range(10)}
for step in range(20_000): run.log(values, step=step)
def rss(): return int(open("/proc/self/statm").read().split()[1]) * 4096
before, cpu = rss(), time.process_time()
for step in range(1_000_000): run.log(values, step=step)
print(json.dumps({"cpu_us": (time.process_time() - cpu), "grown": rss() - before}))
"""


def run() -> list[Result]:
    """Measure."""
    with tempfile.TemporaryDirectory() as folder:
        env = {**below(Path(folder)), "OTEL_BRIDGE_OFFLINE": "1"}
        imports = median([float(printed(_IMPORT, env)) for _ in range(7)])
        loaded = int(printed(_LOADED, env))
        million = json.loads(printed(_MILLION, {**env, "OTEL_BRIDGE_MAX_BYTES": "8g"}))
    grown = million["grown"] / 1e6
    return [
        Result("import otel_bridge", imports, None, "ms", "<= 60 ms", imports <= 60),
        Result(
            "trackers and grpc imported with it",
            loaded,
            None,
            "modules",
            "0",
            loaded == 0,
        ),
        Result(
            "CPU of the process a row of 10 keys",
            million["cpu_us"],
            None,
            "us",
            "<= 8 us",
            million["cpu_us"] <= 8,
        ),
        Result(
            "memory after 1,000,000 rows", grown, None, "MB", "+ <= 10 MB", grown <= 10
        ),
    ]
