"""How full a base folder is. Counting is cheap and seldom: it happens on the trainer's thread."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Final

_AGAIN_S: Final = 1.0
_SELDOM_S: Final = 10.0
_PLENTY_BYTES: Final = 4 << 30
"""While there is as much room, and nobody fills it within `_SELDOM_S`, it is counted that seldom."""
_COST_FACTOR: Final = 2000
"""Counting takes at most this part of the time: every process of a job does it."""
_LONGEST_S: Final = 30.0


class Quota:
    """Says when nothing more may be appended below *base*. Not thread-safe: its owner locks.

    Args:
        base: The folder of run folders.
        max_bytes: Limit of what lies there; half of what would be free without it is the limit too.
    """

    def __init__(self, base: Path, max_bytes: int) -> None:
        self._base = base
        self._max_bytes = max_bytes
        self._full = False
        self._count_again = float("-inf")

    def used_bytes(self) -> int:
        """Return the bytes of all files below the base, counted now."""
        return _bytes_below(str(self._base))

    def limit_bytes(self, used_bytes: int) -> int:
        """Return the limit as it is now, given what is used."""
        try:
            disk = os.statvfs(self._base)
        except OSError:
            return self._max_bytes
        return min(self._max_bytes, (disk.f_bavail * disk.f_frsize + used_bytes) // 2)

    def full(self) -> bool:
        """Say whether the limit is reached.

        Counted at most once a second, more seldom where counting takes long or the limit is far.
        """
        now = time.monotonic()
        if now >= self._count_again:
            used = self.used_bytes()
            room = self.limit_bytes(used) - used
            self._full = room <= 0
            after = time.monotonic()
            pause_s = max(_SELDOM_S if room > _PLENTY_BYTES else _AGAIN_S, _COST_FACTOR * (after - now))
            self._count_again = after + min(pause_s, _LONGEST_S)
        return self._full


def _bytes_below(path: str) -> int:
    total = 0
    with contextlib.suppress(OSError), os.scandir(path) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    total += _bytes_below(entry.path)
                else:
                    total += entry.stat(follow_symlinks=False).st_size
    return total
