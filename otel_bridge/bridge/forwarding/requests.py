"""Turns frames of segments into OTLP requests by joining bytes.

Only data too large for one request is decoded. It is split at the outermost level that has more
than one item. The levels are resources, scopes, then metrics, spans or records, then the points of
one metric. A row may be split over two requests: its own point has the number of its values.

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
from typing import Protocol, TypeAlias, cast

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric

from otel_bridge.journal.frames import Frame, Signal

_Request: TypeAlias = (
    "ExportMetricsServiceRequest | ExportTraceServiceRequest | ExportLogsServiceRequest"
)
_KINDS: dict[Signal, tuple[type[_Request], tuple[str, ...]]] = {
    Signal.METRICS: (
        ExportMetricsServiceRequest,
        ("resource_metrics", "scope_metrics", "metrics"),
    ),
    Signal.TRACES: (
        ExportTraceServiceRequest,
        ("resource_spans", "scope_spans", "spans"),
    ),
    Signal.LOGS: (
        ExportLogsServiceRequest,
        ("resource_logs", "scope_logs", "log_records"),
    ),
}


class _Repeated(Protocol):
    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> object: ...

    def __delitem__(self, index: slice) -> None: ...


def under(limit: int, signal: Signal, request: bytes) -> Iterator[bytes]:
    """Yield *request* in halves of halves, each of at most *limit* bytes if it can be split that small."""
    parts = halves(signal, request) if len(request) > limit else []
    if not parts:
        yield request
    for part in parts:
        yield from under(limit, signal, part)


def halves(signal: Signal, request: bytes) -> list[bytes]:
    """Return two requests with half of *request* each.

    Empty when it cannot be split, or cannot be decoded: the other end then decides about the whole.
    """
    kind, names = _KINDS[signal]
    try:
        first = kind.FromString(request)
        second = kind.FromString(request)
    except DecodeError:
        return []  # the other end reports what is wrong with it
    first_items = _divisible(first, names)
    second_items = _divisible(second, names)
    if first_items is None or second_items is None:
        return []
    # Two copies, each with a half deleted, so that resource and scope stay in both.
    middle = len(first_items) // 2
    del first_items[middle:]
    del second_items[:middle]
    return [first.SerializeToString(), second.SerializeToString()]


def _divisible(message: object, names: tuple[str, ...]) -> _Repeated | None:
    """Return the outermost field of *message* with more than one item; ``None`` without one.

    A level with a single item is passed through. Below metrics come the points of one metric; a
    single span, record or point stays whole.
    """
    for name in names:
        items = cast("_Repeated", getattr(message, name))
        if len(items) != 1:
            if len(items):
                return items
            return None
        message = items[0]
    kind = None
    if isinstance(message, Metric):
        kind = message.WhichOneof("data")
    if kind is None:
        return None
    points = cast("_Repeated", getattr(message, kind).data_points)
    if len(points) > 1:
        return points
    return None


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
