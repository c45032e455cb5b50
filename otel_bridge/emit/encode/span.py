"""Spans and their attributes -> OTLP protobuf, packed by hand on the caller's thread.

The bytes equal those of ``opentelemetry-exporter-otlp-proto-common`` for the same data. Pure: no
I/O, no clock. Fields are in the order of their numbers. Source: opentelemetry-proto,
``trace.proto``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from otel_bridge.emit.encode.protobuf import (
    Attribute,
    attributes,
    fixed64,
    key_field,
    key_value,
    message,
    message_head,
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


class Utf8(NamedTuple):
    """Holds a long text that is UTF-8 already, so that it is not decoded to be encoded again."""

    data: bytes


class ExtraAttributes(NamedTuple):
    """Holds additions to a span at its end: encoded fields, and more spans for its ``ScopeSpans``."""

    fields: bytes = b""
    spans: bytes = b""


def utf8_array(items: Iterable[bytes]) -> Utf8:
    """Return JSON texts as one JSON array."""
    return Utf8(b"[%b]" % b",".join(items))


def span_attributes(values: Iterable[tuple[str, Attribute | Utf8]]) -> bytes:
    """Encode attributes as fields 9 of a ``Span``; one without a value (``None``) is left out."""
    fields: list[bytes] = []
    for name, value in values:
        if isinstance(value, Utf8):
            fields += _text_attribute(name, value.data)
        elif value is not None:
            fields.append(message(9, key_value(name, value)))
    return b"".join(fields)


def _text_attribute(name: str, data: bytes) -> tuple[bytes, bytes]:
    """Return field 9 of a ``Span`` with a long text, in two pieces: what stands before *data*, and *data*.

    It may be a conversation of 100 KB, of which each message around it would be a copy.
    """
    size = len(data)
    # Field 1 of `AnyValue` is its text.
    text_head = message_head(1, size)
    value_head = message_head(2, len(text_head) + size)
    head = key_field(name) + value_head + text_head
    return message_head(9, len(head) + size) + head, data


def span(
    ids: tuple[bytes, bytes, bytes | None],
    name: str,
    times: tuple[int, int],
    packed_attributes: bytes,
    *,
    kind: int = KIND_INTERNAL,
    events: bytes = b"",
    links: bytes = b"",
    error: str | None = None,
) -> bytes:
    """Encode one ``Span``; events and links are encoded before, in the order of their fields.

    Without an error the status is written all the same, empty, as the SDK's exporter does.

    Args:
        ids: Trace (16 bytes), span (8 bytes) and parent (8 bytes; ``None`` for a root).
        name: Name of the span.
        times: Start and end, Unix nanoseconds of 64 bits; `struct.error` is raised for others.
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
    status = _STATUS_UNSET if error is None else _status(error)
    return b"".join((head, packed_attributes, events, links, status, _NO_REMOTE_PARENT))


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
    for it, since receivers may refuse an empty one. The bridge reads the trace id alone.
    """
    return b"\x6a\x1c\x0a\x10%b\x12\x08%b" % (trace_id, trace_id[:8])


def spans_field(spans: Iterable[bytes]) -> bytes:
    """Encode spans as fields 2 of a ``ScopeSpans``."""
    return b"".join(_span_pieces(spans))


def scope_spans(spans: Iterable[bytes]) -> bytes:
    """Encode a ``ScopeSpans`` of otel-bridge's scope."""
    return b"".join((SCOPE, *_span_pieces(spans)))


def _span_pieces(spans: Iterable[bytes]) -> list[bytes]:
    """Return fields 2 of a ``ScopeSpans`` in pieces, so that a long span is not copied for its own sake."""
    pieces: list[bytes] = []
    for encoded in spans:
        pieces += (message_head(2, len(encoded)), encoded)
    return pieces
