"""Run every measurement, or those named: ``python -m benchmarks caller delivery``."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Mapping, Sequence

from benchmarks.results import show

ROOMS: Mapping[str, Sequence[str]] = {
    "trainer": (
        "caller", "captured_wandb", "media", "phases", "lineage", "tokens", "rollouts", "live_rollouts", "training",
        "slowdown", "loss",
    ),
    "trackers": (
        "bridge_cpu", "delivery", "rollout_delivery", "rollout_rewards", "three_trackers", "wandb_table", "latency",
        "wide_run",
    ),
    "collector": ("ingest", "many_runs", "memory"),
}  # fmt: skip
"""Room to its measurements, in the order in which they run."""
MODULES = {
    name: f"benchmarks.{room}.{name}" for room, names in ROOMS.items() for name in names
}


def main() -> None:
    """Print a table for each; exit 1 when a goal is missed."""
    chosen = sys.argv[1:] or list(MODULES)
    missed = 0
    for name in chosen:
        if name not in MODULES:
            sys.exit(f"{name!r} is not a benchmark; choose from {', '.join(MODULES)}")
        began = time.monotonic()
        results = importlib.import_module(MODULES[name]).run()
        show(f"{name} ({time.monotonic() - began:.0f} s)", results)
        missed += sum(result.met is False for result in results)
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
