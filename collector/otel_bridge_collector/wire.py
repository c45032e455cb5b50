"""The resources of a serialised export request, found on the wire: no message is built and no point is looked at.

All three export requests have one shape: field 1, repeated, is a ``ResourceMetrics``, ``ResourceSpans`` or
``ResourceLogs``, whose own field 1 is the ``Resource``. The bytes were parsed before, so they are well formed; this
finds where things stand in them, so that the bytes are kept as they came.

Source: protobuf, "Encoding"; opentelemetry-proto, ``metrics_service.proto`` and its two siblings.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from otel_bridge.errors import InvalidRecordError

_FIRST: Final = 0x0A
"""Tag of field 1, length-delimited."""
_VARINT, _FIXED64, _LENGTH, _START, _END, _FIXED32 = range(6)


def parts(body: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Return, for each resource of *body*, the bytes of its ``Resource`` and the field that holds all of it.

    A message may be cut into several fields 1; joined they mean the same message, so they are joined.

    Raises:
        InvalidRecordError: The bytes are not well formed.
    """
    for begin, start, end in _first_fields(body, 0, len(body)):
        found = [body[inner:inner_end] for _, inner, inner_end in _first_fields(body, start, end)]
        yield found[0] if len(found) == 1 else b"".join(found), body[begin:end]


def _first_fields(body: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Return where each field 1 begins, and where its content begins and ends."""
    while at < end:
        begin = at
        tag, at = _varint(body, at, end)
        kind = tag & 7
        if kind == _LENGTH:
            length, at = _varint(body, at, end)
            if length > end - at:
                raise InvalidRecordError("a field is longer than the request")
            if tag == _FIRST:
                yield begin, at, at + length
            at += length
        else:
            at = _skip(body, at, end, kind)


def _skip(body: bytes, at: int, end: int, kind: int) -> int:
    if kind == _VARINT:
        return _varint(body, at, end)[1]
    if kind == _START:
        return _skip_group(body, at, end)
    if kind not in {_FIXED64, _FIXED32}:
        raise InvalidRecordError(f"wire type {kind} where a field begins")
    at += 8 if kind == _FIXED64 else 4
    if at > end:
        raise InvalidRecordError("a field is longer than the request")
    return at


def _skip_group(body: bytes, at: int, end: int) -> int:
    depth = 1
    while depth:
        tag, at = _varint(body, at, end)
        kind = tag & 7
        if kind == _END:
            depth -= 1
        elif kind == _START:
            depth += 1
        elif kind == _LENGTH:
            length, at = _varint(body, at, end)
            at += length
        else:
            at = _skip(body, at, end, kind)
    return at


def _varint(body: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 70:
        byte = body[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise InvalidRecordError("a number ends in the middle")
