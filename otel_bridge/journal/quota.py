"""Measures how full a base directory is.

Counting must be cheap and rare, because it runs on the trainer's thread.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

_AGAIN_S = 1.0
_SELDOM_S = 10.0
_PLENTY_BYTES = 4 << 30
"""Room above which the next count is `_SELDOM_S` away, because no process fills it within that time."""
_COST_FACTOR = 2000
"""Least ratio of pause to duration of a count: every process of a job counts."""
_EARLY_COST_FACTOR = 20
"""The same ratio for an early count, made because this process has used up the room of the last count."""
_LONGEST_S = 300.0
"""Longest pause, so that growth is noticed even where a count of ten thousand run folders takes a second."""
FREE_SPACE = (
    "`otel-bridge status` shows what uses the space: let a tracker catch up, delete folders of ended runs "
    "(files of the exporter `file` stay until then), or raise the limit"
)
"""Advice for a full directory, used in messages."""
_NOTHING_MEASURED: Mapping[str, int] = MappingProxyType({})


class Quota:
    """Limits the size of a base directory. Not thread-safe: its owner locks.

    Between two counts, `took` adds what the owner appends. So the owner exceeds the limit by at
    most one record, however fast it appends. Bytes that other processes append are included at the
    next count.

    Args:
        base: The base directory.
        max_bytes: Limit of its size. Half of the disk that would be free without it is a limit too.
        run: One run folder that has a limit of its own; ``None`` for none.
        run_bytes: That limit.

    Attributes:
        reason: Which limit was the nearest at the last count: ``directory_full`` for *max_bytes*,
            ``disk_half_full`` for the free disk, ``run_full`` for *run_bytes*.
    """

    def __init__(
        self, base: Path, max_bytes: int, *, run: Path | None = None, run_bytes: int = 0
    ) -> None:
        self._base = base
        self._max_bytes = max_bytes
        self._run = run
        self._run_bytes = run_bytes
        self._taken = 0
        self._full_at = 0  # not counted yet: the first call of `took` returns True
        self.reason = "directory_full"
        self._count_again = float("-inf")
        self._count_early = float("-inf")

    def used_bytes(self) -> int:
        """Return the bytes of all files below the base, counted now.

        0 for one that cannot be read.
        """
        return bytes_below(str(self._base))

    def limit_bytes(self, used_bytes: int) -> int:
        """Return the present limit, given the used bytes."""
        try:
            disk = os.statvfs(self._base)
        except OSError:
            # Without figures of the disk the setting alone limits; a full disk is counted as such.
            return self._max_bytes
        return min(self._max_bytes, (disk.f_bavail * disk.f_frsize + used_bytes) // 2)

    @property
    def of_disk(self) -> bool:
        """Return whether the free disk was the limit at the last count, not *max_bytes*."""
        return self.reason == "disk_half_full"

    @property
    def was_full(self) -> bool:
        """Return whether the limit was reached at the last count, or by what was appended since."""
        return self._taken >= self._full_at

    @property
    def room(self) -> int:
        """Return the bytes that the owner may still append, by the last count."""
        return max(self._full_at - self._taken, 0)

    def took(self, size_bytes: int) -> bool:
        """Add *size_bytes* that the owner appended.

        Return whether the room of the last count is used up.
        """
        self._taken += size_bytes
        return self._taken >= self._full_at

    def is_due(self) -> bool:
        """Return whether `full` would count now, which takes long with thousands of run folders."""
        now = time.monotonic()
        return now >= self._count_again or (self.was_full and now >= self._count_early)

    def full(self) -> bool:
        """Return whether the limit is reached.

        It counts at most once a second, and less often when counting takes long or the limit is
        far. It counts early when the owner has used up the room of the last count.

        Pauses follow from the duration of a count, since every process of a job counts the same
        directory.
        """
        if self.is_due():
            now = time.monotonic()
            taken_before = self._taken
            used = self.used_bytes()
            limit = self.limit_bytes(used)
            room = limit - used
            self.reason = "directory_full"
            if limit < self._max_bytes:
                self.reason = "disk_half_full"
            if (
                self._run is not None
                and (of_run := self._run_bytes - bytes_below(str(self._run))) < room
            ):
                room = of_run
                self.reason = "run_full"
            # Another thread may append during the count: what it appends counts twice until the
            # next one.
            self._full_at = taken_before + room
            counted_s = time.monotonic()
            pause_s = max(
                _SELDOM_S if room > _PLENTY_BYTES else _AGAIN_S,
                _COST_FACTOR * (counted_s - now),
            )
            self._count_again = counted_s + min(pause_s, _LONGEST_S)
            early_s = pause_s if room <= 0 else _EARLY_COST_FACTOR * (counted_s - now)
            self._count_early = counted_s + min(early_s, _LONGEST_S)
        return self.was_full


def bytes_below(path: str, measured: Mapping[str, int] = _NOTHING_MEASURED) -> int:
    """Return the bytes of all files below *path*.

    0 when it cannot be read. Links are not followed, and count with their own size.

    Files are deleted while it counts, by bridges and trackers: those that are gone count as 0.

    Args:
        path: A folder.
        measured: Names of folders in it to their bytes, where those are known already.
    """
    total = 0
    with contextlib.suppress(OSError), os.scandir(path) as entries:
        for entry in entries:
            try:
                if entry.is_dir(follow_symlinks=False):
                    inodes = measured.get(entry.name)
                    total += bytes_below(entry.path) if inodes is None else inodes
                else:
                    total += entry.stat(follow_symlinks=False).st_size
            except OSError:  # noqa: PERF203  # deleted meanwhile; the others count
                continue
    return total
