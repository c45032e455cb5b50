"""Converts frames to the bytes of a segment and back. Pure: no I/O.

A frame is a head of 30 bytes and the payload. The head has its own CRC-32, so that an unfinished
payload can be distinguished from a damaged length. The head also names its *stream* (one per
segment), so that a payload that contains frames of another segment is never read as frames.

===========  =====  ===============================================================
bytes        type   meaning
===========  =====  ===============================================================
0-3          4s     magic
4-7          u32    stream, `stream_of` the segment's name
8-11         u32    length of the payload
12           u8     `Signal`
13           u8     flags, bit 0: the payload is a whole export request
14-21        i64    append time, Unix nanoseconds
22-25        u32    CRC-32 of the payload
26-29        u32    CRC-32 of bytes 0-25
===========  =====  ===============================================================
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Final, NamedTuple, cast
from zlib import crc32

from otel_bridge.errors import JournalError
from otel_bridge.journal.header import header_end

MAX_RECORD_BYTES = 64 << 20
MAGIC = b"\xffOBF"
"""First bytes of a frame. 0xFF does not occur in UTF-8, so that no string of a record contains them."""

_HEAD = struct.Struct("<8sIHqI")
_FULL_HEAD = struct.Struct("<4sIIBBqII")
_CHECKED_HEAD = struct.Struct(f"<{_HEAD.size}sI")
HEAD_BYTES = _FULL_HEAD.size
_CRC = struct.Struct("<I").pack
pack_head = _HEAD.pack
"""Packs `start_of` the stream, length, kind, append time and CRC-32 of the payload into the checked bytes of a head."""
seal_head = _CHECKED_HEAD.pack
"""Packs the checked bytes and their CRC-32 into the head."""
_CHECKED_BYTES = _HEAD.size
_WHOLE = 1
WHOLE = _WHOLE << 8
"""Flag of a whole export request, to be combined with a signal: both are packed as one number of 16 bits."""


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
    whole: bool = False,
    stream: int = 0,
) -> bytes:
    """Return *payload* as one frame.

    Raises:
        JournalError: The payload is above `MAX_RECORD_BYTES`.
    """
    length = len(payload)
    if length > MAX_RECORD_BYTES:
        raise too_long(length)
    kind = signal | WHOLE if whole else signal
    head = pack_head(start_of(stream), length, kind, append_unix_ns, crc32(payload))
    return seal_head(head, crc32(head)) + payload


def too_long(length: int) -> JournalError:
    """Return the error for a payload above `MAX_RECORD_BYTES`."""
    return JournalError(
        f"record of {length} bytes, at most {MAX_RECORD_BYTES} fit; cut it or split it"
    )


def start_of(stream: int) -> bytes:
    """Return the first bytes of every frame of a stream."""
    return MAGIC + _CRC(stream)


def stream_of(segment_name: str) -> int:
    """Return the stream number of a segment from its file name without the suffix."""
    return crc32(segment_name.encode())


def scan(
    buffer: bytes, base: int, *, final: bool, stream: int | None = None
) -> ScanResult:
    """Read the frames in *buffer*; after damaged bytes, the next valid frame is searched.

    Args:
        buffer: Bytes of a segment. At offset 0 they may begin with its header, which is skipped.
        base: Offset of the buffer in the segment.
        final: Whether nothing more will be appended, so that an unfinished tail is a gap. Otherwise
            damaged bytes at the very end are left for the next call, and `ScanResult.end` is before
            them.
        stream: Stream of the segment; ``None`` for that of the first valid frame.

    Returns:
        The frames with their offsets in the segment, and where to continue.
    """
    frames: list[Frame] = []
    gaps: list[int] = []
    size = len(buffer)
    position = _first_frame(buffer) if base == 0 else 0
    gap_start = position  # start of damaged bytes, while the position is beyond it
    while position < size:
        if position == gap_start and stream is not None:
            position = _scan_intact(
                buffer, position, frames, base=base, begin=start_of(stream)
            )
            gap_start = position
        frame = _frame_at(buffer, position, base, stream)
        if frame is None and (final or not _is_unfinished(buffer, position, stream)):
            position = _next_candidate(buffer, position + 1, stream)
            continue
        if position > gap_start:
            gaps.append(position - gap_start)
            gap_start = position
        if frame is None:
            break
        stream = _stream_at(buffer, position)
        frames.append(frame)
        position = frame.end - base
        gap_start = position
    torn = False
    if final and gap_start < size:
        torn = _is_torn(buffer, gap_start, stream)
        gaps.append(size - gap_start)
        gap_start = size
    return ScanResult(frames, base + gap_start, sum(gaps), len(gaps), torn)


def _first_frame(buffer: bytes) -> int:
    """Return the offset after the header; 0 when the header cannot be read."""
    return header_end(buffer) or 0


def _scan_intact(
    buffer: bytes, position: int, frames: list[Frame], *, base: int, begin: bytes
) -> int:
    """Append the intact frames from *position* on to *frames*.

    Return the offset of the first byte after them.
    """
    # Reads nearly all of every segment: only what each frame needs is done here.
    add = frames.append
    unpack = _CHECKED_HEAD.unpack_from
    signals = len(_SIGNALS)
    last = len(buffer) - HEAD_BYTES
    while position <= last:
        checked, crc = unpack(buffer, position)
        start, length, kind, append_unix_ns, payload_crc = _HEAD.unpack(checked)
        signal = kind & 0xFF
        end = position + HEAD_BYTES + length
        payload = buffer[position + HEAD_BYTES : end]
        if (
            start != begin
            or crc32(checked) != crc
            or len(payload) != length
            or crc32(payload) != payload_crc
        ):
            break
        if signal >= signals or kind >> 8 > _WHOLE or length > MAX_RECORD_BYTES:
            break
        add(
            Frame(
                _SIGNALS[signal],
                kind > 0xFF,
                payload,
                append_unix_ns,
                base + position,
                base + end,
            )
        )
        position = end
    return position


def _frame_at(
    buffer: bytes, position: int, base: int, stream: int | None
) -> Frame | None:
    """Return the frame at *position*; ``None`` when it is damaged or not whole."""
    head = _head(buffer, position, stream)
    if head is None:
        return None
    _, _, length, signal, flags, append_unix_ns, payload_crc, _ = head
    end = position + HEAD_BYTES + length
    payload = buffer[position + HEAD_BYTES : end]
    if len(payload) != length or crc32(payload) != payload_crc:
        return None
    return Frame(
        _SIGNALS[signal],
        flags > 0,
        payload,
        append_unix_ns,
        base + position,
        base + end,
    )


def _is_unfinished(buffer: bytes, position: int, stream: int | None) -> bool:
    """Return whether a frame with a valid head begins at *position* and ends beyond the buffer."""
    head = _head(buffer, position, stream)
    return head is not None and position + HEAD_BYTES + head[_LENGTH] > len(buffer)


def _is_torn(buffer: bytes, position: int, stream: int | None) -> bool:
    """Return whether the rest of the buffer may be the beginning of a frame."""
    return len(buffer) - position < HEAD_BYTES or _is_unfinished(
        buffer, position, stream
    )


def _stream_at(buffer: bytes, position: int) -> int:
    """Return the stream number in a valid head."""
    return cast("_Head", _FULL_HEAD.unpack_from(buffer, position))[_STREAM]


def pending_end(buffer: bytes, base: int, *, stream: int | None = None) -> int | None:
    """Return the end of the frame at the start of *buffer*, if it is beyond the buffer.

    Else ``None``.
    """
    head = _head(buffer, 0, stream)
    end = 0 if head is None else HEAD_BYTES + head[_LENGTH]
    if end > len(buffer):
        return base + end
    return None


_Head = tuple[bytes, int, int, int, int, int, int, int]
_STREAM: Final = 1
_LENGTH: Final = 2


def _head(buffer: bytes, position: int, stream: int | None) -> _Head | None:
    """Return the fields of the head at *position*, or ``None`` when it is unfinished or damaged."""
    if len(buffer) - position < HEAD_BYTES:
        return None
    head = cast("_Head", _FULL_HEAD.unpack_from(buffer, position))
    magic, head_stream, length, signal, flags, _, _, crc = head
    if magic != MAGIC or (stream is not None and head_stream != stream):
        return None
    if length > MAX_RECORD_BYTES or signal >= len(_SIGNALS) or flags > _WHOLE:
        return None
    if crc32(buffer[position : position + _CHECKED_BYTES]) == crc:
        return head
    return None


def _next_candidate(buffer: bytes, position: int, stream: int | None) -> int:
    """Return the next offset from *position* on that may be a head, else the end of the buffer."""
    match = _candidates(stream).search(buffer, position)
    if match is None:
        return len(buffer)
    return match.start()


@lru_cache(maxsize=256)
def _candidates(stream: int | None) -> re.Pattern[bytes]:
    # All that is known of a head without its checksum, so that the search skips other bytes in C.
    start = re.escape(MAGIC) + (b".{4}" if stream is None else re.escape(_CRC(stream)))
    return re.compile(start + rb".{3}[\x00-\x04][\x00-\x03][\x00-\x01]", re.DOTALL)
