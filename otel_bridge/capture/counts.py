"""Counts captured and not captured calls in one small file per process, for the launcher's table.

Each count writes the file anew, so that a kill loses none, and nothing runs at the end of the
process.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from otel_bridge.settings import CAPTURE_COUNTS

if TYPE_CHECKING:
    from otel_bridge.emit.run import Run

_MAX_CALLS = 250
"""Most different calls of each kind; further ones are counted together."""
_MAX_NAME_CHARS = 120
"""Most characters of a call's name, which may come from the program."""
_OTHERS = "further calls"
_MAX_FILES = 10_000
"""Most files that the launcher reads."""
_NO_FILE = -1


@dataclass(slots=True)
class CallTotals:
    """Holds counts by call: those of one process, or of all processes of a command.

    Attributes:
        captured: Recorded calls and values.
        not_captured: Calls and values without a counterpart.
        processes: Number of processes that were captured.
    """

    captured: Counter[str] = field(default_factory=Counter[str])
    not_captured: Counter[str] = field(default_factory=Counter[str])
    processes: int = 0


class CallCounts:
    """Counts calls of this process. Thread-safe; a forked child counts in a file of its own.

    A signal handler or finaliser may count inside another count of its thread. Nothing raises.
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin with no counts, as a forked child does."""
        # Re-entrant for signal handlers; new in a forked child, where another thread may have held
        # the parent's.
        self._lock = threading.RLock()
        self._busy = False
        self._waiting: deque[tuple[Counter[str], str, int]] = deque()
        self._totals = CallTotals()
        self._file: int | None = None

    def captured(self, call: str, number: int = 1, *, run: Run | None = None) -> None:
        """Count calls or values that *run* records; after its end they are counted as not captured.

        Threads that outlive the main thread, and exit handlers registered early, call a tracker
        after the run's end.
        """
        if run is not None and run.has_ended:
            self.not_captured(f"{call} after the end of the run", number)
        else:
            self._add(self._totals.captured, call, number)

    def not_captured(self, call: str, number: int = 1) -> None:
        """Count calls or values that have no counterpart."""
        self._add(self._totals.not_captured, call, number)

    def _add(self, counts: Counter[str], call: str, number: int) -> None:
        """Add to a count, and write all counts of this process to its file.

        Never raises: without the launcher's folder, or with a full disk, they stay in memory.
        """
        name = call[:_MAX_NAME_CHARS].encode("utf-8", "replace").decode()
        self._waiting.append((counts, name, number))
        with self._lock:
            # Inside another call, as of a signal handler, that call counts it: otherwise it would
            # write its own, older counts over longer ones.
            if self._busy:
                return
            self._busy = True
            try:
                while self._waiting:
                    _count(*self._waiting.popleft())
                    self._write()
            finally:
                self._busy = False

    def _write(self) -> None:
        """Write all counts of this process to its file; nothing without the launcher's folder."""
        if self._file is None:
            # With the first count, so that a process that calls no tracker leaves no file.
            self._file = _new_file()
        if self._file == _NO_FILE:
            return
        data = orjson.dumps([self._totals.captured, self._totals.not_captured])
        # Counts only grow, so that the file is never shorter than before. A full disk costs the
        # counts alone.
        with contextlib.suppress(OSError):
            os.pwrite(self._file, data, 0)


def _count(counts: Counter[str], name: str, number: int) -> None:
    """Add to the count of *name*, or to that of all names beyond the limit."""
    if name not in counts and len(counts) >= _MAX_CALLS:
        name = _OTHERS
    counts[name] += number


def _new_file() -> int:
    """Return the descriptor of a new file in the launcher's folder; `_NO_FILE` without one.

    Its name has a random part, since pids come again.
    """
    folder = CAPTURE_COUNTS.read()
    if not folder:
        return _NO_FILE
    path = os.path.join(folder, f"{os.getpid()}-{os.urandom(4).hex()}")
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError:  # the launcher has ended, or is on another machine
        return _NO_FILE


def totals_in(folder: Path) -> CallTotals:
    """Return the counts of all files in *folder*, added up.

    Files that are not whole are left out.

    A launcher calls it after its command, whose last processes may still write.
    """
    totals = CallTotals()
    try:
        paths = sorted(folder.iterdir())
    except OSError:
        return totals
    for path in paths[:_MAX_FILES]:
        with contextlib.suppress(OSError, ValueError):
            captured, not_captured = orjson.loads(path.read_bytes())
            totals.captured.update(captured)
            totals.not_captured.update(not_captured)
            totals.processes += 1
    return totals


counts = CallCounts()
"""Counts of this process."""
os.register_at_fork(after_in_child=counts.begin)
