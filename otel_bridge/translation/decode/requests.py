"""Export request of metrics -> its resources and scopes as the received bytes, unparsed. Pure.

In a request too, each row of otel-bridge has a ``ScopeMetrics`` of its own. Found without protobuf, a row can be read
by its learned shape (row_template.py). Anything unusual is left to protobuf.
Source: opentelemetry-proto, metrics_service.proto and metrics.proto; protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

_RESOURCE_METRICS: Final = 0x0A
_RESOURCE = 0x0A
_SCOPE_METRICS = 0x12
_SCHEMA_URL = 0x1A


def resource_parts(payload: bytes) -> list[tuple[bytes, list[bytes]]] | None:
    """Return each resource of a request with its scopes, both serialised; ``None``: protobuf must read the request."""
    parts: list[tuple[bytes, list[bytes]]] = []
    try:
        for tag, message in _fields(payload):
            if tag != _RESOURCE_METRICS:
                return None
            part = _parts_of(message)
            if part is None:
                return None
            parts.append(part)
    except (IndexError, ValueError):
        return None
    return parts


def _parts_of(message: bytes) -> tuple[bytes, list[bytes]] | None:
    resource: bytes | None = None
    scopes: list[bytes] = []
    for tag, part in _fields(message):
        if tag == _SCOPE_METRICS:
            scopes.append(part)
        elif tag == _RESOURCE and resource is None:
            resource = part
        elif tag != _SCHEMA_URL:
            return None  # also a resource in two pieces, which protobuf joins
    return resource or b"", scopes


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield tag and bytes of each field; all fields have variable length."""
    position = 0
    end = len(data)
    while position < end:
        tag = data[position]
        size = data[position + 1]
        position += 2
        if size & 0x80:
            size = size & 0x7F
            shift = 7
            while True:
                byte = data[position]
                position += 1
                size |= (byte & 0x7F) << shift
                shift += 7
                if not byte & 0x80:
                    break
                if shift > 28:
                    raise ValueError("a length beyond any request")
        if tag & 0x87 != 2 or position + size > end:
            raise ValueError("another kind of field, or one that is cut")
        yield tag, data[position : position + size]
        position += size
