"""Determines how many files a process may have open, and how the runs of a service share them.

An active run holds a dozen files and more, an idle run its lock alone. An open segment of the
receiver holds two. Each kind gets a share of the limit (``ulimit -n``), so that none takes what the
others, or connections, need.
"""

from __future__ import annotations

import gc
import os
import resource
from dataclasses import dataclass

from otel_bridge.journal.files import NO_FREE_FILE

RUN_FILES = 20
"""Files of an active run: 12 with one exporter, measured with ``file`` and ``trackio``, 18 with
three."""
MOST_RUNS = 512
"""Most active runs, however many files may be open: thousands of them take gigabytes of memory."""
_UNLIMITED = 1 << 20
_OWN_FILES = 64
"""Files of the process itself, and of connections, on the smallest limits."""
_LEAST = 32
_SPARE = 8


@dataclass(frozen=True, slots=True)
class DescriptorShares:
    """Holds the shares of a limit of open files.

    Attributes:
        runs: Most active runs at a time.
        locks: Most locks that idle runs keep.
        segments: Most runs whose segment a receiver keeps open.
    """

    runs: int
    locks: int
    segments: int

    @classmethod
    def of(cls, limit: int) -> DescriptorShares:
        """Return the shares of *limit* open files."""
        free = max(limit - _OWN_FILES, _LEAST)
        return cls(
            runs=min(max(free // 2 // RUN_FILES, 1), MOST_RUNS),
            locks=max(free // 4, 1),
            segments=min(max(free // 16, 1), 256),
        )


def descriptor_limit() -> int:
    """Return how many files this process may have open.

    About a million if the system sets no limit.
    """
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft == resource.RLIM_INFINITY:
        return _UNLIMITED
    return soft


def exhausted(exc: BaseException | None = None) -> bool:
    """Return whether no more files can be opened, by *exc* or its causes, or by a test.

    SQLite reports "unable to open database file" without a reason; the test detects that.
    """
    while exc is not None:
        if isinstance(exc, OSError) and exc.errno in NO_FREE_FILE:
            return True
        exc = exc.__cause__ or exc.__context__
    opened: list[int] = []
    try:
        opened.extend(
            os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) for _ in range(_SPARE)
        )
    except OSError as failed:
        return failed.errno in NO_FREE_FILE
    finally:
        for descriptor in opened:
            os.close(descriptor)
    return False


ALLOCATIONS = 20_000
"""New containers since the last collection that start another one; Python 3.11 uses 700."""


def collect_less_often() -> None:
    """Run the cyclic collector after each 20,000 new containers, unless it is off or runs less often already.

    Records, and the objects that a tracker makes of them, are freed by their reference counts. The
    search for cycles took a sixth of the CPU time of rows into MLflow, and a tenth of those into
    Trackio. Measured by ``benchmarks bridge_cpu`` and ``delivery``.
    """
    if 0 < gc.get_threshold()[0] < ALLOCATIONS:
        gc.set_threshold(ALLOCATIONS, *gc.get_threshold()[1:])
