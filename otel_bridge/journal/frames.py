"""Converts frames to the bytes of a segment and back. Pure: no I/O.

A frame is a head of 30 bytes and the payload. The head has its own CRC-32, so that an unfinished
payload can be distinguished from a damaged length. The head also names its *stream* (one per
segment), so that a payload that contains frames of another segment is never read as frames.

===========  =====  ===============================================================
bytes        type   meaning
===========  =====  ===============================================================
0-3          4s     magic
4-7          u32    stream, the CRC-32 of the segment's name (`start_of`)
8-11         u32    length of the payload
12           u8     `Signal`
13           u8     flags, bit 0: the payload is a whole export request
14-21        i64    append time, Unix nanoseconds
22-25        u32    CRC-32 of the payload
26-29        u32    CRC-32 of bytes 0-25
===========  =====  ===============================================================
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple
from zlib import crc32

from otel_bridge.errors import JournalError
from otel_bridge.journal.header import header_end

MAX_RECORD_BYTES = 64 << 20
"""Most bytes of a payload: readers hold a whole one in memory, and a damaged length may be any."""
MAGIC = b"\xffOBF"
"""First bytes of a frame. 0xFF does not occur in UTF-8, so that no string of a record contains them."""

_CHECKED = struct.Struct("<8sIHqI")
"""Magic and stream, length, signal and flags, append time, CRC-32 of the payload."""
_CRC = struct.Struct("<I")
HEAD_BYTES = _CHECKED.size + _CRC.size
_WHOLE = 1 << 8
"""Flag of a whole export request: signal and flags are packed as one number of 16 bits."""


class Signal(IntEnum):
    """Names the kind of data that a frame holds."""

    CONTROL = 0
    METRICS = 1
    TRACES = 2
    LOGS = 3


_SIGNALS = tuple(Signal)


class Frame(NamedTuple):
    """Holds one frame of a segment.

    Attributes:
        signal: Kind of the payload; ``CONTROL`` with an empty payload requests to write and retry
            now.
        whole: Whether the payload is a whole ``Export…ServiceRequest`` with its own resources.
            Otherwise it is one ``ScopeMetrics``, ``ScopeSpans`` or ``ScopeLogs``, and the resource
            is in the segment's header.
        offset: Offset of the frame in the segment.
        end: Offset of the next frame.
    """

    signal: Signal
    whole: bool
    payload: bytes
    append_unix_ns: int
    offset: int
    end: int

    def __repr__(self) -> str:
        """Return the frame as text without its payload, which may be large."""
        return (
            f"<Frame {self.signal.name} of {len(self.payload)} bytes at {self.offset}>"
        )


@dataclass(frozen=True, slots=True)
class ScanResult:
    """Holds the frames that were read from a part of a segment.

    Attributes:
        frames: The readable frames, in order.
        end: Offset at which reading continues.
        gap_bytes: Bytes before `end` that belong to no readable frame.
        gaps: Number of contiguous gaps that those bytes form.
        torn: Whether the last of the gaps is the beginning of a frame, whose process died during
            the write.
    """

    frames: list[Frame]
    end: int
    gap_bytes: int = 0
    gaps: int = 0
    torn: bool = False


def encode_frame(
    signal: int,
    payload: bytes,
    append_unix_ns: int,
    *,
    start: bytes,
    whole: bool = False,
) -> bytes:
    """Return *payload* as one frame of the segment whose frames begin with *start*.

    Raises:
        JournalError: The payload is above `MAX_RECORD_BYTES`.
    """
    length = len(payload)
    if length > MAX_RECORD_BYTES:
        raise JournalError(
            f"record of {length} bytes, at most {MAX_RECORD_BYTES} fit; cut it or split it"
        )
    kind = signal | _WHOLE if whole else signal
    head = _CHECKED.pack(start, length, kind, append_unix_ns, crc32(payload))
    return head + _CRC.pack(crc32(head)) + payload


def start_of(segment_name: str) -> bytes:
    """Return the first bytes of every frame of a segment, from its file name without the suffix."""
    return MAGIC + _CRC.pack(crc32(segment_name.encode()))


def scan(buffer: bytes, base: int, *, final: bool, start: bytes) -> ScanResult:
    """Read the frames in *buffer*; after damaged bytes, the next valid frame is searched.

    Never raises. The magic and the stream of a segment do not occur in its payloads by chance, so
    that the search finds the next frame; each of these is checked by its two checksums.

    Args:
        buffer: Bytes of a segment. At offset 0 they may begin with its header, which is skipped.
        base: Offset of the buffer in the segment.
        final: Whether nothing more will be appended, so that an unfinished tail is a gap. Otherwise
            damaged bytes at the very end are left for the next call, and `ScanResult.end` is before
            them.
        start: First bytes of each frame of the segment.

    Returns:
        The frames with their offsets in the segment, and where to continue.
    """
    frames: list[Frame] = []
    gaps: list[int] = []
    size = len(buffer)
    position = 0
    if base == 0:
        position = header_end(buffer) or 0
    gap_start = position  # start of damaged bytes, while the position is beyond it
    while position < size:
        frame = _frame_at(buffer, position, base, start)
        if frame is None and (final or not _is_unfinished(buffer, position, start)):
            position = buffer.find(start, position + 1)
            if position < 0:
                break
            continue
        if position > gap_start:
            gaps.append(position - gap_start)
            gap_start = position
        if frame is None:
            break
        frames.append(frame)
        position = frame.end - base
        gap_start = position
    is_torn = False
    if final and gap_start < size:
        is_torn = _is_torn(buffer, gap_start, start)
        gaps.append(size - gap_start)
        gap_start = size
    return ScanResult(frames, base + gap_start, sum(gaps), len(gaps), is_torn)


def _frame_at(buffer: bytes, position: int, base: int, start: bytes) -> Frame | None:
    """Return the frame at *position*; ``None`` when it is damaged or not whole.

    Both checksums are compared: a disk may have lost the payload and kept the head.
    """
    head = _head_at(buffer, position, start)
    if head is None:
        return None
    end = position + HEAD_BYTES + head.length
    payload = buffer[position + HEAD_BYTES : end]
    if len(payload) != head.length or crc32(payload) != head.payload_crc:
        return None
    return Frame(
        _SIGNALS[head.kind & 0xFF],
        head.kind >= _WHOLE,
        payload,
        head.append_unix_ns,
        base + position,
        base + end,
    )


def _is_unfinished(buffer: bytes, position: int, start: bytes) -> bool:
    """Return whether a frame with a valid head begins at *position* and ends beyond the buffer."""
    head = _head_at(buffer, position, start)
    return head is not None and position + HEAD_BYTES + head.length > len(buffer)


def _is_torn(buffer: bytes, position: int, start: bytes) -> bool:
    """Return whether the rest of the buffer may be the beginning of a frame."""
    is_short = len(buffer) - position < HEAD_BYTES
    return is_short or _is_unfinished(buffer, position, start)


def pending_end(buffer: bytes, base: int, start: bytes) -> int | None:
    """Return the end of the frame at the start of *buffer*, if it is beyond the buffer.

    Else ``None``.
    """
    head = _head_at(buffer, 0, start)
    if head is None or HEAD_BYTES + head.length <= len(buffer):
        return None
    return base + HEAD_BYTES + head.length


class _Head(NamedTuple):
    start: bytes
    length: int
    kind: int
    append_unix_ns: int
    payload_crc: int


def _head_at(buffer: bytes, position: int, start: bytes) -> _Head | None:
    """Return the head at *position*, or ``None`` when it is unfinished or damaged.

    An unknown signal or flag counts as damage.
    """
    checked = buffer[position : position + _CHECKED.size]
    crc = buffer[position + _CHECKED.size : position + HEAD_BYTES]
    if not checked.startswith(start) or crc != _CRC.pack(crc32(checked)):
        return None
    head = _Head(*_CHECKED.unpack(checked))
    is_known = head.kind & 0xFF < len(_SIGNALS) and head.kind >> 9 == 0
    if is_known and head.length <= MAX_RECORD_BYTES:
        return head
    return None
