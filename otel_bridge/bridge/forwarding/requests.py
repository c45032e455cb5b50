"""Turns frames of segments into OTLP requests by joining bytes.

Only data too large for one request is decoded.

In protobuf, concatenated messages merge, and a repeated field is the sum of its parts. So a request
is the concatenation of the requests of its frames. A frame without a resource gets its segment's in
front. Source: protobuf.dev, "Encoding", "Last One Wins" and "Repeated"; opentelemetry-proto,
``Resource{Metrics,Spans,Logs}``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

from otel_bridge.bridge.forwarding.request_split import under
from otel_bridge.journal.frames import Frame, Signal

REQUEST_BYTES = 3_500 << 10
"""Below gRPC's default limit of 4 MiB, with room for the additions of a Collector."""

# Field 1 of Resource*: resource; field 1 of Export*ServiceRequest: the Resource*.
_RESOURCE_TAG = b"\x0a"
# Field 2 of Resource*: scope_metrics, scope_spans, scope_logs.
_SCOPE_TAG = b"\x12"


@dataclass(frozen=True, slots=True)
class RequestPart:
    """Holds one frame, or a part of one, as a serialised ``Export*ServiceRequest``."""

    signal: Signal
    data: bytes


def parts_of(frame: Frame, resource: bytes) -> list[RequestPart]:
    """Return *frame* as parts of requests, each under `REQUEST_BYTES` if it can be split.

    A control frame has none. A frame of a trainer holds one scope without its resource, which is
    put in front; the receiver's frames are whole requests.
    """
    signal = Signal(frame.signal)
    if signal is Signal.CONTROL:
        return []
    request = frame.payload
    if not frame.whole:
        resource_part = _field(_RESOURCE_TAG, resource) + _field(
            _SCOPE_TAG, frame.payload
        )
        request = _field(_RESOURCE_TAG, resource_part)
    return [RequestPart(signal, data) for data in under(REQUEST_BYTES, signal, request)]


def bodies(parts: Iterable[RequestPart]) -> Iterator[tuple[Signal, Sequence[bytes]]]:
    """Join *parts* to requests under `REQUEST_BYTES`: rows first, then rollouts and events in their order.

    An event may be the end of the process. It may be the statistics of a step, which rollouts of
    the next would close.
    """
    # A stable sort: rollouts and events stay in their order.
    ordered = sorted(parts, key=lambda part: part.signal is not Signal.METRICS)
    for signal, neighbours in groupby(ordered, key=attrgetter("signal")):
        body: list[bytes] = []
        size = 0
        for part in neighbours:
            # A part over the limit goes alone: it could not be split, and the other end decides.
            if body and size + len(part.data) > REQUEST_BYTES:
                yield signal, body
                body = []
                size = 0
            body.append(part.data)
            size += len(part.data)
        yield signal, body


def _field(tag: bytes, data: bytes) -> bytes:
    return tag + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    """Return *value* as protobuf encodes a length: seven bits a byte, the lowest first."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
