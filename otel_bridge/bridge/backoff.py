"""How long to wait after a failure: doubling from 0.1 s to 30 s, with jitter of its own."""

from __future__ import annotations

import random
from typing import Final

FIRST_S: Final = 0.1
LONGEST_S: Final = 30.0
ASKED_LONGEST_S: Final = 600.0


class Backoff:
    """Counts failures in a row. One thread.

    Args:
        chance: Source of jitter; default: one of its own, so that nobody's seeded generator is drawn from.
    """

    def __init__(self, chance: random.Random | None = None) -> None:
        self._chance = chance or random.SystemRandom()
        self.failures = 0

    def failed(self, retry_after_s: float | None = None) -> float:
        """Count a failure; return the seconds to wait: half to all of the doubled time, at least what was asked for."""
        self.failures += 1
        longest = min(FIRST_S * 2.0 ** min(self.failures - 1, 20), LONGEST_S)
        wait = longest * self._chance.uniform(0.5, 1.0)
        return wait if retry_after_s is None else max(wait, min(retry_after_s, ASKED_LONGEST_S))

    def succeeded(self) -> None:
        """Begin anew."""
        self.failures = 0
