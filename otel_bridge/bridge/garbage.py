"""How often the cyclic garbage collector of a bridge's process runs; called by what owns that process."""

from __future__ import annotations

import gc
from typing import Final

ALLOCATIONS: Final = 20_000
"""Containers that are new since the last collection; Python 3.11 begins one with each 700."""


def collect_less_often() -> None:
    """Let the collector run with each 20,000 new containers, unless it is off or runs less often already.

    Records, and what a tracker makes of them, are freed by their reference counts; looking through them for cycles took
    a sixth of the processor time that rows into MLflow cost, and a tenth into Trackio (``benchmarks bridge_cpu``,
    ``delivery``).
    """
    if 0 < gc.get_threshold()[0] < ALLOCATIONS:
        gc.set_threshold(ALLOCATIONS, *gc.get_threshold()[1:])
