"""Follows the segments of one process: reads their frames in order, and records which frames are used."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from dataclasses import dataclass

from otel_bridge.bridge.ledger.queries import SegmentPosition
from otel_bridge.bridge.process_segments import ProcessSegments
from otel_bridge.errors import FormatVersionError, InvalidRecordError, JournalError
from otel_bridge.journal.files import cut
from otel_bridge.journal.frames import Frame, ScanResult, Signal
from otel_bridge.journal.header import SegmentHeader
from otel_bridge.journal.segment import read_segment
from otel_bridge.translation.processes.process import ProcessStart
from otel_bridge.translation.translator import SegmentInfo

CHUNK_BYTES = 1 << 20
"""Bytes that are read of one process at a time: each process of a run has as many in memory."""
_READS = 8
"""Most chunks without a frame that are passed over at a time, so that other processes of the run do
not wait long."""


@dataclass(frozen=True, slots=True)
class _Sender:
    """Holds the header of a process as the ledger stores it, and as translation needs it."""

    header: SegmentHeader | None
    data: bytes
    producer: SegmentInfo

    @classmethod
    def of(cls, header: SegmentHeader) -> _Sender:
        """Return the sender that *header* describes.

        Without the start of its process, its creation counts.
        """
        start = ProcessStart(
            header.started_unix_ns or header.created_unix_ns,
            header.started_monotonic_ns,
            header.boot_id,
        )
        producer = SegmentInfo(
            header.instance_id, header.kind, header.resource, header.role, start
        )
        return cls(header, header.to_bytes(), producer)


class SegmentTailer:
    """Follows one process: its frames for translation, and the position that the ledger stores. One thread.

    Args:
        segments: The segments of the process.
        source: The position to continue at, as the ledger stores it; ``None`` to begin with the
            first segment. A header in it that cannot be read counts as not read yet.

    Attributes:
        segments: See *Args*.
        number: Number of the segment that is read.
        offset: Offset up to which the segment was read.
        frames: Frames of this segment that were read and are not used yet.
        used: Number and offset up to which all frames are used.
        data_end: Number and offset after the last readable frame.
        last_append_ns: When the record used last was appended; 0 before one was used.
        final_read: Whether the last segment was read to its end after its process had ended.
        ended: Whether the end of the process is known: the process sent one, or the bridge wrote
            it.
    """

    def __init__(
        self, segments: ProcessSegments, source: SegmentPosition | None = None
    ) -> None:
        self.segments = segments
        # One object for all frames: translation recognises its own fast path by the identity of the
        # producer.
        self._sender = _Sender(
            None, b"", SegmentInfo(segments.instance_id, "process", b"")
        )
        self.number = segments.first_number
        self.offset = 0
        self.ended = False
        if source is not None:
            self.number = source.number
            self.offset = source.offset
            self.ended = source.ended
            with contextlib.suppress(InvalidRecordError, JournalError):
                self._sender = _Sender.of(SegmentHeader.from_bytes(source.header))
        self.used = (self.number, self.offset)
        self.data_end = self.used
        self.frames: deque[Frame] = deque()
        self.last_append_ns = 0
        self.final_read = False
        self._new_header: SegmentHeader | None = None
        self._committed = self.source

    @property
    def instance_id(self) -> str:
        """Return the instance id of the process."""
        return self.segments.instance_id

    @property
    def header(self) -> SegmentHeader | None:
        """Return the header of the segment read last; ``None`` until one could be read."""
        return self._sender.header

    @property
    def producer(self) -> SegmentInfo:
        """Return the sender of these frames, for translation."""
        return self._sender.producer

    @property
    def source(self) -> SegmentPosition:
        """Return the position of the used frames, for the ledger."""
        return SegmentPosition(
            self.segments.instance_id, *self.used, self._sender.data, self.ended
        )

    @property
    def moved(self) -> bool:
        """Return whether `source` has changed since the last commit."""
        return self.source != self._committed

    @property
    def used_up(self) -> bool:
        """Return whether all existing frames have been used, and no more can come."""
        is_at_last = self.final_read and self.number >= self.segments.last_number
        return self.segments.dead and is_at_last and not self.frames

    def fill(self) -> int:
        """Read more frames if none are left; without new frames, `frames` stays empty.

        Return the number of unreadable stretches that were passed over.

        At most `_READS` chunks without a frame are passed over at a time: what lies in a file may
        be anything, and other processes must not wait for it.

        Raises:
            FormatVersionError: A newer version wrote the segment.
            JournalError: The segment exists and cannot be read.
        """
        gaps = 0
        for _ in range(_READS):
            if self.frames:
                break
            size = self.segments.size(self.number)
            is_last = self.number >= self.segments.last_number
            # A process that rolled or died appends no more to this segment; that was checked before
            # the size.
            final = not is_last or self.segments.dead
            # The size alone: most polls find nothing new, and opening the file costs more.
            if size is None or size <= self.offset:
                if is_last:
                    self.final_read = self.segments.dead
                    break
                self.number = self.segments.after(self.number)
                self.offset = 0
                self.used = (self.number, 0)
                continue
            start = self.offset
            try:
                gaps += self._read(final)
            except FormatVersionError:
                # What was found before it is counted first; the next call raises.
                if gaps:
                    break
                raise
            # An unfinished frame: its process is still appending it.
            if self.offset == start:
                break
        return gaps

    def take(self) -> Frame:
        """Return the next frame, which is used by that; only while `frames` has one.

        With the last frame, what was read behind it is used too: a torn end or a gap.
        """
        frame = self.frames.popleft()
        # Not of a flush, which holds nothing to translate.
        if frame.signal is not Signal.CONTROL:
            self.last_append_ns = frame.append_unix_ns
        self.used = (self.number, frame.end if self.frames else self.offset)
        return frame

    def behind(self) -> bool:
        """Return whether there is more than was used; an unfinished frame counts as more.

        ``False`` for segments of a newer version, which this one never reads.
        """
        if self.segments.refused:
            return False
        size = self.segments.size(self.number) or 0
        return (
            bool(self.frames)
            or self.number < self.segments.last_number
            or size > self.offset
        )

    def _read(self, final: bool) -> int:
        """Read frames from `offset` on; return the number of unreadable stretches among them.

        A torn end is not one: its `log()` had not returned. It is cut off the file of a dead
        process of this machine, or a later reader would count it.

        *final*: whether nothing more will be appended to the segment.

        Raises:
            FormatVersionError: A newer version wrote the segment.
            JournalError: The segment exists and cannot be read.
        """
        path = self.segments.path(self.number)
        try:
            header, scanned = read_segment(
                path, self.offset, limit_bytes=CHUNK_BYTES, final=final
            )
        except FormatVersionError:
            # The reader leaves the segment as it is, and reports it.
            raise
        except JournalError:
            if path.exists():
                raise
            return 0  # deleted meanwhile: the next listing shows that
        self._note_header(header, scanned)
        whole_end = self.offset
        if scanned.frames:
            whole_end = scanned.frames[-1].end
        self.offset = scanned.end
        gaps = scanned.gaps
        if scanned.torn:
            # Its process died during the write, or the write did not fit: `log()` had not returned,
            # nothing is lost.
            gaps -= 1
            if self.segments.cut and self.number >= self.segments.last_number:
                with contextlib.suppress(OSError):
                    cut(path, whole_end)
                    self.offset = whole_end
        if scanned.frames:
            # Of whole frames only: a torn tail is never forwarded, so nothing must wait for it.
            self.data_end = (self.number, whole_end)
            self.frames.extend(scanned.frames)
        else:
            # Passed over without frames: else a restart would read and count the gap again.
            self.used = (self.number, self.offset)
        return gaps

    def _note_header(self, header: SegmentHeader | None, scanned: ScanResult) -> None:
        """Store the header that was read at the start of a segment, or one in place of a damaged one.

        Without a header no frame of the process could be translated, and readable records would be
        lost.
        """
        if header is None and self.offset == 0 and self.header is None:
            # A segment gets its name when its header is written, so that this one is damaged, not
            # unfinished.
            first_ns = (
                scanned.frames[0].append_unix_ns if scanned.frames else time.time_ns()
            )
            header = self.segments.replaced_header(self.number, first_ns)
        if header is not None:
            self._sender = _Sender.of(header)
            self._new_header = header

    def take_header(self) -> SegmentHeader | None:
        """Return the header if one was read since the last call that translation does not know, else ``None``."""
        header = self._new_header
        self._new_header = None
        return header

    def mark_ended(self) -> None:
        """Mark the end of the process as known."""
        self.ended = True

    def committed(self) -> None:
        """Mark the used frames as committed."""
        self._committed = self.source
