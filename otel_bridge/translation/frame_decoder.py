"""Frames of segments -> their producers and the data in them. Decoding changes no state but counts. One thread.

Data of another run, and a segment with an unreadable header, are counted here and left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
)
from opentelemetry.proto.logs.v1.logs_pb2 import ScopeLogs
from opentelemetry.proto.metrics.v1.metrics_pb2 import ScopeMetrics
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans

from otel_bridge.errors import InvalidRecordError
from otel_bridge.translation.decode.rows import RowFragment, ScopedMetric, scoped
from otel_bridge.translation.processes.producers import (
    ProducerContext,
    ProducerRegistry,
    SegmentInfo,
)
from otel_bridge.translation.state import TranslationState, count

UNDECODABLE = "undecodable"
OTHER_RUN = "other_run"

_T = TypeVar("_T")
_ByResource: TypeAlias = "Sequence[tuple[Resource, Iterable[_T]]]"


@dataclass(frozen=True, slots=True)
class DecodedFrame:
    """Holds a frame of one signal.

    Attributes:
        source: The segment that holds the frame.
        payload: One ``Scope…`` message, or, when *whole*, a whole export request.
        whole: Whether the payload carries its own resources.
        append_unix_ns: Time at which the frame was appended.
        now_unix_ns: Time at which the frame is read.
    """

    source: SegmentInfo
    payload: bytes
    whole: bool
    append_unix_ns: int
    now_unix_ns: int

    @property
    def from_receiver(self) -> bool:
        """Return whether a receiver appended the frame, so that earlier rows may still arrive.

        A process appends its own rows in order; a receiver appends requests of several connections.
        """
        return self.source.kind == "receiver"


@dataclass(slots=True)
class ResourceMetricsInput:
    """Holds the metrics of one resource: rows of native producers, and all others with the names of their scopes."""

    context: ProducerContext
    fragments: list[RowFragment]
    metrics: list[ScopedMetric]


class FrameReader:
    """Reads the frames of one run.

    A frame that cannot be decoded raises, and the translator counts it (``undecodable``). Attributes
    of an unexpected type count as missing, so that a frame which can be decoded never raises.

    Args:
        state: State in which drops are counted.
        contexts: The producers of the run; new ones are added.
    """

    def __init__(self, state: TranslationState, contexts: ProducerRegistry) -> None:
        self._state = state
        self._registry = contexts

    def of_segment(
        self, source: SegmentInfo, now_unix_ns: int
    ) -> ProducerContext | None:
        """Return the producer of a segment. ``None``, counted: another run's, or its resource cannot be read."""
        try:
            context = self._registry.of_segment(source, now_unix_ns)
        except InvalidRecordError:
            # Its header stays unreadable: each frame of it is counted, and other segments go on.
            count(self._state, UNDECODABLE)
            return None
        if context is None:
            count(self._state, OTHER_RUN)
        return context

    def metrics(self, frame: DecodedFrame) -> list[ResourceMetricsInput]:
        """Return all metrics of a frame, by resource: a list, so that a frame that fails has no effect.

        Empty for a segment of another run, or whose header cannot be read.

        Raises:
            google.protobuf.message.DecodeError: The frame cannot be decoded, in whole or in part.
        """
        received = self._received(frame, _metrics_by_resource, bytes)
        return [_split_metrics(context, scopes) for context, scopes in received]

    def spans(
        self, frame: DecodedFrame
    ) -> Iterator[tuple[ProducerContext, Iterable[ScopeSpans]]]:
        """Yield the spans of a frame of traces, one producer after the other.

        Raises:
            google.protobuf.message.DecodeError: The frame cannot be decoded; nothing was yielded.
        """
        return self._received(frame, _spans_by_resource, ScopeSpans.FromString)

    def logs(
        self, frame: DecodedFrame
    ) -> Iterator[tuple[ProducerContext, Iterable[ScopeLogs]]]:
        """Yield the events of a frame of logs, one producer after the other.

        Raises:
            google.protobuf.message.DecodeError: The frame cannot be decoded; nothing was yielded.
        """
        return self._received(frame, _logs_by_resource, ScopeLogs.FromString)

    def _received(
        self,
        frame: DecodedFrame,
        by_resource: Callable[[bytes], _ByResource[_T]],
        alone: Callable[[bytes], _T],
    ) -> Iterator[tuple[ProducerContext, Iterable[_T]]]:
        """Yield the data of a frame with their producer; those of another run are counted (``other_run``).

        Nothing of a segment whose header cannot be read, unless the data carry their own resources.
        A frame that cannot be decoded raises `DecodeError` before anything is yielded.

        Args:
            frame: The frame.
            by_resource: Reads a whole request, whose data carry their resources.
            alone: Reads a message whose resource is in the header of the segment.
        """
        if frame.whole:
            for resource, scopes in by_resource(frame.payload):
                context = self._registry.of_resource(
                    frame.source, resource, frame.now_unix_ns
                )
                if context is not None:
                    yield context, scopes
                else:
                    count(self._state, OTHER_RUN)
        else:
            writer = self.of_segment(frame.source, frame.now_unix_ns)
            if writer is not None:
                yield writer, (alone(frame.payload),)


def _metrics_by_resource(request: bytes) -> _ByResource[bytes]:
    """Return the scopes as bytes, by which the decoder of rows recognises their shape."""
    messages = ExportMetricsServiceRequest.FromString(request).resource_metrics
    by_resource: list[tuple[Resource, Iterable[bytes]]] = []
    for message in messages:
        scopes = [scope.SerializeToString() for scope in message.scope_metrics]
        by_resource.append((message.resource, scopes))
    return by_resource


def _spans_by_resource(request: bytes) -> _ByResource[ScopeSpans]:
    messages = ExportTraceServiceRequest.FromString(request).resource_spans
    return [(message.resource, message.scope_spans) for message in messages]


def _logs_by_resource(request: bytes) -> _ByResource[ScopeLogs]:
    messages = ExportLogsServiceRequest.FromString(request).resource_logs
    return [(message.resource, message.scope_logs) for message in messages]


def _split_metrics(
    context: ProducerContext, scopes: Iterable[bytes]
) -> ResourceMetricsInput:
    """Split the metrics of one resource into rows and other metrics.

    Third-party metrics are never rows of our shape, so their decoder is not asked.

    Raises:
        google.protobuf.message.DecodeError: A scope cannot be decoded.
    """
    split = ResourceMetricsInput(context, [], [])
    for scope in scopes:
        if context.producer.third_party:
            message = ScopeMetrics.FromString(scope)
            split.metrics += scoped(message.scope.name, message.metrics)
            continue
        fragments, metrics = context.decoder.read(scope)
        split.fragments += fragments
        split.metrics += metrics
    return split
