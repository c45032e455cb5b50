"""The caller's time of `Run.train_on` for the 1,024 rollouts of one step, by id, as objects and as columns."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from benchmarks import peers
from benchmarks.results import Result, median

_ROUNDS = 30
_ROLLOUTS = 1024


def run() -> list[Result]:
    """Measure."""
    with tempfile.TemporaryDirectory() as folder:
        peers.prepare(Path(folder))
        os.environ["OTEL_BRIDGE_OFFLINE"] = "1"
        import otel_bridge
        from otel_bridge import Rollout

        job = otel_bridge.init(
            project="bench", name="lineage", role="trainer", exporters="trackio"
        )
        times: dict[str, list[float]] = {"ids": [], "objects": [], "columns": []}
        for step in range(_ROUNDS):
            # Ids that no earlier step had, as in a job: their trace ids are not known yet.
            ids = [f"{step}-{index}" for index in range(_ROLLOUTS)]
            objects = [Rollout(messages="q", id=f"{name}-o") for name in ids]
            columns = {"ids": [f"{name}-c" for name in ids]}
            for form, consumed in (
                ("ids", ids),
                ("objects", objects),
                ("columns", columns),
            ):
                began = time.perf_counter()
                job.train_on(step, consumed)
                times[form].append((time.perf_counter() - began) * 1e3)
        job.finish(timeout_s=0.0)
    results: list[Result] = []
    for form, measured in times.items():
        middle = median(measured)
        text = f"train_on(), 1,024 rollouts as {form}"
        results.append(Result(text, middle, None, "ms", "<= 3 ms", middle <= 3))
    return results
