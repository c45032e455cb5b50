"""Hold what one process has open in its run folder: its segment, the lock that shows that it lives, spare space."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from typing import NamedTuple

from otel_bridge.errors import JournalError
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.header import SegmentHeader
from otel_bridge.journal.liveness import LivenessLock
from otel_bridge.journal.segment import SegmentWriter, Spare


class Checkpoint(NamedTuple):
    """A place in a process's segments: all before it was appended, and that are `rows` rows."""

    instance_id: str
    number: int
    offset: int
    rows: int = 0


MakeHeader = Callable[[str, bool], SegmentHeader]
"""From an instance id and whether it is a forked child to the header of its first segment."""


class ProcessSegment:
    """The open segment of one process. Not thread-safe: its owner locks.

    Args:
        folder: The run folder; created when a segment is opened.
        make_header: Makes the header of a new instance.
        segment_bytes: Size at which a segment is closed and the next one begun.

    Attributes:
        writer: Writes the open segment; ``None``: none is open.
    """

    def __init__(self, folder: RunFolder, make_header: MakeHeader, *, segment_bytes: int) -> None:
        self.writer: SegmentWriter | None = None
        self._folder, self._make_header, self._segment_bytes = folder, make_header, segment_bytes
        self._liveness: LivenessLock | None = None
        self._spare: Spare | None = None

    def open(self, *, forked: bool) -> SegmentWriter:
        """Open the first segment of a new instance, behind its liveness lock.

        Raises:
            JournalError: It cannot be made.
        """
        instance_id = os.urandom(8).hex()
        self._folder.create()
        liveness = LivenessLock.hold(self._folder, instance_id)
        try:
            header = self._make_header(instance_id, forked)
            self.writer = SegmentWriter(self._folder, header, segment_bytes=self._segment_bytes)
        except JournalError:
            liveness.release()
            raise
        self._liveness = liveness
        self._spare = Spare(self._folder.segments_dir, f".{instance_id}-spare.tmp")
        return self.writer

    def is_deleted(self) -> bool:
        """Return whether the open segment is no longer in the folder."""
        return self.writer is not None and not self.writer.linked()

    def checkpoint(self, rows: int) -> Checkpoint | None:
        """Return how far the segment is, after *rows* rows; ``None``: none is open."""
        writer = self.writer
        return None if writer is None else Checkpoint(writer.instance_id, writer.number, writer.offset, rows)

    def make_room(self) -> bool:
        """Give up some of the space that is held back for the counts of drops and the end; return whether any was."""
        return self._spare is not None and self._spare.give_up()

    def close(self) -> None:
        """Close the segment and release the liveness lock."""
        writer, liveness, spare = self.writer, self._liveness, self._spare
        self.writer = self._liveness = self._spare = None
        if spare is not None:
            spare.close()
        if writer is not None:
            _close(writer)
        if liveness is not None:
            liveness.release()

    def close_inherited(self) -> None:
        """Close, in a forked child, what the parent has open; the parent's lock stays."""
        writer, spare = self.writer, self._spare
        self.writer = self._liveness = self._spare = None
        if spare is not None:
            spare.close()
        if writer is not None:
            _close(writer)


def _close(writer: SegmentWriter) -> None:
    # The descriptor's number may belong to somebody else by now (a program that closes all descriptors).
    with contextlib.suppress(OSError, JournalError):
        if writer.linked():
            writer.close()


def at_worker_end(end: Callable[[str], object]) -> None:
    """Call *end* when a multiprocessing worker ends, which runs no atexit handlers but its package's own."""
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        util.Finalize(None, end, args=("finished",), exitpriority=0)
