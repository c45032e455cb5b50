"""Reads the segments of one process for forwarding, at a position of its own.

`otlp` sends what the segments hold, so this reads beside the bridge's reader and knows nothing of
translation.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from otel_bridge.bridge.forwarding.requests import RequestPart, parts_of
from otel_bridge.bridge.forwarding.signal_lane import SIGNAL_NAMES, SegmentOffset
from otel_bridge.bridge.process_segments import ProcessSegments
from otel_bridge.exporter import OTLP
from otel_bridge.journal.frames import Signal
from otel_bridge.journal.header import SegmentHeader
from otel_bridge.journal.segment import read_segment


@dataclass(frozen=True, slots=True)
class FramesToForward:
    """Holds frames that were read and not yet forwarded, and the position of the next ones."""

    parts: list[RequestPart]
    end: SegmentOffset


class ForwardedSegments:
    """Reads one process's segments from any position on. One thread.

    Args:
        segments: The segments that were listed.
        read_before: Position up to which an earlier bridge had read them; ``None`` without one.

    Attributes:
        segments: See *Args*.
    """

    def __init__(
        self,
        segments: ProcessSegments,
        read_before: SegmentOffset | None = None,
    ) -> None:
        self.segments = segments
        self._read_before = read_before
        self._header: SegmentHeader | None = None
        self._header_of = -1

    def read(
        self,
        position: SegmentOffset,
        *,
        signals: Collection[Signal],
        limit_bytes: int,
        every_process: bool,
    ) -> FramesToForward | None:
        """Read some frames after *position*; return ``None`` when there is nothing new.

        Args:
            position: Where to begin.
            signals: Signals whose frames are returned.
            limit_bytes: Approximate number of bytes to read.
            every_process: Whether to forward the process whatever exporters its header names.

        Raises:
            FormatVersionError: A newer version wrote a segment.
            JournalError: A segment cannot be read, or was deleted just now; the next read goes on
                behind a deleted one.
        """
        number, offset = position
        while True:
            # The process has begun another segment, so that nothing more is appended to this one.
            is_final = number < self.segments.last_number
            content = None
            # A segment is deleted once all that need it have read it.
            if self.segments.size(number) is not None:
                path = self.segments.path(number)
                _, content = read_segment(
                    path, offset, limit_bytes=limit_bytes, final=is_final
                )
            # Nothing whole behind the offset: an unfinished frame, or the end of the file.
            if content is None or content.end == offset:
                if not is_final:
                    return self._damaged_end(number, offset)
                number = self.segments.after(number)
                offset = 0
                continue
            header = self._header_at(number)
            resource = header.resource if header else b""
            parts: list[RequestPart] = []
            for frame in content.frames:
                if frame.signal in signals and _is_requested(
                    frame.signal, header, every_process=every_process
                ):
                    parts += parts_of(frame, resource)
            return FramesToForward(parts, SegmentOffset(number, content.end))

    def _damaged_end(self, number: int, offset: int) -> FramesToForward | None:
        """Return the step over the damaged end of a process's last segment; ``None`` when there is none.

        No whole frame follows *offset*. If the reader of an earlier bridge went on nevertheless, the
        process had died, and the segment would count as not forwarded, and stay, for ever.
        """
        read_before = self._read_before
        if read_before is None or read_before.number != number:
            return None
        if offset < read_before.offset:
            return FramesToForward([], read_before)
        return None

    def _header_at(self, number: int) -> SegmentHeader | None:
        """Return the header of a segment; ``None`` for a damaged one, whose frames go to ``otlp`` in any case.

        Raises `JournalError` when it cannot be read now: without it the frames would belong to no run.
        """
        # Read once a segment, not once a read: all frames of it have this header.
        if self._header_of != number:
            path = self.segments.path(number)
            self._header, _ = read_segment(path, 0, limit_bytes=0, final=False)
            self._header_of = number
        return self._header


def _is_requested(
    signal: int, header: SegmentHeader | None, *, every_process: bool
) -> bool:
    """Return whether a frame goes to ``otlp``: always, unless a process did not name it for the frame's signal.

    Events of a process go to ``otlp`` if any signal of the process does, because the other bridge
    needs its end. Segments of receivers and bridges name no exporters, so all of theirs goes.
    """
    if every_process or header is None or header.kind != "process":
        return True
    requested = {
        name for name, exporters in header.exporters.items() if OTLP in exporters
    }
    if signal == Signal.LOGS:
        return bool(requested)
    return SIGNAL_NAMES[Signal(signal)] in requested
