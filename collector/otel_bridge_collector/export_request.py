"""Finds the resources of a serialised export request, without building messages or reading points.

All three export requests have one shape: field 1, repeated, is a ``ResourceMetrics``,
``ResourceSpans`` or ``ResourceLogs``, whose own field 1 is the ``Resource``. This module finds
their offsets in the bytes, which are kept unchanged. It runs before the bytes are parsed: two bytes
become a message of a hundred, so that the number of messages is limited.

Source: protobuf, "Encoding"; opentelemetry-proto, ``metrics_service.proto`` and its two siblings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import TypeAlias

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric

from otel_bridge.errors import InvalidRecordError
from otel_bridge.journal.frames import Signal
from otel_bridge_collector.error_table import TooLargeError

Request: TypeAlias = (
    ExportMetricsServiceRequest | ExportTraceServiceRequest | ExportLogsServiceRequest
)

Response: TypeAlias = (
    ExportMetricsServiceResponse
    | ExportTraceServiceResponse
    | ExportLogsServiceResponse
)

REQUESTS: Mapping[Signal, type[Request]] = {
    Signal.METRICS: ExportMetricsServiceRequest,
    Signal.TRACES: ExportTraceServiceRequest,
    Signal.LOGS: ExportLogsServiceRequest,
}
_VARINT = 0
_LENGTH = 2
_FIXED_BYTES = {1: 8, 5: 4}
"""Size of a field by its wire type: fixed64 and fixed32."""
_FIELDS = 100_000
"""Most fields of a request at its two outer levels, resources and scopes: five times what the
largest request of otel-bridge has."""


def parts(body: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield, for each resource of *body*, the bytes of its ``Resource`` and the field that holds all of it.

    A message may be split into several fields 1, which are joined, because together they mean the
    same message.

    Raises:
        InvalidRecordError: The bytes are not well formed.
        TooLargeError: They have more resources and scopes than any producer sends.
    """
    budget = _FieldBudget(_FIELDS, "resources and scopes")
    for number, begin, start, end in _fields(body, 0, len(body), budget):
        if number == 1:
            # Joined once: with a hundred thousand pieces, adding each would take minutes.
            pieces: list[bytes] = []
            for inner, _, inner_start, inner_end in _fields(body, start, end, budget):
                if inner == 1:
                    pieces.append(body[inner_start:inner_end])
            yield b"".join(pieces), body[begin:end]


class _FieldBudget:
    """Counts the fields that are read, and refuses a request with more than its limit.

    Its budget is one for the whole request, because many small levels take as much memory as one
    large.
    """

    def __init__(self, limit: int, contents: str) -> None:
        self._limit = limit
        self._contents = contents
        self._fields = 0

    def take(self) -> None:
        """Count one field; raise `TooLargeError` beyond the limit."""
        self._fields += 1
        if self._fields > self._limit:
            raise TooLargeError(
                f"request has more than {self._limit} {self._contents}; send smaller batches"
            )


def _fields(
    body: bytes | memoryview, position: int, end: int, budget: _FieldBudget
) -> Iterator[tuple[int, int, int, int]]:
    """Yield the fields of the message in ``body[position:end]``: number, start, start of the content, end.

    A field that is not length-delimited has number 0.

    Raises:
        InvalidRecordError: The bytes are not well formed, or have groups, which OTLP does not.
        TooLargeError: The *budget* is used up.
    """
    while position < end:
        budget.take()
        begin = position
        tag, position = _varint(body, position, end)
        content = position
        number = 0
        wire_type = tag & 7
        if wire_type == _LENGTH:
            length, content = _varint(body, position, end)
            position = content + length
            number = tag >> 3
        elif wire_type == _VARINT:
            _, position = _varint(body, position, end)
        elif wire_type in _FIXED_BYTES:
            position += _FIXED_BYTES[wire_type]
        else:
            raise InvalidRecordError(f"wire type {wire_type} where a field begins")
        if position > end:
            raise InvalidRecordError("a field is longer than the request")
        yield number, begin, content, position


def _varint(body: bytes | memoryview, position: int, end: int) -> tuple[int, int]:
    """Return the number at *position*, and where it ends.

    Raises `InvalidRecordError` when it does not end before *end*, or has more than ten bytes, the
    most of a 64-bit number.
    """
    value = 0
    shift = 0
    while position < end and shift < 70:
        byte = body[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise InvalidRecordError("a number ends in the middle")


# Counts the points, spans or records of a request, only for the rejected part of an accepted
# request.


def count_items(request: Request) -> int:
    """Return the number of points, spans or records, for ``partial_success`` of a rejected part."""
    items = 0
    if isinstance(request, ExportMetricsServiceRequest):
        for metrics in request.resource_metrics:
            for scope_metrics in metrics.scope_metrics:
                items += sum(map(_points, scope_metrics.metrics))
    elif isinstance(request, ExportTraceServiceRequest):
        for spans in request.resource_spans:
            for scope_spans in spans.scope_spans:
                items += len(scope_spans.spans)
    else:
        for logs in request.resource_logs:
            for scope_logs in logs.scope_logs:
                items += len(scope_logs.log_records)
    return items


_RESPONSES: Mapping[Signal, tuple[type[Response], str]] = {
    Signal.METRICS: (ExportMetricsServiceResponse, "rejected_data_points"),
    Signal.TRACES: (ExportTraceServiceResponse, "rejected_spans"),
    Signal.LOGS: (ExportLogsServiceResponse, "rejected_log_records"),
}


def partial_success(signal: Signal, items: int, reason: str) -> Response:
    """Return the response that reports that *items* were rejected."""
    kind, count_name = _RESPONSES[signal]
    response = kind()
    setattr(response.partial_success, count_name, items)
    response.partial_success.error_message = reason
    return response


def _points(metric: Metric) -> int:
    """Return the number of points of a metric; 0 for one without data."""
    kind = metric.WhichOneof("data")
    if kind is None:
        return 0
    return len(getattr(metric, kind).data_points)


# Checks that bytes are a serialized protobuf message, in pieces, so that memory stays small
# whatever they hold.
#
# Two bytes can become a message of a hundred, so that a request that is parsed whole may take fifty
# times its size. Any sequence of whole fields of a message is itself a message of that type: a
# large message is split into such sequences, each of which is parsed and discarded.
#
# Source: protobuf, "Encoding" ("Last One Wins", "Message Structure"). No I/O.

WHOLE_BYTES = 1 << 20
"""Largest message that is parsed in one piece: 50 MB and 50 ms if it consists of empty messages."""
# Parsed, such a sequence takes up to fifty times its size.
_RUN_BYTES = 256 << 10
_MAX_FIELDS = 1_000_000
"""Most fields of all messages above `WHOLE_BYTES`, more than 64 MiB of real points, spans or log
records have."""
_DEPTH = 100
"""Deepest nesting of messages: protobuf's own limit."""


def check_well_formed(kind: type[Message], body: bytes) -> None:
    """Raise unless *body* is a serialized *kind*.

    Raises:
        InvalidRecordError: The bytes are not such a message.
        TooLargeError: Its large messages have more fields than any producer sends.
    """
    budget = _FieldBudget(_MAX_FIELDS, "points, spans or log records")
    # A view, because the inner messages of a large request would be copied at each level.
    _check_message(kind, memoryview(body), 0, budget)


def _check_message(
    kind: type[Message], body: memoryview, depth: int, budget: _FieldBudget
) -> None:
    """Check a message, a large one in sequences of whole fields and its large inner messages.

    Raises as `check_well_formed` does.
    """
    if len(body) <= WHOLE_BYTES:
        _parse(kind, body)
        return
    if depth > _DEPTH:
        raise InvalidRecordError(
            f"messages nest deeper than {_DEPTH}; expected an OTLP request"
        )
    inner_kinds = _message_fields(kind.DESCRIPTOR)
    run_start = 0
    for number, begin, content, end in _fields(body, 0, len(body), budget):
        if number in inner_kinds and end - content > WHOLE_BYTES:
            _parse(kind, body[run_start:begin])
            _check_message(inner_kinds[number], body[content:end], depth + 1, budget)
            run_start = end
        elif end - run_start > _RUN_BYTES:
            _parse(kind, body[run_start:end])
            run_start = end
    _parse(kind, body[run_start:])


def _parse(kind: type[Message], body: memoryview) -> None:
    """Parse a message and discard it.

    Raises `InvalidRecordError` when the bytes are not such a message.
    """
    try:
        kind.FromString(bytes(body))
    except DecodeError as exc:
        raise InvalidRecordError(
            f"{len(body)} bytes are not an OTLP {kind.DESCRIPTOR.name}: {exc}"
        ) from exc


@cache
def _message_fields(kind: Descriptor) -> dict[int, type[Message]]:
    """Return the message types that *kind* holds, by field number."""
    message_types: dict[int, type[Message]] = {}
    for field in kind.fields:
        is_message = field.type == FieldDescriptor.TYPE_MESSAGE
        if is_message and field.message_type is not None:
            message_types[field.number] = GetMessageClass(field.message_type)
    return message_types
