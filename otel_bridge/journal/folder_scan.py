"""Reads the sizes and stamps of a run folder's files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from otel_bridge.journal.files import Stamp, stamp_of
from otel_bridge.journal.folder import RunFolder
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
        ledger: Stamps of the ledger's file and of its write-ahead log. The third file of SQLite
            holds no data, and readers change it too.
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

    Files that are deleted meanwhile are skipped. Of a folder that is gone the sizes are 0, and the
    stamps ``None``.
    """
    ledger = stamp_of(folder.ledger_path)
    wal = stamp_of(Path(f"{folder.ledger_path}-wal"))
    shared_memory = stamp_of(Path(f"{folder.ledger_path}-shm"))
    ledger_files = filter(None, (ledger, wal, shared_memory))
    segments: list[SegmentFile] = []
    # What a link in its place leads to is not part of the folder.
    if not folder.segments_dir.is_symlink():
        segments = folder.segments()
    return FolderScan(
        bytes_below(str(folder.path)),
        sum(stamp.size_bytes for stamp in ledger_files),
        segments,
        stamp_of(folder.report_path),
        (ledger, wal),
    )
