"""Spans and their attributes -> OTLP protobuf, packed by hand on the caller's thread.

The bytes equal those of ``opentelemetry-exporter-otlp-proto-common`` for the same data. Pure: no I/O, no clock.
Fields stand in the order of their numbers. Source: opentelemetry-proto, ``trace.proto``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from otel_bridge.emit.rows import SCOPE
from otel_bridge.emit.wire import Attribute, any_value, attributes, fixed64, message, text, varint

KIND_INTERNAL: Final = 1
KIND_CLIENT: Final = 3
_TIMES: Final = struct.Struct("<BQBQ").pack
_NO_REMOTE_PARENT: Final = b"\x85\x01\x00\x01\x00\x00"
"""Field 16, flags: SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK and not IS_REMOTE."""
_STATUS_UNSET: Final = b"\x7a\x00"
_KEYS: dict[str, bytes] = {}
_MAX_KEYS: Final = 4096


def _key(name: str) -> bytes:
    """Encode the key of a ``KeyValue``; those seen before cost a look-up."""
    packed = _KEYS.get(name)
    if packed is None:
        packed = text(1, name)
        if len(_KEYS) < _MAX_KEYS and len(name) < 256:
            _KEYS[name] = packed
    return packed


def _attribute(name: str, value: Attribute) -> bytes:
    return message(9, _key(name) + message(2, any_value(value)))


def _text_attribute(name: str, value: bytes) -> bytes:
    """Encode an attribute that is UTF-8 already: the hot path of messages, copied once."""
    key = _key(name)
    size = varint(len(value))
    inner = 1 + len(size) + len(value)
    inner_size = varint(inner)
    outer = varint(len(key) + 1 + len(inner_size) + inner)
    return b"".join((b"\x4a", outer, key, b"\x12", inner_size, b"\x0a", size, value))


def span_attributes(values: Iterable[tuple[str, Attribute]]) -> bytes:
    """Encode attributes as fields of a ``Span``; a value of ``bytes`` is UTF-8 text."""
    return b"".join(
        [_text_attribute(name, value) if type(value) is bytes else _attribute(name, value) for name, value in values]
    )


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
    """Encode one ``Span``.

    Args:
        ids: Trace (16 bytes), span (8 bytes) and parent (8 bytes; ``None`` for a root).
        name: Its name.
        times: Start and end, Unix nanoseconds.
        packed_attributes: What `span_attributes` made.
        kind: ``KIND_INTERNAL`` or ``KIND_CLIENT``.
        events: Encoded fields 11, as `exception_event` makes them.
        links: Encoded fields 13.
        error: The status is an error with this text; ``None``: unset.
    """
    trace_id, span_id, parent_id = ids
    status = _STATUS_UNSET if error is None else message(15, text(2, error) + b"\x18\x02")
    return b"".join(
        (
            b"\x0a\x10",
            trace_id,
            b"\x12\x08",
            span_id,
            b"" if parent_id is None else b"\x22\x08" + parent_id,
            text(5, name),
            b"\x30",
            varint(kind),
            _TIMES(0x39, times[0], 0x41, times[1]),
            packed_attributes,
            events,
            links,
            status,
            _NO_REMOTE_PARENT,
        )
    )


def exception_event(time_unix_ns: int, kind: str, about: str) -> bytes:
    """Encode the span event ``exception`` as field 11 of a ``Span``."""
    facts = attributes(3, (("exception.type", kind), ("exception.message", about)))
    return message(11, fixed64(1, time_unix_ns) + text(2, "exception") + facts)


def link(trace_id: bytes, span_id: bytes) -> bytes:
    """Encode a link to a span of this process as field 13 of a ``Span``."""
    return message(13, b"\x0a\x10" + trace_id + b"\x12\x08" + span_id + b"\x35\x00\x01\x00\x00")


def scope_spans(spans: Iterable[bytes]) -> bytes:
    """Encode a ``ScopeSpans`` of our scope."""
    return SCOPE + b"".join([message(2, one) for one in spans])
