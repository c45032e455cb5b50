"""Follows the segments of one process: reads their frames in order, and records which frames are used."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from dataclasses import dataclass
from typing import Final

from otel_bridge.bridge.forwarding.requests import RequestPart, parts_of
from otel_bridge.bridge.ledger.rows import SegmentPosition
from otel_bridge.errors import FormatVersionError, InvalidRecordError, JournalError
from otel_bridge.exporter import OTLP
from otel_bridge.journal.files import cut, size_of_regular
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.frames import Frame, Signal
from otel_bridge.journal.header import SegmentHeader
from otel_bridge.journal.segment import read_segment
from otel_bridge.translation.processes.process import ProcessStart
from otel_bridge.translation.translator import SegmentInfo

CHUNK_BYTES: Final = 1 << 20
_READS: Final = 8
"""Most chunks without a frame that are passed over at a time, so that other processes of the run do not wait long."""


class SegmentTailer:
    """Reads the segments of one process in order. One thread.

    Attributes:
        header: Header of the segment read last; ``None`` until one could be read.
        frames: Frames that were read and are not used yet.
        dead: Whether its process has ended. Nothing more will be appended, and an unfinished tail is a gap.
        cut: Whether a torn tail may be cut off the file, because the process was on this machine.
        last_number: Highest number of its segments.
        numbers: Numbers of the segments that were listed and are not deleted.
        ended: Whether its end is known: the process sent one, or the bridge wrote it.
        refused: Whether a newer version wrote the segments, so that they stay as they are.
        data_end: Number and offset after the last readable frame.
        moved: Whether the position of the used frames has changed since the last commit.
        newly_opened: Whether a header was read that translation does not know.
        used: Whether a frame was used.
        producer: The sender of these frames, for translation.
        gaps: Number of stretches without a readable frame since the last call of `take_gaps`.
    """

    def __init__(self, folder: RunFolder, instance_id: str, number: int) -> None:
        self.instance_id = instance_id
        self.header: SegmentHeader | None = None
        self.frames: deque[Frame] = deque()
        self.dead = self.ended = self.cut = self.refused = False
        self.data_end = (number, 0)
        self.last_number = number
        self.numbers: set[int] = set()
        self.gaps = 0
        self.last_append_ns = 0
        self.number: int = number
        self.offset: int = 0
        self._folder = folder
        self._used: tuple[int, int] = (number, 0)
        self._header_bytes = b""
        self._path, self._path_of = "", -1
        self._final_read = False
        self.first_number = number
        self.moved = self.newly_opened = self.used = False
        self.producer = SegmentInfo(instance_id, "process", b"")

    @classmethod
    def resumed(cls, folder: RunFolder, source: SegmentPosition) -> SegmentTailer:
        """Return a tailer that continues at the position of *source*."""
        tail = cls(folder, source.instance_id, source.number)
        tail.offset, tail.ended = source.offset, source.ended
        tail._used = tail.data_end = (source.number, source.offset)
        with contextlib.suppress(InvalidRecordError, JournalError):
            tail._take_header(SegmentHeader.from_bytes(source.header))
        tail.newly_opened = False
        return tail

    def inherit(self, before: SegmentTailer) -> None:
        """Copy what *before*, of the same process, knew of its files."""
        self.last_number, self.first_number, self.numbers = before.last_number, before.first_number, before.numbers
        self.dead, self.cut, self.refused = before.dead, before.cut, before.refused

    def mark_dead(self, *, local: bool) -> None:
        """Mark the process as ended; *local* means that a torn tail may be cut off its file."""
        self.dead, self.cut = True, local

    def mark_ended(self) -> None:
        """Mark the end of the process as known."""
        self.ended = self.moved = True

    def refuse(self) -> None:
        """Leave the segments as they are."""
        self.refused = True

    def take_header(self) -> SegmentHeader | None:
        """Return the header if one was read since the last call that translation does not know, else ``None``."""
        new, self.newly_opened = self.newly_opened, False
        return self.header if new else None

    def begin_use(self) -> bool:
        """Mark a frame as used; return whether it is the first."""
        first, self.used = not self.used, True
        return first

    def take_gaps(self) -> int:
        """Return the number of unreadable stretches that were found since the last call."""
        gaps, self.gaps = self.gaps, 0
        return gaps

    def committed(self) -> None:
        """Mark the used frames as committed."""
        self.moved = False

    def deleted_before(self, number: int) -> None:
        """Mark the segments below *number* as deleted."""
        self.numbers = {kept for kept in self.numbers if kept >= number}
        self.first_number = number

    @property
    def source(self) -> SegmentPosition:
        """Return the position of the used frames, for the ledger."""
        return SegmentPosition(self.instance_id, *self._used, self._header_bytes, self.ended)

    @property
    def used_up(self) -> bool:
        """Return whether all existing frames have been used, and no more can come."""
        return self.dead and self._final_read and not self.frames and self.number >= self.last_number

    def listed(self, number: int) -> None:
        """Add a segment that exists, by its number."""
        self.numbers.add(number)
        self.last_number = max(self.last_number, number)
        # The segment was read long ago, and its bridge was killed before it deleted the segment.
        self.first_number = min(self.first_number, number)

    def fill(self) -> None:
        """Read more frames if none are left; without new frames, `frames` stays empty.

        Raises:
            FormatVersionError: A newer version wrote the segment.
        """
        for _ in range(_READS):
            if self.frames:
                return
            size = self._size()
            last = self.number >= self.last_number
            # A process that rolled or died appends no more to this segment; that was checked before the size.
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
        """Return whether there is more than was used; an unfinished frame counts as more."""
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
            return  # deleted meanwhile: the next listing shows that
        if header is not None:
            self._take_header(header)
        whole_end = found.frames[-1].end if found.frames else self.offset
        self.offset = found.end
        self.gaps += found.gaps
        if final and found.gaps and found.end > whole_end and found.end >= (self._size() or 0):
            # A torn frame: its process died during the write, or the write did not fit. Nothing was lost.
            self.gaps -= 1
            if self.cut and self.number >= self.last_number:
                with contextlib.suppress(OSError):
                    cut(path, whole_end)
                    self.offset = whole_end
        if found.frames:
            self.data_end = (self.number, whole_end)
        self.frames.extend(found.frames)
        if not found.frames:
            self._used, self.moved = (self.number, self.offset), True

    def _take_header(self, header: SegmentHeader) -> None:
        self.header, self._header_bytes = header, header.to_bytes()
        # One object for all frames: translation recognises its own fast path by its identity.
        start = ProcessStart(
            header.started_unix_ns or header.created_unix_ns, header.started_monotonic_ns, header.boot_id
        )
        self.producer = SegmentInfo(header.instance_id, header.kind, header.resource, header.role, start)
        self.newly_opened = self.moved = True

    def _next(self) -> None:
        # Not number + 1: the name of a file may hold a number that is a billion steps away.
        self.number = min((number for number in self.numbers if number > self.number), default=self.last_number)
        self.offset = 0
        self._used, self.moved = (self.number, 0), True

    def _size(self) -> int | None:
        # Called at every poll for every process, so the path is built once.
        if self._path_of != self.number:
            self._path_of = self.number
            self._path = os.fspath(self._folder.segment_path(self.instance_id, self.number))
        return size_of_regular(self._path)


# Follows one process's segments for forwarding, with a position of its own.

_SIGNALS = {Signal.METRICS: "metrics", Signal.TRACES: "traces"}


@dataclass(frozen=True, slots=True)
class FramesToForward:
    """Holds frames that were read and not yet forwarded, and the position of the next ones."""

    parts: list[RequestPart]
    number: int
    offset: int


class ForwardedSegments:
    """Reads one process's segments from (*number*, *offset*) on. One thread."""

    def __init__(self, folder: RunFolder, instance_id: str, number: int, offset: int) -> None:
        self.instance_id = instance_id
        self.number, self.offset = number, offset
        self._folder = folder
        self._header: SegmentHeader | None = None
        self._header_of = -1

    def read(self, last_number: int, *, limit_bytes: int, every_process: bool) -> FramesToForward | None:
        """Read some frames; return ``None`` when there is nothing new.

        Args:
            last_number: Number of the process's newest segment.
            limit_bytes: Approximate number of bytes to read.
            every_process: Whether to forward the process whatever exporters its header names.

        Raises:
            JournalError: A segment cannot be read.
        """
        while True:
            path = self._folder.segment_path(self.instance_id, self.number)
            if size_of_regular(path) is None:
                if self.number >= last_number:
                    return None
                self.number, self.offset = self._next_number(last_number), 0
                continue
            final = self.number < last_number
            header = self._header_at(path_number=self.number)
            _, found = read_segment(path, self.offset, limit_bytes=limit_bytes, final=final)
            if found.end == self.offset:
                if not final:
                    return None
                self.number, self.offset = self.number + 1, 0
                continue
            resource = header.resource if header else b""
            frames = [frame for frame in found.frames if _wanted(frame.signal, header, every_process=every_process)]
            return FramesToForward(
                [part for frame in frames for part in parts_of(frame, resource)], self.number, found.end
            )

    def _next_number(self, last_number: int) -> int:
        listed = (file.number for file in self._folder.segments() if file.instance_id == self.instance_id)
        return min((number for number in listed if number > self.number), default=last_number)

    def done(self, taken: FramesToForward) -> None:
        """Continue after *taken*."""
        self.number, self.offset = taken.number, taken.offset

    def _header_at(self, path_number: int) -> SegmentHeader | None:
        if self._header_of != path_number:
            path = self._folder.segment_path(self.instance_id, path_number)
            self._header, _ = read_segment(path, 0, limit_bytes=1, final=False)
            self._header_of = path_number
        return self._header


def _wanted(signal: int, header: SegmentHeader | None, *, every_process: bool) -> bool:
    """Return whether a frame goes to ``otlp``: always, unless a process did not name it for the frame's signal.

    Events of a process go to ``otlp`` if any signal of the process does.
    """
    if every_process or header is None or header.kind != "process":
        return True
    named = {name for name, exporters in header.exporters.items() if OTLP in exporters}
    kind = _SIGNALS.get(Signal(signal))
    return bool(named) if kind is None else kind in named
