"""Spans and their attributes -> OTLP protobuf, packed by hand on the caller's thread.

The bytes equal those of ``opentelemetry-exporter-otlp-proto-common`` for the same data. Pure: no
I/O, no clock. Messages stay in pieces until the record is joined, once: copying 48 KB at each level
costs more than everything else. Fields are in the order of their numbers. Source:
opentelemetry-proto, ``trace.proto``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from otel_bridge.emit.encode.protobuf import (
    Attribute,
    any_value,
    attributes,
    fixed64,
    message,
    text,
    varint,
)
from otel_bridge.emit.encode.row import SCOPE

KIND_INTERNAL = 1
KIND_CLIENT = 3
_TIMES = struct.Struct("<BQBQ").pack
_NO_REMOTE_PARENT = b"\x85\x01\x00\x01\x00\x00"
"""Field 16, flags: SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK and not IS_REMOTE."""
_STATUS_UNSET = b"\x7a\x00"
_PLAIN_TAIL = _STATUS_UNSET + _NO_REMOTE_PARENT
_MAX_CACHED = 4096
_MAX_CACHED_CHARS = 64
_KEYS: dict[str, bytes] = {}


class Utf8(NamedTuple):
    """Holds a long text, already UTF-8, in pieces."""

    pieces: Sequence[bytes]


class ExtraAttributes(NamedTuple):
    """Holds additions to a span at its end: encoded fields, and more spans for its ``ScopeSpans``."""

    fields: bytes = b""
    spans: bytes = b""


class Pieces(NamedTuple):
    """Holds encoded bytes, not yet joined."""

    parts: list[bytes]
    size: int


def utf8_array(items: Sequence[bytes]) -> Utf8:
    """Return JSON texts as one JSON array."""
    pieces = [b"["]
    for item in items:
        pieces += (item, b",")
    if items:
        pieces[-1] = b"]"
    else:
        pieces[0] = b"[]"
    return Utf8(pieces)


def span_attributes(values: Iterable[tuple[str, Attribute | Utf8]]) -> Pieces:
    """Encode attributes as fields of a ``Span``."""
    parts: list[bytes] = []
    for name, value in values:
        if isinstance(value, Utf8):
            _add_text(parts, name, value.pieces)
        else:
            parts.append(message(9, _key(name) + message(2, any_value(value))))
    return Pieces(parts, sum(map(len, parts)))


def _key(name: str) -> bytes:
    """Encode the key of a ``KeyValue``; a known key costs one lookup."""
    packed = _KEYS.get(name)
    if packed is None:
        packed = text(1, name)
        # Keys of metadata are the program's own, and may be ever new.
        if len(_KEYS) < _MAX_CACHED and len(name) <= _MAX_CACHED_CHARS:
            _KEYS[name] = packed
    return packed


def _add_text(parts: list[bytes], name: str, pieces: Sequence[bytes]) -> None:
    key = _key(name)
    if len(pieces) == 1:
        length = len(pieces[0])
    else:
        length = sum(map(len, pieces))
    size = varint(length)
    inner = 1 + len(size) + length
    inner_size = varint(inner)
    outer = varint(len(key) + 1 + len(inner_size) + inner)
    parts.append(b"\x4a%b%b\x12%b\x0a%b" % (outer, key, inner_size, size))
    parts += pieces


def span(
    ids: tuple[bytes, bytes, bytes | None],
    name: str,
    times: tuple[int, int],
    packed_attributes: Pieces,
    *,
    kind: int = KIND_INTERNAL,
    events: bytes = b"",
    links: bytes = b"",
    error: str | None = None,
) -> Pieces:
    """Encode one ``Span``.

    Args:
        ids: Trace (16 bytes), span (8 bytes) and parent (8 bytes; ``None`` for a root).
        name: Name of the span.
        times: Start and end, Unix nanoseconds.
        packed_attributes: Result of `span_attributes`.
        kind: ``KIND_INTERNAL`` or ``KIND_CLIENT``.
        events: Encoded fields 11, as `exception_event` makes them.
        links: Encoded fields 13.
        error: Text of an error status; ``None``: status unset.
    """
    trace_id, span_id, parent_id = ids
    parent = b"" if parent_id is None else b"\x22\x08" + parent_id
    title = text(5, name) + b"\x30" + varint(kind)
    head = b"\x0a\x10%b\x12\x08%b%b%b%b" % (
        trace_id,
        span_id,
        parent,
        title,
        _TIMES(0x39, times[0], 0x41, times[1]),
    )
    if events or links or error is not None:
        status = _STATUS_UNSET if error is None else _status(error)
        tail = b"".join((events, links, status, _NO_REMOTE_PARENT))
    else:
        # Nearly every span: without events, links and error its tail is constant.
        tail = _PLAIN_TAIL
    return Pieces(
        [head, *packed_attributes.parts, tail],
        len(head) + packed_attributes.size + len(tail),
    )


def failure_fields(time_unix_ns: int, kind: str, about: str) -> bytes:
    """Encode the event and the status of a span that failed, as fields of a ``Span``."""
    return exception_event(time_unix_ns, kind, about) + _status(about)


def _status(error: str) -> bytes:
    return message(15, text(2, error) + b"\x18\x02")


def exception_event(time_unix_ns: int, kind: str, about: str) -> bytes:
    """Encode the span event ``exception`` as field 11 of a ``Span``."""
    facts = attributes(3, (("exception.type", kind), ("exception.message", about)))
    return message(11, fixed64(1, time_unix_ns) + text(2, "exception") + facts)


def link(trace_id: bytes, span_id: bytes) -> bytes:
    """Encode a link to a span of this process as field 13 of a ``Span``."""
    return message(
        13, b"\x0a\x10" + trace_id + b"\x12\x08" + span_id + b"\x35\x00\x01\x00\x00"
    )


def rollout_link(trace_id: bytes) -> bytes:
    """Encode a link to a rollout of any process as field 13 of a ``Span``.

    The id of its root span is not known where only the rollout's id is: half of the trace id stands
    for it, since receivers may refuse an empty one.
    """
    return b"\x6a\x1c\x0a\x10%b\x12\x08%b" % (trace_id, trace_id[:8])


def spans_field(spans: Iterable[Pieces]) -> list[bytes]:
    """Encode spans as fields of a ``ScopeSpans``, in pieces."""
    parts: list[bytes] = []
    for span_pieces in spans:
        parts += (b"\x12", varint(span_pieces.size))
        parts += span_pieces.parts
    return parts


def scope_spans(spans: Iterable[Pieces]) -> bytes:
    """Encode a ``ScopeSpans`` of our scope."""
    return b"".join([SCOPE, *spans_field(spans)])
