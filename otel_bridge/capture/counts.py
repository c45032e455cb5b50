"""Counts captured and not captured calls in one small file per process, for the launcher's table.

The file is mapped into memory, so that each count is in it at once, a kill loses none, and nothing
runs at the end of the process. A file has 256 records of 128 bytes: kind, length of the name, name,
count.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from otel_bridge.settings import CAPTURE_COUNTS

CAPTURED = 1
NOT_CAPTURED = 2
_RECORD_BYTES = 128
_RECORDS = 256
_NAME_BYTES = _RECORD_BYTES - 10
_COUNT = struct.Struct("<Q")
_OTHERS = "further calls"
_MAX_FILES = 10_000
"""Most files that the launcher reads."""


class CapturedRun(Protocol):
    """Declares what a count needs to know of a run."""

    @property
    def has_ended(self) -> bool:
        """Return whether the run records nothing any more."""
        ...


class CallCounts:
    """Counts calls of this process. Thread-safe; a forked child counts in a file of its own.

    Nothing raises.
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin with no counts, as a forked child does."""
        # New in a forked child, where another thread may have held the parent's.
        self._lock = threading.Lock()
        self._counts: dict[tuple[int, str], tuple[int, int]] = {}
        self._file: mmap.mmap | None = None

    def captured(
        self, call: str, number: int = 1, *, run: CapturedRun | None = None
    ) -> None:
        """Count calls or values that *run* records; after its end they are counted as not captured.

        Threads that outlive the main thread, and exit handlers registered early, call a tracker
        after the run's end.
        """
        if run is not None and run.has_ended:
            self.not_captured(f"{call} after the end of the run", number)
        else:
            self._add(CAPTURED, call, number)

    def not_captured(self, call: str, number: int = 1) -> None:
        """Count calls or values that have no counterpart."""
        self._add(NOT_CAPTURED, call, number)

    def _add(self, kind: int, call: str, number: int) -> None:
        with self._lock:
            record = self._counts.get((kind, call))
            # One place for the others of each kind.
            if record is None and len(self._counts) >= _RECORDS - 2:
                call = _OTHERS
                record = self._counts.get((kind, call))
            place, earlier_number = record or (self._place(kind, call), 0)
            self._counts[kind, call] = place, earlier_number + number
            if self._file is not None:
                _COUNT.pack_into(
                    self._file, place + _RECORD_BYTES - 8, earlier_number + number
                )

    def _place(self, kind: int, call: str) -> int:
        """Return the place of a new record, with its name in the file, if there is one."""
        if not self._counts:
            # With the first count, so that a process that calls no tracker leaves no file.
            self._file = _new_file()
        place = len(self._counts) * _RECORD_BYTES
        if self._file is not None:
            name = call.encode("utf-8", "replace")[:_NAME_BYTES]
            self._file[place : place + 2 + len(name)] = bytes((kind, len(name))) + name
        return place


def _new_file() -> mmap.mmap | None:
    """Return a new mapped file in the launcher's folder; ``None`` without one."""
    folder = CAPTURE_COUNTS.read()
    if not folder:
        return None
    path = os.path.join(folder, f"{os.getpid()}-{os.urandom(4).hex()}")
    try:
        opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError:  # the launcher has ended, or is on another machine
        return None
    try:
        # Whole on the disk: a full one must not kill the program.
        os.write(opened, bytes(_RECORDS * _RECORD_BYTES))
        return mmap.mmap(opened, _RECORDS * _RECORD_BYTES)
    except (OSError, ValueError):
        return None
    finally:
        os.close(opened)


@dataclass(frozen=True, slots=True)
class CallTotals:
    """Holds the counts of all processes of a command, by call.

    Attributes:
        captured: Recorded calls and values.
        not_captured: Calls and values without a counterpart.
        processes: Number of processes that were captured.
    """

    captured: dict[str, int] = field(default_factory=dict[str, int])
    not_captured: dict[str, int] = field(default_factory=dict[str, int])
    processes: int = 0


def totals_in(folder: Path) -> CallTotals:
    """Return the counts of all files in *folder*, added up.

    Files that are not whole are left out.
    """
    totals: dict[int, dict[str, int]] = {CAPTURED: {}, NOT_CAPTURED: {}}
    processes = 0
    with contextlib.suppress(OSError):
        for path in sorted(folder.iterdir())[:_MAX_FILES]:
            records = list(_records(path))
            processes += bool(records)
            for kind, name, number in records:
                totals[kind][name] = totals[kind].get(name, 0) + number
    return CallTotals(totals[CAPTURED], totals[NOT_CAPTURED], processes)


def _records(path: Path) -> Iterator[tuple[int, str, int]]:
    try:
        data = path.read_bytes()
    except OSError:
        return
    for place in range(
        0, min(len(data), _RECORDS * _RECORD_BYTES) - _RECORD_BYTES + 1, _RECORD_BYTES
    ):
        kind = data[place]
        size = data[place + 1]
        if kind in {CAPTURED, NOT_CAPTURED} and size <= _NAME_BYTES:
            name = data[place + 2 : place + 2 + size].decode("utf-8", "replace")
            yield kind, name, _COUNT.unpack_from(data, place + _RECORD_BYTES - 8)[0]


counts = CallCounts()
"""Counts of this process."""
os.register_at_fork(after_in_child=counts.begin)
