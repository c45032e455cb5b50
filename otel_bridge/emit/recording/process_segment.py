"""Open files of one process in its run folder: its segment, its liveness lock, and reserved space."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import NamedTuple

from otel_bridge.emit.console import notify
from otel_bridge.emit.process_end import call_at_worker_end
from otel_bridge.errors import JournalError, SegmentClosedError
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.header import SegmentHeader
from otel_bridge.journal.liveness import hold_life
from otel_bridge.journal.locks import RecordLock
from otel_bridge.journal.segment import SegmentWriter, Spare


class Checkpoint(NamedTuple):
    """Holds a position in the segments of an instance, with the number of rows of the process before it."""

    instance_id: str
    number: int
    offset: int
    rows: int = 0


MakeHeader = Callable[[str, bool], SegmentHeader]
"""Callable from an instance id, and whether it is a forked child, to the header of its first segment."""


class ProcessSegment:
    """Appends to the open segment of one process. Not thread-safe: its owner locks.

    Args:
        folder: The run folder; created when a segment is opened.
        make_header: Callable that makes the header of a new instance.
        segment_bytes: Size at which a segment is closed and the next one begun.
        at_worker_end: Called with the status at the end of a forked worker.

    Attributes:
        writer: Writer of the open segment; ``None``: no segment is open.
        forked: Whether this process is a forked child of the one that made this object.
    """

    def __init__(
        self,
        folder: RunFolder,
        make_header: MakeHeader,
        *,
        segment_bytes: int,
        at_worker_end: Callable[[str], object],
    ) -> None:
        self.writer: SegmentWriter | None = None
        self.forked = False
        self._folder = folder
        self._make_header = make_header
        self._segment_bytes = segment_bytes
        self._at_worker_end = at_worker_end
        self._liveness: RecordLock | None = None
        self._spare: Spare | None = None
        self._is_over = False
        self._earlier_rows = 0

    def open(self) -> SegmentWriter:
        """Open the first segment of a new instance, after its liveness lock.

        Raises:
            SegmentClosedError: The process's part of the run is over.
            JournalError: The segment cannot be made.
        """
        # A signal handler may have ended the run inside the record that comes here: a new instance
        # would have no end, and the run would count as running, then as killed.
        if self._is_over:
            raise SegmentClosedError(f"{self._folder.path}: the run has ended")
        instance_id = os.urandom(8).hex()
        # Here too, not only at init(): the folder may have been deleted since.
        self._folder.create()
        # Before the segment: its reader looks at the lock to see whether the process is alive.
        liveness = hold_life(self._folder, instance_id)
        try:
            header = self._make_header(instance_id, self.forked)
            self.writer = SegmentWriter(
                self._folder.segments_dir, header, segment_bytes=self._segment_bytes
            )
        except BaseException:
            # An instance without a segment must not count as a living process, nor after an
            # interrupt.
            liveness.release()
            raise
        self._liveness = liveness
        self._spare = Spare(self._folder.segments_dir, f".{instance_id}-spare.tmp")
        if self.forked:
            # A worker runs no exit handlers; without a record it has no end to report.
            call_at_worker_end(self._at_worker_end)
        return self.writer

    def reopen(self, rows: int) -> bool:
        """Open the first segment of another new instance, after *rows* of the present one.

        Return whether one is open. If not, `open` may retry with the next record. Only a folder
        that is gone is printed: a descriptor that the program closed costs nothing but this.
        """
        self._earlier_rows += rows
        is_gone = self.writer is not None and not self.writer.path.exists()
        self.close()
        if is_gone:
            notify(
                f"{self._folder.path} was moved or deleted; continuing in a new folder",
                always=True,
            )
        # The caller counts the record; the next one opens a segment.
        with contextlib.suppress(JournalError):
            self.open()
        return self.writer is not None

    def is_lost(self) -> bool:
        """Return whether the open segment was moved or deleted, or its descriptor closed."""
        writer = self.writer
        return writer is not None and not writer.linked()

    def checkpoint(self, rows: int) -> Checkpoint | None:
        """Return the current position, after *rows* rows of this instance.

        ``None``: no segment is open.
        """
        writer = self.writer
        if writer is None:
            return None
        return Checkpoint(
            writer.instance_id, writer.number, writer.offset, self._earlier_rows + rows
        )

    def make_room(self) -> bool:
        """Release some of the space reserved for drop counts and the end.

        Return ``False`` when all of it is released already. On a full disk, counts and end must
        arrive, because they alone say what is missing.
        """
        return self._spare is not None and self._spare.give_up()

    def end(self) -> None:
        """Close the segment for good: none is opened again."""
        self._is_over = True
        self.close()

    def close(self) -> None:
        """Close the segment and release the liveness lock."""
        liveness = self._liveness
        self._close_files()
        if liveness is not None:
            # Last: a free lock means that this process appends no more.
            liveness.release()

    def close_inherited(self) -> None:
        """Close the parent's open files in a forked child; the parent's lock stays."""
        self.forked = True
        self._earlier_rows = 0
        self._close_files()

    def _close_files(self) -> None:
        """Close the open files, of which none is used from the first statement on.

        An error of one is ignored.
        """
        writer = self.writer
        spare = self._spare
        # First, so that a signal handler that logs meanwhile opens a segment of its own.
        self.writer = None
        self._spare = None
        self._liveness = None
        if spare is not None:
            spare.close()
        if writer is not None:
            # The program may have closed the descriptor; what was appended is in the kernel.
            with contextlib.suppress(OSError):
                writer.close()
