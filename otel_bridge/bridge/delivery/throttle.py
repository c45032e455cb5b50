"""How long a writer rests between two batches, so that records gather and the bridge leaves the machine to the trainer.

A row costs a tracker less the more of them go in one call: on MLflow's SQLite a row of ten keys takes 9 ms alone,
2.5 ms among ten and 1.3 ms among a hundred. The bridge is to leave as much of the machine as it can to the trainer.
"""

from __future__ import annotations

from typing import Final

RESTS_FOR: Final = 20.0
"""Times as long as it wrote."""
LONGEST_S: Final = 0.5
SHORTEST_S: Final = 0.05
"""A shorter pause is left out: new records are looked for no more often."""


class Throttle:
    """Adds up what a batch took to write. One thread."""

    def __init__(self) -> None:
        self._wrote_s = 0.0

    def wrote(self, seconds: float) -> None:
        """Count a call."""
        self._wrote_s += seconds

    def rest_s(self, *, wanted: bool) -> float:
        """Begin anew; return the seconds to rest, 0 when a rest is not *wanted* or would be too short."""
        rest_s = min(self._wrote_s * RESTS_FOR, LONGEST_S)
        self._wrote_s = 0.0
        return rest_s if wanted and rest_s >= SHORTEST_S else 0.0
