"""How fast counts grow: the mean over the last seconds. One thread."""

from __future__ import annotations

from collections import deque
from typing import Final

WINDOW_S: Final = 30.0
_SAMPLE_S: Final = 1.0


class Rates:
    """Counts by name, looked at from time to time; keeps a sample a second of the last `WINDOW_S`."""

    def __init__(self) -> None:
        self._samples: dict[str, deque[tuple[float, int]]] = {}

    def per_s(self, name: str, count: int, now_s: float) -> float:
        """Return the growth of *name* in a second, to a tenth; 0 until two looks are a second apart.

        Args:
            name: Whose count.
            count: What it is now.
            now_s: A monotonic clock.
        """
        samples = self._samples.setdefault(name, deque())
        while len(samples) > 1 and now_s - samples[0][0] > WINDOW_S:
            samples.popleft()
        if not samples or now_s - samples[-1][0] >= _SAMPLE_S:
            samples.append((now_s, count))
        since_s, before = samples[0]
        return round(max(count - before, 0) / (now_s - since_s), 1) if now_s - since_s >= _SAMPLE_S else 0.0
