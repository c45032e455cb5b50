"""Rows a second from the segments to each tracker alone, decode and ledger included, against the tracker's own loop."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.child import printed
from benchmarks.mlflow_server import mlflow_server
from benchmarks.peers import below
from benchmarks.results import Result, median
from support.trackers.wandb_backend.server import WandbServer


@dataclass(frozen=True, slots=True)
class _Case:
    """One tracker, the loop it is compared with, and how many rows each writes.

    Attributes:
        peer: Its function in `benchmarks.peers`.
        online: On the same machine W&B's stand-in server of `otel_bridge.testing`, or a real ``mlflow server``.
        rounds: How often both are measured; more where the goal is near.
    """

    tracker: str
    peer: str
    goal: float
    rows: int
    peer_rows: int
    what: str
    online: bool = False
    rounds: int = 3


_CASES = (
    _Case(
        "trackio",
        "trackio",
        0.9,
        60_000,
        60_000,
        "trackio, a loop of trackio.log",
        rounds=7,
    ),
    _Case("wandb", "wandb", 0.8, 40_000, 40_000, "wandb offline, a loop of run.log"),
    _Case(
        "wandb",
        "wandb_online",
        0.8,
        15_000,
        15_000,
        "wandb online (stand-in), a loop of run.log",
        online=True,
    ),
    _Case("mlflow", "mlflow", 4.0, 2_000, 300, "mlflow sqlite, a loop of log_metrics"),
    _Case(
        "mlflow",
        "mlflow_batches",
        0.9,
        4_000,
        4_000,
        "mlflow sqlite, log_batch of 1,000 metrics",
    ),
    _Case(
        "mlflow",
        "mlflow",
        4.0,
        2_000,
        300,
        "an mlflow server, a loop of log_metrics",
        online=True,
    ),
    _Case(
        "mlflow",
        "mlflow_batches",
        0.9,
        3_000,
        3_000,
        "an mlflow server, log_batch of 1,000 metrics",
        online=True,
    ),
)

_EMIT = """
import sys, otel_bridge
run = otel_bridge.init(project="bench", role="trainer", exporters=sys.argv[1])
values = [{f"metric/{n}": n + step / 7 for n in range(10)} for step in range(100)]
for step in range(int(sys.argv[2])): run.log(values[step % 100], step=step)
"""
# Both clocks run from an imported tracker until the run is finished there: its opening and its closing are in them.
_DRAIN = """
import dataclasses, os, sys, time
from pathlib import Path
from otel_bridge.bridge.serving.process_limits import collect_less_often
from otel_bridge.bridge.supervisor import BridgeSupervisor
from otel_bridge.bridge.options import BridgeOptions
from otel_bridge.journal.folder import run_folders
name, rows = sys.argv[1], int(sys.argv[2])
base = Path(os.environ["OTEL_BRIDGE_DIR"])
options = dataclasses.replace(BridgeOptions.read(dict(os.environ), Path.cwd()), closing=True)
collect_less_often()  # as the process of a bridge does
host = BridgeSupervisor(base, options, until_done=True)
__import__(name)
if name == "mlflow":
    import mlflow; mlflow.set_experiment("warm")
began = time.perf_counter()
host.start()
while True:
    written = [one.rows for run in host.progress().values() for one in run.exporters.values()]
    if written and min(written) >= rows: break
    time.sleep(0.05)
host.stop()
print(rows / (time.perf_counter() - began))
"""
_PEER = """
import os, sys, time
from pathlib import Path
from benchmarks import peers
name, rows, server = sys.argv[1], int(sys.argv[2]), os.environ.get("MLFLOW_TRACKING_URI", "")
peers.prepare(Path(sys.argv[3]))
if server.startswith("http"): os.environ["MLFLOW_TRACKING_URI"] = server
values = [{f"metric/{n}": n + step / 7 for n in range(10)} for step in range(100)]
__import__(name.partition("_")[0])
if name.startswith("mlflow"):
    import mlflow; mlflow.set_experiment("warm")
began = time.perf_counter()
with getattr(peers, name)() as log:
    for step in range(rows): log(values[step % 100], step)
# Behind finish(): a row in a queue is not in the tracker.
print(rows / (time.perf_counter() - began))
"""


def run() -> list[Result]:
    """Measure."""
    return [_measured(case) for case in _CASES]


def _measured(case: _Case) -> Result:
    with ExitStack() as stack:
        env: dict[str, str] = {}
        if case.online and case.tracker == "mlflow":
            # One for all rounds, since it takes seconds to start: each round writes a run of its own.
            folder = Path(
                stack.enter_context(
                    tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
                )
            )
            env["MLFLOW_TRACKING_URI"] = stack.enter_context(mlflow_server(folder))
        pairs = [
            (_served(_ours, case, env), _served(_peer, case, env))
            for _ in range(case.rounds)
        ]
    own, peer = median([one for one, _ in pairs]), median([one for _, one in pairs])
    ratios = [one / other for one, other in pairs]
    ratio = median(ratios)
    what = f"rows/s into {case.what} (ours / peer: {', '.join(f'{one:.2f}' for one in ratios)})"
    return Result(
        what, own, peer, "rows/s", f">= {case.goal:g} of it", ratio >= case.goal
    )


def _served(
    measure: Callable[[_Case, Mapping[str, str]], float],
    case: _Case,
    env: Mapping[str, str],
) -> float:
    """Measure with a W&B server of its own where one is needed: a run that is there already is another case."""
    with ExitStack() as stack:
        if case.online and case.tracker == "wandb":
            env = stack.enter_context(WandbServer()).environment()
        return measure(case, env)


def _ours(case: _Case, env: Mapping[str, str]) -> float:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        env = {
            **below(Path(folder)),
            "OTEL_BRIDGE_OFFLINE": "1",
            "WANDB_MODE": "online" if case.online else "offline",
            "OTEL_BRIDGE_RUN_NAME": f"delivery-{Path(folder).name}",
            **env,
        }
        printed(_EMIT, env, case.tracker, str(case.rows))
        return float(printed(_DRAIN, env, case.tracker, str(case.rows)))


def _peer(case: _Case, env: Mapping[str, str]) -> float:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        return float(
            printed(
                _PEER, {**os.environ, **env}, case.peer, str(case.peer_rows), folder
            )
        )
