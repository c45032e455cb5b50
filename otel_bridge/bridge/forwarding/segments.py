"""Reads the segments of one process for forwarding, at a position of its own.

`otlp` sends what the segments hold, so this reads beside the bridge's reader and knows nothing of translation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from otel_bridge.bridge.forwarding.requests import RequestPart, parts_of
from otel_bridge.exporter import OTLP
from otel_bridge.journal.files import size_of_regular
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.frames import Signal
from otel_bridge.journal.header import SegmentHeader
from otel_bridge.journal.segment import header_in, read_segment

_SIGNALS: Final = {Signal.METRICS: "metrics", Signal.TRACES: "traces"}


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

    def done(self, frames_read: FramesToForward) -> None:
        """Continue after *frames_read*."""
        self.number, self.offset = frames_read.number, frames_read.offset

    def _header_at(self, path_number: int) -> SegmentHeader | None:
        if self._header_of != path_number:
            path = self._folder.segment_path(self.instance_id, path_number)
            self._header = header_in(path)
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
