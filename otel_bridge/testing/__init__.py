"""Public test doubles and the contract every writer must pass.

* `MemoryTable`: a writer's memory.
* `samples`: deterministic records of every kind.
* `Contents`: what a tracker holds of one run, in one shape for all.
* `otel_bridge.testing.contract.WriterContract`: the tests; imports pytest, hence not from here.
"""

from __future__ import annotations

from otel_bridge.testing import samples
from otel_bridge.testing.contents import (
    Contents,
    HeldDistribution,
    HeldRollout,
    HeldScalar,
    flat_config,
    flat_configs,
)
from otel_bridge.testing.delivery import deliver, open_writer
from otel_bridge.testing.memory import MemoryTable

__all__ = [
    "Contents",
    "HeldDistribution",
    "HeldRollout",
    "HeldScalar",
    "MemoryTable",
    "deliver",
    "flat_config",
    "flat_configs",
    "open_writer",
    "samples",
]
