"""Learned shape of a row frame: constant bytes are compared at once, variable bytes read in one call. Pure.

In a row frame only the time (fixed64), the values (double or sfixed64), the step and the number
(varints) vary. For one set of keys, value types and varint lengths every other byte is the same.
`infer_layout` walks over the wire format and finds the offsets of the variable bytes.
`RowTemplate.decode` then masks the frame as one big integer and compares the result with constants
+ time x (ones at each time) + step x (ones at each step). Anything else is left to protobuf.

Measured for 10 keys: 1.4 us, where parsing and walking take 25 us.
Source: protobuf.dev/programming-guides/encoding; opentelemetry-proto, metrics.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from otel_bridge import semconv
from otel_bridge.records import Value

_MAX_VARINT = 9
"""Longest varint that a template reads. Longer ones are negative or not minimal, and are left to
protobuf."""

_VALUE_BITS = 0x7F7F7F7F7F7F7F7F7F
"""Value bits of a varint; the eighth bit of each byte states whether another byte follows."""

DecodedRow: TypeAlias = tuple[int, int, int, dict[str, Value]]
"""Time, step, row number, and full key to value."""


@dataclass(slots=True)
class FieldOffsets:
    """Holds the offsets of the variable bytes of one frame, and the lengths of its varints."""

    keys: list[str] = field(default_factory=list[str])
    times: list[int] = field(default_factory=list[int])
    values: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    steps: list[int] = field(default_factory=list[int])
    seq: int = -1
    step_bytes: int = 0
    seq_bytes: int = 0


class _OtherShapeError(Exception):
    """Raised for a frame that cannot become a template."""


class RowTemplate:
    """Decodes row frames of one inferred layout.

    Attributes:
        size_bytes: Approximate size of the template in memory.
    """

    __slots__ = (
        "_constant",
        "_keys",
        "_mask",
        "_seq_bytes",
        "_step_bytes",
        "_steps_ones",
        "_struct",
        "_times_ones",
        "size_bytes",
    )

    def __init__(
        self, payload: bytes, offsets: FieldOffsets, full_keys: Sequence[str]
    ) -> None:
        self.size_bytes = 5 * len(payload)
        self._keys = tuple(full_keys)
        self._step_bytes = offsets.step_bytes
        self._seq_bytes = offsets.seq_bytes
        self._struct = struct.Struct(_layout(offsets, len(payload)))
        mask = bytearray(b"\xff" * len(payload))
        constant = bytearray(payload)
        for offset, _ in offsets.values:
            mask[offset : offset + 8] = bytes(8)
            constant[offset : offset + 8] = bytes(8)
        for offset in offsets.times:
            constant[offset : offset + 8] = bytes(8)
        for offset in offsets.steps:
            _clear_varint(constant, offset, offsets.step_bytes)
        _clear_varint(constant, offsets.seq, offsets.seq_bytes)
        _clear_varint(mask, offsets.seq, offsets.seq_bytes)
        self._mask = int.from_bytes(mask, "little")
        self._constant = int.from_bytes(constant, "little")
        self._times_ones = _ones(offsets.times, len(payload))
        self._steps_ones = _ones(offsets.steps, len(payload))

    def decode(self, payload: bytes) -> DecodedRow | None:
        """Read *payload*, which is as long as the learned frame.

        Return ``None`` when its shape differs.
        """
        fields = self._struct.unpack(payload)
        time_ns = fields[-3]
        step = int.from_bytes(fields[-2], "little") & _VALUE_BITS
        # All constant bytes, times and steps are compared at once, as one integer.
        expected = self._constant + time_ns * self._times_ones + step * self._steps_ones
        if int.from_bytes(payload, "little") & self._mask != expected:
            return None
        seq = int.from_bytes(fields[-1], "little") & _VALUE_BITS
        # Varints of up to three bytes are joined here: a call would cost a tenth of the whole read.
        if self._step_bytes < 4:
            step = (step & 0x7F) | (step >> 1 & 0x3F80) | (step >> 2 & 0x1FC000)
        else:
            step = _joined(step, self._step_bytes)
        if self._seq_bytes < 4:
            seq = (seq & 0x7F) | (seq >> 1 & 0x3F80) | (seq >> 2 & 0x1FC000)
        else:
            seq = _joined(seq, self._seq_bytes)
        return time_ns, step, seq, dict(zip(self._keys, fields))  # noqa: B905  # behind the values stands the rest


def _ones(offsets: Sequence[int], size: int) -> int:
    """Return the integer of *size* bytes with a 1 at each offset.

    Multiplied by x, the product repeats x there.
    """
    buffer = bytearray(size)
    for offset in offsets:
        buffer[offset] = 1
    return int.from_bytes(buffer, "little")


def _joined(groups: int, size: int) -> int:
    """Join the 7-bit groups of a varint of *size* bytes, given as a little-endian integer of whole bytes."""
    return sum((groups >> 8 * index & 0x7F) << 7 * index for index in range(size))


def _clear_varint(buffer: bytearray, offset: int, size: int) -> None:
    """Clear the value bits of a varint; its continuation bits stay and are compared."""
    for index in range(offset, offset + size):
        buffer[index] &= 0x80


def _layout(offsets: FieldOffsets, size: int) -> str:
    """Return the struct format of all values, then the last point's time, step and number.

    Other bytes are skipped.
    """
    fields = [(offset, 8, code) for offset, code in offsets.values]
    fields += [
        (offsets.times[-1], 8, "Q"),
        (offsets.steps[-1], offsets.step_bytes, f"{offsets.step_bytes}s"),
    ]
    fields.append((offsets.seq, offsets.seq_bytes, f"{offsets.seq_bytes}s"))
    layout = "<"
    position = 0
    for offset, length, code in fields:
        layout += f"{offset - position}x{code}"
        position = offset + length
    return f"{layout}{size - position}x"


# --- learning -------------------------------------------------------------------------------------
_SCOPE = 0x0A
_METRICS = 0x12
_NAME = 0x0A
_GAUGE = 0x2A
_POINTS = 0x0A
_TIME = 0x19
_AS_DOUBLE = 0x21
_AS_INT = 0x31
_ATTRIBUTES = 0x3A
_KEY = 0x0A
_ANY = 0x12
_INT_VALUE = 0x18
_CODES = {_AS_DOUBLE: "d", _AS_INT: "q"}


def infer_layout(payload: bytes) -> FieldOffsets | None:
    """Find the variable bytes of a row frame, a ``ScopeMetrics``.

    Return ``None`` when its shape cannot be learned.
    """
    offsets = FieldOffsets()
    try:
        position = 0
        end = len(payload)
        while position < end:
            tag, start, position = _field(payload, position, end)
            if tag == _METRICS:
                if offsets.seq >= 0:
                    return None  # the count is the last metric of a row
                _metric(payload, start, position, offsets)
            elif tag != _SCOPE:
                return None
    except (_OtherShapeError, IndexError):
        # Another shape, or bytes that end early: protobuf reads the frame, or refuses it.
        return None
    is_complete = offsets.seq >= 0 and bool(offsets.values)
    # The layout reads the number behind the step; other senders may write it before.
    if (
        is_complete
        and len(offsets.steps) == len(offsets.times)
        and offsets.seq > offsets.steps[-1]
    ):
        return offsets
    return None


def _field(payload: bytes, position: int, end: int) -> tuple[int, int, int]:
    """Return tag, start and end of the field at *position*.

    All tags of a row frame have one byte.
    """
    tag = payload[position]
    kind = tag & 7
    if tag & 0x80 or kind not in {0, 1, 2}:
        raise _OtherShapeError
    start = position + 1
    if kind == 1:
        stop = start + 8
    else:
        size, stop = _varint(payload, start)
        if kind == 2:
            start = stop
            stop += size
    if stop > end:
        raise _OtherShapeError
    return tag, start, stop


def _varint(payload: bytes, position: int) -> tuple[int, int]:
    value = 0
    for index in range(_MAX_VARINT):
        byte = payload[position + index]
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, position + index + 1
    raise _OtherShapeError


def _metric(payload: bytes, start: int, end: int, offsets: FieldOffsets) -> None:
    tag, name_start, position = _field(payload, start, end)
    name = payload[name_start:position]
    gauge, gauge_start, gauge_end = _field(payload, position, end)
    point, point_start, point_end = _field(payload, gauge_start, gauge_end)
    if (
        (tag, gauge, point) != (_NAME, _GAUGE, _POINTS)
        or gauge_end != end
        or point_end != gauge_end
    ):
        raise _OtherShapeError
    try:
        key = name.decode()
    except UnicodeDecodeError:
        # Only a producer's own bytes; protobuf decides what they are.
        raise _OtherShapeError from None
    _point(payload, point_start, point_end, offsets, key)


def _point(
    payload: bytes, start: int, end: int, offsets: FieldOffsets, key: str
) -> None:
    time_tag, time_start, position = _field(payload, start, end)
    value_tag, value_start, position = _field(payload, position, end)
    if time_tag != _TIME or value_tag not in _CODES:
        raise _OtherShapeError
    offsets.times.append(time_start)
    counts = key == semconv.ROW
    if not counts:  # the number of values of a row is part of its shape
        offsets.keys.append(key)
        offsets.values.append((value_start, _CODES[value_tag]))
    elif value_tag != _AS_INT:
        raise _OtherShapeError
    steps = len(offsets.steps)
    while position < end:
        tag, attribute_start, position = _field(payload, position, end)
        if tag != _ATTRIBUTES:
            raise _OtherShapeError
        _attribute(payload, attribute_start, position, offsets, counts)
    if len(offsets.steps) != steps + 1 or (counts and offsets.seq < 0):
        raise _OtherShapeError


def _attribute(
    payload: bytes, start: int, end: int, offsets: FieldOffsets, counts: bool
) -> None:
    tag, name_start, position = _field(payload, start, end)
    name = payload[name_start:position]
    any_tag, value_start, value_end = _field(payload, position, end)
    if (tag, any_tag) != (_KEY, _ANY) or value_end != end:
        raise _OtherShapeError
    if name == semconv.ROLE.encode():
        return  # constant: the learner copies it from the row that protobuf read
    int_tag, offset, stop = _field(payload, value_start, value_end)
    if int_tag != _INT_VALUE or stop != value_end:
        raise _OtherShapeError
    if name == semconv.STEP.encode():
        # All points of a row have one step, so its varints have one length.
        if offsets.steps and stop - offset != offsets.step_bytes:
            raise _OtherShapeError
        offsets.step_bytes = stop - offset
        offsets.steps.append(offset)
    elif name == semconv.SEQ.encode() and counts and offsets.seq < 0:
        offsets.seq = offset
        offsets.seq_bytes = stop - offset
    else:
        raise _OtherShapeError
