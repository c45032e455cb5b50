"""Reads the sizes and stamps of a run folder's files, by one scan of each of its directories."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass

from otel_bridge.journal.files import Stamp
from otel_bridge.journal.folder import (
    LEDGER,
    REPORT,
    SEGMENTS,
    RunFolder,
    list_segments,
)
from otel_bridge.journal.quota import bytes_below
from otel_bridge.journal.segment import SegmentFile


@dataclass(frozen=True, slots=True)
class FolderScan:
    """Describes the files of a run folder at one moment.

    Attributes:
        total_bytes: Size of all files.
        ledger_bytes: Size of the ledger with the files that SQLite keeps beside it.
        segments: Segments, ordered by process and number.
        report: Stamp of ``report.json``; ``None`` when there is none.
        ledger: Stamps of the ledger's file and of its write-ahead log.
    """

    total_bytes: int
    ledger_bytes: int
    segments: Sequence[SegmentFile]
    report: Stamp | None
    ledger: tuple[Stamp | None, Stamp | None]

    @property
    def segment_bytes(self) -> int:
        """Return the size of all segments."""
        return sum(segment.size_bytes for segment in self.segments)


def scan_folder(folder: RunFolder) -> FolderScan:
    """Return the sizes and stamps of the files in *folder*.

    Files that are deleted meanwhile are skipped.
    """
    files, directories = _entries(str(folder.path))
    segments = list[SegmentFile]()
    other_paths = list[str]()
    if SEGMENTS in directories:
        segments, other_paths = list_segments(directories.pop(SEGMENTS))
    total_bytes = sum(map(_bytes_at, other_paths)) + sum(
        map(bytes_below, directories.values())
    )
    total_bytes += sum(stamp.size_bytes for stamp in files.values())
    total_bytes += sum(segment.size_bytes for segment in segments)
    ledger_bytes = 0
    for name in (LEDGER, f"{LEDGER}-wal", f"{LEDGER}-shm"):
        if name in files:
            ledger_bytes += files[name].size_bytes
    return FolderScan(
        total_bytes,
        ledger_bytes,
        segments,
        files.get(REPORT),
        (files.get(LEDGER), files.get(f"{LEDGER}-wal")),
    )


def _entries(path: str) -> tuple[dict[str, Stamp], dict[str, str]]:
    """Return the files in *path* with their stamps, and its directories with their paths."""
    files = dict[str, Stamp]()
    directories = dict[str, str]()
    with contextlib.suppress(OSError), os.scandir(path) as entries:
        for entry in entries:
            try:
                if entry.is_dir(follow_symlinks=False):
                    directories[entry.name] = entry.path
                else:
                    files[entry.name] = Stamp.of(entry.stat(follow_symlinks=False))
            except OSError:  # noqa: PERF203  # deleted meanwhile
                continue
    return files, directories


def _bytes_at(path: str) -> int:
    try:
        status = os.lstat(path)
    except OSError:
        return 0
    if stat.S_ISDIR(status.st_mode):
        return bytes_below(path)
    return status.st_size
