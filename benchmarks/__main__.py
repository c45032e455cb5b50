"""Run every measurement, or those named: ``python -m benchmarks caller delivery``."""

from __future__ import annotations

import importlib
import sys
import time

from benchmarks.results import show

NAMES = (
    "bridge_cpu",
    "caller",
    "captured_wandb",
    "media",
    "rollouts",
    "live_rollouts",
    "training",
    "slowdown",
    "delivery",
    "rollout_delivery",
    "three_trackers",
    "wandb_table",
    "latency",
    "loss",
    "ingest",
    "many_runs",
    "memory",
    "wide_run",
)


def main() -> None:
    """Print a table for each; exit 1 when a goal is missed."""
    chosen = sys.argv[1:] or NAMES
    missed = 0
    for name in chosen:
        if name not in NAMES:
            sys.exit(f"{name!r} is not a benchmark; choose from {', '.join(NAMES)}")
        began = time.monotonic()
        results = importlib.import_module(f"benchmarks.{name}").run()
        show(f"{name} ({time.monotonic() - began:.0f} s)", results)
        missed += sum(result.met is False for result in results)
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
