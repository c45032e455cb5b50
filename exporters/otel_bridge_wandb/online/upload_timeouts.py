"""Determines how long to wait for the upload of a run: twice as long after each timeout.

Only time distinguishes a slow server from a dead one. With the same limit for every try, a run
whose last upload takes longer would be given up and reopened forever.
"""

from __future__ import annotations

import dataclasses

from otel_bridge.exporter import WriterMemory
from otel_bridge_wandb.settings import UploadLimits

MAX_S = 1800.0
"""Longest wait, unless a setting is longer."""
_GIVEN_UP = "online/given-up"
# Far beyond MAX_S for any wait, and small enough for a float.
_MAX_DOUBLINGS = 16


class UploadTimeouts:
    """Holds the waits of one open run, remembered over restarts. For one thread.

    Args:
        memory: Memory of this destination.
    """

    def __init__(self, memory: WriterMemory) -> None:
        self._memory = memory
        self._given_up = min(int(memory.get(_GIVEN_UP) or b"0"), _MAX_DOUBLINGS)
        self._noted = False

    def stretched(self, limits: UploadLimits) -> UploadLimits:
        """Return *limits* with the waits of this try."""
        return dataclasses.replace(
            limits,
            finish_timeout_s=self.wait_s(limits.finish_timeout_s),
            stall_s=self.wait_s(limits.stall_s),
        )

    def timed_out(self) -> None:
        """Note that a wait of this try was too short; counted once."""
        if not self._noted:
            self._noted = True
            self._memory.put(_GIVEN_UP, str(self._given_up + 1).encode())

    def completed(self) -> None:
        """Note that everything was uploaded in time."""
        if self._given_up or self._noted:
            self._memory.delete(_GIVEN_UP)

    def wait_s(self, base_s: float) -> float:
        """Return the wait of this try, for an initial wait of *base_s*."""
        return max(base_s, min(base_s * 2.0**self._given_up, MAX_S))
