"""How long the upload of a run is waited for: twice as long each time it was given up.

A slow server is told from a dead one by nothing but time. With the same bound for every try, a run whose last upload
takes longer would be given up and opened anew for ever.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from otel_bridge.exporter import Memory
from otel_bridge_wandb.settings import Limits

MAX_S: Final = 1800.0
"""No wait grows beyond this, unless it is set longer."""
_GIVEN_UP: Final = "online/given-up"
_MAX_DOUBLINGS: Final = 16


class Patience:
    """The waits of one open run, remembered over restarts. For one thread.

    Args:
        memory: Of this destination.
    """

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._given_up = min(int(memory.get(_GIVEN_UP) or b"0"), _MAX_DOUBLINGS)
        self._noted = False

    def stretched(self, limits: Limits) -> Limits:
        """Return *limits* with the waits that this try is given."""
        return dataclasses.replace(
            limits, finish_timeout_s=self.wait_s(limits.finish_timeout_s), stall_s=self.wait_s(limits.stall_s)
        )

    def ran_out(self) -> None:
        """A wait of this try was too short; counted once."""
        if not self._noted:
            self._noted = True
            self._memory.put(_GIVEN_UP, str(self._given_up + 1).encode())

    def sufficed(self) -> None:
        """All was uploaded in time."""
        if self._given_up or self._noted:
            self._memory.delete(_GIVEN_UP)

    def wait_s(self, base_s: float) -> float:
        """Return how long this try waits for what is waited for *base_s* at first."""
        return max(base_s, min(base_s * 2.0**self._given_up, MAX_S))
