"""CPU and memory of machine and process, sampled on the caller's thread."""

from __future__ import annotations

import time
from typing import Final

import psutil

EVERY_S: Final = 15.0


class SystemSampler:
    """Gives a row of system metrics every `EVERY_S` seconds; percentages are means since the last one."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._again = 0.0
        # The first call of each begins its measurement.
        psutil.cpu_percent()
        self._process.cpu_percent()

    def sample(self) -> dict[str, float] | None:
        """Return the values when they are due, else ``None``; ``None`` too where the system does not tell them."""
        now = time.monotonic()
        if now < self._again:
            return None
        self._again = now + EVERY_S
        try:
            with self._process.oneshot():
                return {
                    "system/cpu_percent": psutil.cpu_percent(),
                    "system/memory_percent": psutil.virtual_memory().percent,
                    "system/process_cpu_percent": self._process.cpu_percent(),
                    "system/process_rss_bytes": float(self._process.memory_info().rss),
                }
        except (psutil.Error, OSError):
            return None
