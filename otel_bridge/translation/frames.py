"""Frames of segments -> who speaks in them, and what was said; nothing of it has an effect yet. Pure, one thread.

What names another run, and a segment whose header cannot be read, is counted here and left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias, TypeVar

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import ScopeLogs
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric, ScopeMetrics
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans

from otel_bridge.errors import InvalidRecordError
from otel_bridge.translation.own_rows import Learned, Piece
from otel_bridge.translation.requests import resource_parts
from otel_bridge.translation.state import State, count
from otel_bridge.translation.template import Read
from otel_bridge.translation.voices import Source, Voice, Voices

UNDECODABLE: Final = "undecodable"
OTHER_RUN: Final = "other_run"

_T = TypeVar("_T")
_ByResource: TypeAlias = "Sequence[tuple[Resource, Iterable[_T]]]"


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a signal.

    Attributes:
        source: The segment it stands in.
        payload: One ``Scope…`` message, or, when *whole*, a whole export request.
        whole: The payload carries its own resources.
        append_unix_ns: When it was appended.
        now_unix_ns: When it is read.
    """

    source: Source
    payload: bytes
    whole: bool
    append_unix_ns: int
    now_unix_ns: int

    @property
    def held(self) -> bool:
        """Rows before those in the frame may still come."""
        return self.source.kind == "receiver"


class FastRow(NamedTuple):
    """A row read by its learned shape, and the bytes it was read from."""

    learned: Learned
    read: Read
    scope: bytes


@dataclass(slots=True)
class Said:
    """What one resource brought: rows of ours, scope by scope, and all other metrics."""

    voice: Voice
    rows: list[FastRow | Sequence[Piece]]
    others: list[Metric]


class FrameReader:
    """Reads the frames of one run.

    Args:
        state: Where drops are counted.
        voices: Everyone who speaks in the run; who is new is noted there.
    """

    def __init__(self, state: State, voices: Voices) -> None:
        self._state, self._voices = state, voices

    def of_segment(self, source: Source, now_unix_ns: int) -> Voice | None:
        """Return who writes a segment; ``None``, counted: it is another run's, or its resource cannot be read."""
        try:
            voice = self._voices.of_segment(source, now_unix_ns)
        except InvalidRecordError:
            count(self._state, UNDECODABLE)
            return None
        return self._of_this_run(voice)

    def metrics(self, frame: Frame) -> list[Said]:
        """Return what a frame of metrics says, all of it.

        Raises:
            google.protobuf.message.DecodeError: It cannot be decoded, in whole or in part.
        """
        if not frame.whole:
            writer = self.of_segment(frame.source, frame.now_unix_ns)
            if writer is None:
                return []
            pieces, others = writer.decoder.slow(frame.payload)
            return [Said(writer, [pieces], [*others])]
        parts = resource_parts(frame.payload)
        if parts is not None:
            voices = [(self._of_bytes(frame, resource), scopes) for resource, scopes in parts]
            return [_said(voice, scopes) for voice, scopes in voices if voice is not None]
        found: list[Said] = []
        for message in ExportMetricsServiceRequest.FromString(frame.payload).resource_metrics:
            voice = self._of_resource(frame, message.resource)
            if voice is not None:
                found.append(_said(voice, [scope.SerializeToString() for scope in message.scope_metrics]))
        return found

    def spans(self, frame: Frame) -> Iterator[tuple[Voice, Iterable[ScopeSpans]]]:
        """Yield the spans of a frame of traces, voice by voice: each is looked up when those before it were taken.

        Raises:
            google.protobuf.message.DecodeError: It cannot be decoded; nothing was yielded.
        """
        return self._heard(frame, _spans_by_resource, ScopeSpans.FromString)

    def logs(self, frame: Frame) -> Iterator[tuple[Voice, Iterable[ScopeLogs]]]:
        """Yield the events of a frame of logs, as `spans` does.

        Raises:
            google.protobuf.message.DecodeError: It cannot be decoded; nothing was yielded.
        """
        return self._heard(frame, _logs_by_resource, ScopeLogs.FromString)

    def _heard(
        self, frame: Frame, by_resource: Callable[[bytes], _ByResource[_T]], alone: Callable[[bytes], _T]
    ) -> Iterator[tuple[Voice, Iterable[_T]]]:
        if frame.whole:
            for resource, scopes in by_resource(frame.payload):
                voice = self._of_resource(frame, resource)
                if voice is not None:
                    yield voice, scopes
        elif (voice := self.of_segment(frame.source, frame.now_unix_ns)) is not None:
            yield voice, (alone(frame.payload),)

    def _of_bytes(self, frame: Frame, resource: bytes) -> Voice | None:
        return self._of_this_run(self._voices.of_resource_bytes(frame.source, resource, frame.now_unix_ns))

    def _of_resource(self, frame: Frame, resource: Resource) -> Voice | None:
        return self._of_this_run(self._voices.of_resource(frame.source, resource, frame.now_unix_ns))

    def _of_this_run(self, voice: Voice | None) -> Voice | None:
        if voice is None:
            count(self._state, OTHER_RUN)
        return voice


def _spans_by_resource(request: bytes) -> _ByResource[ScopeSpans]:
    found = ExportTraceServiceRequest.FromString(request).resource_spans
    return [(message.resource, message.scope_spans) for message in found]


def _logs_by_resource(request: bytes) -> _ByResource[ScopeLogs]:
    found = ExportLogsServiceRequest.FromString(request).resource_logs
    return [(message.resource, message.scope_logs) for message in found]


def _said(voice: Voice, scopes: Sequence[bytes]) -> Said:
    """Part the metrics of one resource into rows of ours, by their learned shape where it is known, and the rest."""
    said = Said(voice, [], [])
    for scope in scopes:
        if voice.speaker.foreign:
            said.others += ScopeMetrics.FromString(scope).metrics
            continue
        fast = voice.decoder.fast(scope)
        if fast is not None:
            said.rows.append(FastRow(*fast, scope))
            continue
        pieces, others = voice.decoder.slow(scope)
        said.rows.append(pieces)
        said.others += others
    return said
