"""Splits a serialised OTLP request into smaller ones with the same content. Pure.

The request is split at the outermost level that has more than one item. The levels are resources,
scopes, then metrics, spans or records, then the points of one metric. A row may be split over two
requests: its own point has the number of its values.
"""

from __future__ import annotations

from collections.abc import Iterator
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

from otel_bridge.journal.frames import Signal

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
