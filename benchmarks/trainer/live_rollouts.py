"""Ten thousand rollouts that are open at one time: what the bridge that collects their spans needs and loses."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.peers import QUIET
from benchmarks.results import Result

_ROLLOUTS = 10_000
_OPEN_BYTES = 128 << 20

_EMIT = """
import asyncio, sys, otel_bridge
count = int(sys.argv[1])
run = otel_bridge.init(project="bench", name="live", role="explorer", exporters="file")

async def rollout(number, gate):
    with run.rollout(step=1, group=str(number // 8), sample=number % 8) as one:
        with one.chat("policy", input="question " * 100) as turn:
            turn.output = "answer " * 100
        await gate.wait()
        one.reward = number % 2

async def main():
    gate = asyncio.Event()
    tasks = [asyncio.create_task(rollout(number, gate)) for number in range(count)]
    await asyncio.sleep(0)
    run.flush(timeout_s=60.0)  # the bridge has read a span of each, and no root
    gate.set()
    await asyncio.gather(*tasks)

asyncio.run(main())
run.finish(timeout_s=0.0)
"""
_BRIDGE = """
import json, os, psutil, sys, time
from pathlib import Path
from otel_bridge.bridge.supervisor import BridgeSupervisor
from otel_bridge.bridge.options import BridgeOptions
count, base = int(sys.argv[1]), Path(os.environ["OTEL_BRIDGE_DIR"])
host = BridgeSupervisor(base, BridgeOptions.read(dict(os.environ), Path.cwd()), until_done=False)
host.start()
me = psutil.Process()
first = most = me.memory_info().rss
total, until = 0, time.monotonic() + 80
while not total and time.monotonic() < until:
    most = max(most, me.memory_info().rss)
    time.sleep(0.02)
    for path in base.glob("*/**/*.jsonl"):
        for line in path.read_text().splitlines():
            total = total or json.loads(line).get("values", {}).get("explorer/rollouts/total", 0)
print(total, most - first)
host.stop()
"""


def run() -> list[Result]:
    """Measure."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        environment = {
            **os.environ,
            **QUIET,
            "OTEL_BRIDGE_DIR": str(Path(folder) / "runs"),
            "OTEL_BRIDGE_OFFLINE": "1",
            "OTEL_BRIDGE_MAX_OPEN_TRACE_BYTES": str(_OPEN_BYTES),
        }
        (Path(folder) / "runs").mkdir()
        with subprocess.Popen(
            [sys.executable, "-c", _BRIDGE, str(_ROLLOUTS)],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        ) as bridge:
            subprocess.run(
                [sys.executable, "-c", _EMIT, str(_ROLLOUTS)],
                env=environment,
                check=True,
            )
            said, _ = bridge.communicate()
    counted, rise = map(int, said.split())
    lost, rise_mb = _ROLLOUTS - counted, rise / 1e6
    limit_mb = _OPEN_BYTES / 1e6
    what = f"{_ROLLOUTS:,} rollouts open at one time"
    return [
        Result(f"{what}, lost", lost, None, "", "0", lost == 0),
        Result(
            f"{what}, the bridge's memory",
            rise_mb,
            None,
            "MB",
            f"<= {limit_mb:.0f} MB",
            rise_mb <= limit_mb,
        ),
    ]
