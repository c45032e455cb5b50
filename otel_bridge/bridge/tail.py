"""Following the segments of one process: which frames are there, and how far they are read."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from typing import Final

from otel_bridge.bridge.tables import Source
from otel_bridge.errors import FormatVersionError, InvalidRecordError, JournalError
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.frames import Frame
from otel_bridge.journal.header import SegmentHeader
from otel_bridge.journal.segment import read_segment
from otel_bridge.translation.translator import Source as Speaker

CHUNK_BYTES: Final = 1 << 20


class Tail:
    """The segments of one process, read in order. One thread.

    Attributes:
        header: Header of the segment read last; ``None`` until one could be read.
        frames: Read, not yet used.
        dead: Its process lives no more: nothing will be appended, an unfinished tail is a gap.
        cut: A torn tail may be cut off the file: the process was of this machine.
        last_number: Highest number that its segments have.
        ended: Its end is known: it said so, or the bridge has said it for it.
        refused: A newer version wrote it: it is left as it is.
        data_end: Number and offset behind the last readable frame.
        moved: How far it is used has changed since the last commit.
        newly_opened: A header was read that translation has not been told of.
        used: A frame of it was used.
        speaker: Who speaks in these frames, for translation.
        gaps: Stretches of bytes that hold no readable frame, found since the last look.
    """

    def __init__(self, folder: RunFolder, instance_id: str, number: int) -> None:
        self.instance_id = instance_id
        self.header: SegmentHeader | None = None
        self.frames: deque[Frame] = deque()
        self.dead = self.ended = self.cut = self.refused = False
        self.data_end = (number, 0)
        self.last_number = number
        self.gaps = 0
        self.last_append_ns = 0
        self.number = number
        self.offset = 0
        self._folder = folder
        self._used = (number, 0)
        self._header_bytes = b""
        self._path, self._path_of = "", -1
        self._final_read = False
        self.first_number = number
        self.moved = self.newly_opened = self.used = False
        self.speaker = Speaker(instance_id, "process", b"")

    @classmethod
    def resumed(cls, folder: RunFolder, source: Source) -> Tail:
        """Go on where *source* says."""
        tail = cls(folder, source.instance_id, source.number)
        tail.offset, tail.ended = source.offset, source.ended
        tail._used = tail.data_end = (source.number, source.offset)
        with contextlib.suppress(InvalidRecordError, JournalError):
            tail._take_header(SegmentHeader.from_bytes(source.header))
        tail.newly_opened = False
        return tail

    @property
    def source(self) -> Source:
        """How far the frames are used, for the ledger."""
        return Source(self.instance_id, *self._used, self._header_bytes, self.ended)

    @property
    def used_up(self) -> bool:
        """Everything there is has been used, and nothing more can come."""
        return self.dead and self._final_read and not self.frames and self.number >= self.last_number

    def fill(self) -> None:
        """Read more frames, if none are left over; none come when nothing new is there.

        Raises:
            FormatVersionError: A newer version wrote the segment.
        """
        while not self.frames:
            size = self._size()
            last = self.number >= self.last_number
            # A process that rolled or died appends no more to this segment; that was seen before its size was.
            final = not last or self.dead
            if size is None or size <= self.offset:
                if last:
                    self._final_read = self.dead
                    return
                self._next()
                continue
            start = self.offset
            self._read(final)
            if self.offset == start:
                return

    def behind(self) -> bool:
        """Say whether there is more than was used; an unfinished frame counts as more."""
        if self.refused:
            return False
        return bool(self.frames) or self.number < self.last_number or (self._size() or 0) > self.offset

    def take(self) -> Frame:
        """Return the next frame."""
        frame = self.frames.popleft()
        self._used = (self.number, frame.end if self.frames else self.offset)
        self.moved = True
        self.last_append_ns = frame.append_unix_ns
        return frame

    def _read(self, final: bool) -> None:
        path = self._folder.segment_path(self.instance_id, self.number)
        try:
            header, found = read_segment(path, self.offset, limit_bytes=CHUNK_BYTES, final=final)
        except FormatVersionError:
            raise
        except JournalError:
            if path.exists():
                raise
            return  # deleted just now: the next look knows
        if header is not None:
            self._take_header(header)
        whole_end = found.frames[-1].end if found.frames else self.offset
        self.offset = found.end
        self.gaps += found.gaps
        if final and found.gaps and found.end > whole_end:
            # A torn frame: its process died while it wrote, or was told that it did not fit. Nothing was lost.
            self.gaps -= 1
            if self.cut and self.number >= self.last_number:
                with contextlib.suppress(OSError):
                    os.truncate(path, whole_end)
                    self.offset = whole_end
        if found.frames:
            self.data_end = (self.number, whole_end)
        self.frames.extend(found.frames)
        if not found.frames:
            self._used, self.moved = (self.number, self.offset), True

    def _take_header(self, header: SegmentHeader) -> None:
        self.header, self._header_bytes = header, header.to_bytes()
        # One object for all frames: translation recognises its own fast path by it.
        self.speaker = Speaker(header.instance_id, header.kind, header.resource, header.role)
        self.newly_opened = self.moved = True

    def _next(self) -> None:
        self.number, self.offset = self.number + 1, 0
        self._used, self.moved = (self.number, 0), True

    def _size(self) -> int | None:
        try:
            # Asked at every poll, for every process: the path is made once.
            if self._path_of != self.number:
                self._path_of = self.number
                self._path = os.fspath(self._folder.segment_path(self.instance_id, self.number))
            return os.stat(self._path).st_size
        except OSError:
            return None
