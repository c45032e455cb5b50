"""Frames of segments -> OTLP requests, by joining bytes: nothing is decoded.

In protobuf, messages laid end to end merge, and a repeated field is the sum of its parts: a request is the requests of
its frames one behind the other, and a frame without a resource gets its segment's put in front.
Source: protobuf.dev, "Encoding", "Last One Wins" and "Repeated"; opentelemetry-proto, ``Resource{Metrics,Spans,Logs}``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, TypeVar

from google.protobuf.message import DecodeError
from opentelemetry.proto.logs.v1.logs_pb2 import ScopeLogs
from opentelemetry.proto.metrics.v1.metrics_pb2 import ScopeMetrics
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans

from otel_bridge.journal.frames import Frame, Signal

REQUEST_BYTES: Final = 3_500 << 10
"""Below gRPC's default limit of 4 MiB, with room for what a Collector adds."""

_RESOURCE_TAG: Final = b"\x0a"  # field 1 of Resource*: resource; field 1 of Export*ServiceRequest: the Resource*
_SCOPE_TAG: Final = b"\x12"  # field 2 of Resource*: scope_metrics, scope_spans, scope_logs

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Part:
    """One frame as it goes into a request: the serialised field of ``Export*ServiceRequest`` that it becomes."""

    signal: Signal
    data: bytes


def parts_of(frame: Frame, resource: bytes) -> list[Part]:
    """Return *frame* as parts of requests, each under `REQUEST_BYTES` where it can be cut; a control frame has none."""
    signal = Signal(frame.signal)
    if signal is Signal.CONTROL:
        return []
    if frame.whole:
        return [Part(signal, frame.payload)]
    head = _field(_RESOURCE_TAG, resource)
    return [Part(signal, _in_request(head, payload)) for payload in _cut(signal, frame.payload, len(head))]


def bodies(parts: Iterable[Part]) -> Iterator[tuple[Signal, Sequence[bytes]]]:
    """Put *parts* together to requests under `REQUEST_BYTES`: rows first, then rollouts and events as they come.

    An event may be the statistics of a step, which the next step's rollouts would close, or the end of the process.
    """
    given = list(parts)
    ordered = [part for part in given if part.signal is Signal.METRICS]
    ordered += [part for part in given if part.signal is not Signal.METRICS]
    for signal, neighbours in groupby(ordered, key=lambda part: part.signal):
        body: list[bytes] = []
        size = 0
        for part in neighbours:
            if body and size + len(part.data) > REQUEST_BYTES:
                yield signal, body
                body, size = [], 0
            body.append(part.data)
            size += len(part.data)
        yield signal, body


def _in_request(head: bytes, payload: bytes) -> bytes:
    return _field(_RESOURCE_TAG, head + _field(_SCOPE_TAG, payload))


def _cut(signal: Signal, payload: bytes, head_bytes: int) -> Iterator[bytes]:
    """Yield *payload*, in halves of halves where it is too large and has more than one metric, span or record."""
    if len(payload) + head_bytes + 16 <= REQUEST_BYTES:
        yield payload
        return
    try:
        halves = _halves(signal, payload)
    except DecodeError:
        halves = []  # the other end says what is wrong with it
    if not halves:
        yield payload
    for half in halves:
        yield from _cut(signal, half, head_bytes)


def _halves(signal: Signal, payload: bytes) -> list[bytes]:
    """Return two messages with half of the items each; none when there are less than two items."""
    halves: list[ScopeMetrics | ScopeSpans | ScopeLogs] = []
    if signal is Signal.METRICS:
        metrics = ScopeMetrics.FromString(payload)
        halves = [
            ScopeMetrics(scope=metrics.scope, metrics=part, schema_url=metrics.schema_url)
            for part in _split(metrics.metrics)
        ]
    elif signal is Signal.TRACES:
        spans = ScopeSpans.FromString(payload)
        halves = [
            ScopeSpans(scope=spans.scope, spans=part, schema_url=spans.schema_url) for part in _split(spans.spans)
        ]
    else:
        logs = ScopeLogs.FromString(payload)
        halves = [
            ScopeLogs(scope=logs.scope, log_records=part, schema_url=logs.schema_url)
            for part in _split(logs.log_records)
        ]
    return [half.SerializeToString() for half in halves]


def _split(items: Sequence[T]) -> list[Sequence[T]]:
    middle = len(items) // 2
    return [items[:middle], items[middle:]] if middle else []


def _field(tag: bytes, data: bytes) -> bytes:
    return tag + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
