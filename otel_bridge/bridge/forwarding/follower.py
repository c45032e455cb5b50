"""Following one process's segments for forwarding: a place of its own, behind which everything was taken."""

from __future__ import annotations

from dataclasses import dataclass

from otel_bridge.bridge.forwarding.requests import Part, parts_of
from otel_bridge.exporter import OTLP
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.frames import Signal
from otel_bridge.journal.header import SegmentHeader
from otel_bridge.journal.segment import read_segment

_SIGNALS = {Signal.METRICS: "metrics", Signal.TRACES: "traces"}


@dataclass(frozen=True, slots=True)
class Taken:
    """Frames read and not yet forwarded, and where the next ones are."""

    parts: list[Part]
    number: int
    offset: int


class Follower:
    """Reads one process's segments from (*number*, *offset*) on. One thread."""

    def __init__(self, folder: RunFolder, instance_id: str, number: int, offset: int) -> None:
        self.instance_id = instance_id
        self.number, self.offset = number, offset
        self._folder = folder
        self._header: SegmentHeader | None = None
        self._header_of = -1

    def read(self, last_number: int, *, limit_bytes: int, every_process: bool) -> Taken | None:
        """Read some frames; ``None`` when there is nothing new.

        Args:
            last_number: Number of the process's newest segment.
            limit_bytes: About how much.
            every_process: Forward it whatever its header names.

        Raises:
            JournalError: A segment cannot be read.
        """
        while True:
            path = self._folder.segment_path(self.instance_id, self.number)
            if not path.exists():
                if self.number >= last_number:
                    return None
                self.number, self.offset = self.number + 1, 0
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
            return Taken([part for frame in frames for part in parts_of(frame, resource)], self.number, found.end)

    def done(self, taken: Taken) -> None:
        """Go on behind *taken*."""
        self.number, self.offset = taken.number, taken.offset

    def _header_at(self, path_number: int) -> SegmentHeader | None:
        if self._header_of != path_number:
            path = self._folder.segment_path(self.instance_id, path_number)
            self._header, _ = read_segment(path, 0, limit_bytes=1, final=False)
            self._header_of = path_number
        return self._header


def _wanted(signal: int, header: SegmentHeader | None, *, every_process: bool) -> bool:
    """Say whether a frame goes to ``otlp``: what the bridge itself says and our events do, if anything does."""
    if every_process or header is None or header.kind != "process":
        return True
    named = {name for name, exporters in header.exporters.items() if OTLP in exporters}
    kind = _SIGNALS.get(Signal(signal))
    return bool(named) if kind is None else kind in named
