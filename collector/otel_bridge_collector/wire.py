"""The resources of a serialised export request, found on the wire: no message is built and no point is looked at.

All three export requests have one shape: field 1, repeated, is a ``ResourceMetrics``, ``ResourceSpans`` or
``ResourceLogs``, whose own field 1 is the ``Resource``. This finds where things stand in the bytes, which are kept
as they came. It comes before they are parsed: two bytes make a message of a hundred, so that their number has a limit.

Source: protobuf, "Encoding"; opentelemetry-proto, ``metrics_service.proto`` and its two siblings.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from otel_bridge.errors import InvalidRecordError
from otel_bridge_collector.answers import TooLargeError

_FIRST: Final = 0x0A
"""Tag of field 1, length-delimited."""
_VARINT, _FIXED64, _LENGTH, _START, _END, _FIXED32 = range(6)
_FIELDS: Final = 100_000
"""Fields of a request at its two outer levels, resources and scopes, and in groups, which nobody sends: five times what
the largest request of ours has."""


def parts(body: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Return, for each resource of *body*, the bytes of its ``Resource`` and the field that holds all of it.

    A message may be cut into several fields 1; joined they mean the same message, so they are joined.

    Raises:
        InvalidRecordError: The bytes are not well formed.
        TooLargeError: They are more resources and scopes than anybody sends.
    """
    left = _Left()
    for begin, start, end in _first_fields(body, 0, len(body), left):
        found = [body[inner:inner_end] for _, inner, inner_end in _first_fields(body, start, end, left)]
        yield found[0] if len(found) == 1 else b"".join(found), body[begin:end]


class _Left:
    """How many more fields are looked at."""

    __slots__ = ("fields",)

    def __init__(self) -> None:
        self.fields = _FIELDS

    def take(self) -> None:
        self.fields -= 1
        if self.fields < 0:
            raise TooLargeError(f"request has more than {_FIELDS} resources and scopes; send smaller batches")


def _first_fields(body: bytes, at: int, end: int, left: _Left) -> Iterator[tuple[int, int, int]]:
    """Return where each field 1 begins, and where its content begins and ends."""
    while at < end:
        left.take()
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
            at = _skip(body, at, end, kind, left)


def _skip(body: bytes, at: int, end: int, kind: int, left: _Left) -> int:
    if kind == _VARINT:
        return _varint(body, at, end)[1]
    if kind == _START:
        return _skip_group(body, at, end, left)
    if kind not in {_FIXED64, _FIXED32}:
        raise InvalidRecordError(f"wire type {kind} where a field begins")
    at += 8 if kind == _FIXED64 else 4
    if at > end:
        raise InvalidRecordError("a field is longer than the request")
    return at


def _skip_group(body: bytes, at: int, end: int, left: _Left) -> int:
    depth = 1
    while depth:
        left.take()
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
            at = _skip(body, at, end, kind, left)
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
