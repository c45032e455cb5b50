"""Finds the resources of a serialised export request, without building messages or reading points.

All three export requests have one shape: field 1, repeated, is a ``ResourceMetrics``,
``ResourceSpans`` or ``ResourceLogs``, whose own field 1 is the ``Resource``. This module finds
their offsets in the bytes, which are kept unchanged. It runs before the bytes are parsed: two bytes
become a message of a hundred, so that the number of messages is limited.

Source: protobuf, "Encoding"; opentelemetry-proto, ``metrics_service.proto`` and its two siblings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

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

_FIRST = 0x0A
"""Tag of field 1, length-delimited."""
_VARINT, _FIXED64, _LENGTH, _START, _END, _FIXED32 = range(6)
_FIELDS = 100_000
"""Most fields of a request at its two outer levels, resources and scopes, and in groups, which no producer sends: five
times what the largest request of otel-bridge has."""


def parts(body: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield, for each resource of *body*, the bytes of its ``Resource`` and the field that holds all of it.

    A message may be split into several fields 1, which are joined, because together they mean the
    same message.

    Raises:
        InvalidRecordError: The bytes are not well formed.
        TooLargeError: They have more resources and scopes than any producer sends.
    """
    budget = _Left()
    for begin, start, end in _first_fields(body, 0, len(body), budget):
        contents = [
            body[inner:inner_end]
            for _, inner, inner_end in _first_fields(body, start, end, budget)
        ]
        yield contents[0] if len(contents) == 1 else b"".join(contents), body[begin:end]


def fields(
    body: bytes, position: int, end: int, take: Callable[[], None]
) -> Iterator[tuple[int, int, int, int]]:
    """Yield the fields of the message in ``body[at:end]``: number, start, start of the content, end.

    A field that is not length-delimited has number 0.

    Args:
        body: The bytes.
        position: Start of the message.
        end: End of the message.
        take: Called for each field; raises when there are too many.

    Raises:
        InvalidRecordError: The bytes are not well formed.
    """
    while position < end:
        take()
        begin = position
        tag, position = _varint(body, position, end)
        if tag & 7 == _LENGTH:
            length, position = _varint(body, position, end)
            if length > end - position:
                raise InvalidRecordError("a field is longer than the request")
            yield tag >> 3, begin, position, position + length
            position += length
        else:
            position = _skip(body, position, end, tag & 7, take)
            yield 0, begin, begin, position


class _Left:
    """Counts how many more fields may be read."""

    __slots__ = ("fields",)

    def __init__(self) -> None:
        self.fields = _FIELDS

    def take(self) -> None:
        self.fields -= 1
        if self.fields < 0:
            raise TooLargeError(
                f"request has more than {_FIELDS} resources and scopes; send smaller batches"
            )


def _first_fields(
    body: bytes, position: int, end: int, budget: _Left
) -> Iterator[tuple[int, int, int]]:
    """Yield for each field 1 its start, and the start and the end of its content."""
    while position < end:
        budget.take()
        begin = position
        tag, position = _varint(body, position, end)
        kind = tag & 7
        if kind == _LENGTH:
            length, position = _varint(body, position, end)
            if length > end - position:
                raise InvalidRecordError("a field is longer than the request")
            if tag == _FIRST:
                yield begin, position, position + length
            position += length
        else:
            position = _skip(body, position, end, kind, budget.take)


def _skip(
    body: bytes, position: int, end: int, kind: int, take: Callable[[], None]
) -> int:
    if kind == _VARINT:
        return _varint(body, position, end)[1]
    if kind == _START:
        return _skip_group(body, position, end, take)
    if kind not in {_FIXED64, _FIXED32}:
        raise InvalidRecordError(f"wire type {kind} where a field begins")
    position += 8 if kind == _FIXED64 else 4
    if position > end:
        raise InvalidRecordError("a field is longer than the request")
    return position


def _skip_group(body: bytes, position: int, end: int, take: Callable[[], None]) -> int:
    depth = 1
    while depth:
        take()
        tag, position = _varint(body, position, end)
        kind = tag & 7
        if kind == _END:
            depth -= 1
        elif kind == _START:
            depth += 1
        elif kind == _LENGTH:
            length, position = _varint(body, position, end)
            position += length
        else:
            position = _skip(body, position, end, kind, take)
    return position


def _varint(body: bytes, position: int, end: int) -> tuple[int, int]:
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

_JSON_NAMES = {
    Signal.METRICS: "rejectedDataPoints",
    Signal.TRACES: "rejectedSpans",
    Signal.LOGS: "rejectedLogRecords",
}


def count_items(
    request: ExportMetricsServiceRequest
    | ExportTraceServiceRequest
    | ExportLogsServiceRequest,
) -> int:
    """Return the number of points, spans or records."""
    items = 0
    if isinstance(request, ExportMetricsServiceRequest):
        for metrics in request.resource_metrics:
            for scope_metrics in metrics.scope_metrics:
                items += sum(map(_points, scope_metrics.metrics))
    elif isinstance(request, ExportTraceServiceRequest):
        for spans in request.resource_spans:
            items += sum(len(scope_spans.spans) for scope_spans in spans.scope_spans)
    else:
        for logs in request.resource_logs:
            items += sum(len(scope_logs.log_records) for scope_logs in logs.scope_logs)
    return items


def partial_success(signal: Signal, items: int, reason: str) -> bytes:
    """Return the response that reports that *items* were rejected."""
    if signal is Signal.METRICS:
        metrics = ExportMetricsServiceResponse()
        metrics.partial_success.rejected_data_points = items
        metrics.partial_success.error_message = reason
        return metrics.SerializeToString()
    if signal is Signal.TRACES:
        traces = ExportTraceServiceResponse()
        traces.partial_success.rejected_spans = items
        traces.partial_success.error_message = reason
        return traces.SerializeToString()
    logs = ExportLogsServiceResponse()
    logs.partial_success.rejected_log_records = items
    logs.partial_success.error_message = reason
    return logs.SerializeToString()


def partial_success_json(signal: Signal, items: int, reason: str) -> dict[str, object]:
    """Return the same response as JSON, in which 64-bit numbers are strings."""
    return {"partialSuccess": {_JSON_NAMES[signal]: str(items), "errorMessage": reason}}


def _points(metric: Metric) -> int:
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
    _Check(body).message(kind, 0, len(body), 0)


class _Check:
    """Checks one request; counts the fields of its large messages."""

    __slots__ = ("_body", "_left")

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._left = _MAX_FIELDS

    def message(self, kind: type[Message], start: int, end: int, depth: int) -> None:
        """Check that the bytes from *start* to *end* are a message of type *kind*."""
        if end - start <= WHOLE_BYTES:
            self._parse(kind, start, end)
            return
        if depth > _DEPTH:
            raise InvalidRecordError(
                f"messages nest deeper than {_DEPTH}; expected an OTLP request"
            )
        inner = _message_fields(kind.DESCRIPTOR)
        for number, piece_start, piece_end in self._pieces(start, end, inner):
            if number:
                self.message(inner[number], piece_start, piece_end, depth + 1)
            else:
                self._parse(kind, piece_start, piece_end)

    def _pieces(
        self, start: int, end: int, inner: dict[int, type[Message]]
    ) -> Iterator[tuple[int, int, int]]:
        """Yield sequences of whole fields as number 0, and the content of each large inner message by its number."""
        run_start = start
        for number, begin, content, field_end in fields(
            self._body, start, end, self._take
        ):
            if number in inner and field_end - content > WHOLE_BYTES:
                yield 0, run_start, begin
                yield number, content, field_end
                run_start = field_end
            elif field_end - run_start > _RUN_BYTES:
                yield 0, run_start, field_end
                run_start = field_end
        yield 0, run_start, end

    def _take(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise TooLargeError(
                f"request has more than {_MAX_FIELDS} points, spans or log records; send smaller batches"
            )

    def _parse(self, kind: type[Message], start: int, end: int) -> None:
        try:
            kind.FromString(
                self._body if end - start == len(self._body) else self._body[start:end]
            )
        except DecodeError as exc:
            raise InvalidRecordError(
                f"{end - start} bytes are not an OTLP {kind.DESCRIPTOR.name}: {exc}"
            ) from exc


@cache
def _message_fields(kind: Descriptor) -> dict[int, type[Message]]:
    """Return the message types that *kind* holds, by field number."""
    return {
        field.number: GetMessageClass(field.message_type)
        for field in kind.fields
        if field.type == FieldDescriptor.TYPE_MESSAGE and field.message_type is not None
    }
