"""Frames of segments -> records: (state, frame or tick, now) -> (changes of state, records). Pure, one thread.

One `Translator` a run. Facts that change with every row are kept in Python objects; `Translator.flush` writes them to
the state and must be called before the state is committed together with the records. A translator made anew from a
committed state goes on exactly where the last one stood.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, cast

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import ScopeLogs
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric, ScopeMetrics
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans

from otel_bridge.errors import InvalidRecordError
from otel_bridge.records import Record, Row, Status
from otel_bridge.translation.events import Events
from otel_bridge.translation.hearing import Hearing
from otel_bridge.translation.keys import Axes
from otel_bridge.translation.life import Life
from otel_bridge.translation.options import Options, OtherTraces, counted
from otel_bridge.translation.own_rows import Learned, Piece
from otel_bridge.translation.points import Found, Points
from otel_bridge.translation.process import Process
from otel_bridge.translation.requests import resource_parts
from otel_bridge.translation.rollouts import Rollouts
from otel_bridge.translation.rows import Rows
from otel_bridge.translation.run_facts import RunFacts
from otel_bridge.translation.seen import Seen
from otel_bridge.translation.starts import Starts
from otel_bridge.translation.state import State, count
from otel_bridge.translation.template import Read
from otel_bridge.translation.voices import PROCESS_KINDS, Source, Voice, Voices

__all__ = ["Options", "Source", "Translator", "Waiting"]

UNDECODABLE: Final = "undecodable"
OTHER_RUN: Final = "other_run"
_METRICS, _TRACES, _LOGS = 1, 2, 3  # as the journal numbers the signals of its frames
_REDELIVERED: Final = "redelivered"
_MISSING: Final = "missing"


@dataclass(frozen=True, slots=True)
class Waiting:
    """What waits: rows for their pieces or their order, traces for spans, rollouts for their step."""

    rows: int
    traces: int
    rollouts: int


@dataclass(frozen=True, slots=True)
class _Frame:
    source: Source
    payload: bytes
    whole: bool
    append_unix_ns: int
    now_unix_ns: int

    @property
    def held(self) -> bool:
        """Rows before those in the frame may still come."""
        return self.source.kind == "receiver"


class _Fast(NamedTuple):
    """A row read by its learned shape, and the bytes it was read from."""

    learned: Learned
    read: Read
    scope: bytes


@dataclass(slots=True)
class _Said:
    """What one resource brought: rows of ours, scope by scope, and all other metrics."""

    voice: Voice
    rows: list[_Fast | Sequence[Piece]]
    others: list[Metric]


class Translator:
    """Translates everything of one run.

    Args:
        state: Where everything is kept; this object reads it here, and relies on being its only writer.
        options: Waiting times, bounds, selection.
        others: Asked what becomes of a trace that is no rollout.
        opened_unix_ns: Since when it listens; what waits for producers elsewhere does not age before. 0: all along.
    """

    def __init__(
        self,
        state: State,
        options: Options,
        *,
        others: Callable[[], OtherTraces] = counted,
        opened_unix_ns: int = 0,
    ) -> None:
        self._state = state
        self._hearing = Hearing(opened_unix_ns, options.tail_wait_ns)
        self._life = Life(state, options, self._hearing)
        self._voices = Voices(RunFacts(state, options.run_id), self._life)
        self._axes = Axes(state, options.max_keys, self._life.processes)
        self._rows = Rows(state, options, self._axes, self._life.processes, self._hearing)
        self._seen = Seen(state, options.seen_limit)
        self._points = Points(state, self._axes, self._seen, options.max_keys)
        self._rollouts = Rollouts(state, options, self._axes.steps, others=others, attempt_of=self._axes.current)
        self._events = Events(state, self._life, self._seen, self._rollouts)
        self._starts = Starts(self._axes, self._events)
        self._redelivered_before = _number(state, _REDELIVERED)

    # --- what the reader calls ----------------------------------------------------------------------------------------
    def opened(self, source: Source, now_unix_ns: int) -> list[Record]:
        """Take the header of a segment: its process is open from here on."""
        if source.kind in PROCESS_KINDS:
            voice = self._of_segment(source, now_unix_ns)
            if voice is not None:
                self._life.heard(voice.process, now_unix_ns)
        return []

    def gone(self, instances: Iterable[str]) -> None:
        """Take these processes for dead and wholly read: whoever comes after them goes on from them."""
        for instance in instances:
            if instance in self._life.processes:
                self._life.processes[instance].gone = True

    def frame(  # noqa: PLR0917  # called for every row: keywords would cost
        self, source: Source, signal: int, payload: bytes, whole: bool, append_unix_ns: int, now_unix_ns: int
    ) -> list[Record]:
        """Take one frame.

        Args:
            source: The segment it stands in; one object for one segment, so that it is known again at once.
            signal: 0 control, 1 metrics, 2 traces, 3 logs.
            payload: One ``Scope…`` message, or, when *whole*, a whole export request.
            whole: The payload carries its own resources.
            append_unix_ns: When it was appended; stands for a time that a point lacks.
            now_unix_ns: Now, for everything that waits.

        Returns:
            The records that are complete by it. Bytes that cannot be decoded are counted, never an exception.
        """
        if signal == _METRICS and not whole:
            voice = self._voices.known(source)
            found = voice.decoder.fast(payload) if voice is not None else None
            if voice is not None and found is not None and self._rows.expected(voice.process, found[1][2]):
                process = voice.process
                process.seen_ns = now_unix_ns
                record = self._rows.next(process, *found)
                if process.status is not None or self._life.ended:
                    self._life.row(process, now_unix_ns)
                return self._told([record]) if self._axes.restarted else [record]
        records = self._slow(signal, _Frame(source, payload, whole, append_unix_ns, now_unix_ns))
        return self._told(records + self._end_if_due(now_unix_ns))

    def tick(self, now_unix_ns: int) -> list[Record]:
        """Let time pass: rows, traces, steps, silence, the end of the run."""
        records: list[Record] = [*self._rows.tick(now_unix_ns), *self._rollouts.tick(now_unix_ns)]
        if records and self._life.ended:
            self._life.more(now_unix_ns)
        self._life.silence(now_unix_ns)
        for process in self._life.excess(now_unix_ns):
            records += self._forget(process)
        return self._told(records + self._end_if_due(now_unix_ns))

    def close(self, now_unix_ns: int, status: Status | None = None) -> list[Record]:
        """Nothing more will come: release all that waits; remote processes end, and the run, if none is open then.

        Args:
            now_unix_ns: Now.
            status: A person's word on how those ended that did not say it themselves; ``None``: as it looks.
        """
        records = self._let_go(now_unix_ns)
        self._life.close(now_unix_ns, status)
        return self._told(records + self._end_if_due(now_unix_ns, closing=True))

    def let_go(self, now_unix_ns: int) -> list[Record]:
        """Release all that waits; who speaks may go on later, to us or to the next one, and the run with them."""
        return self._told(self._let_go(now_unix_ns) + self._end_if_due(now_unix_ns, closing=True))

    def flush(self) -> None:
        """Write all that is kept hot to the state; call it before the state is committed with the records."""
        self._axes.flush()
        self._rows.flush()
        self._points.flush()
        self._seen.flush()
        self._life.flush()
        for key, number in ((_REDELIVERED, self.redelivered()), (_MISSING, self.missing_rows())):
            if number != _number(self._state, key):
                self._state.set(key, number)

    # --- what the report shows ----------------------------------------------------------------------------------------
    def waiting(self) -> Waiting:
        """Return what waits."""
        return Waiting(self._rows.waiting, *self._rollouts.waiting())

    def missing_rows(self) -> int:
        """Return how many rows are known to be missing: gaps in ``rl.seq``."""
        return self._life.missing_rows()

    def redelivered(self) -> int:
        """Return how many rows, parts of rows and events came again and were passed over."""
        return self._redelivered_before + self._rows.redelivered + self._events.redelivered

    def status(self) -> str:
        """Return ``running``, or, once the run has ended, its status."""
        return self._life.status().value if self._life.ended else "running"

    # --- one frame ----------------------------------------------------------------------------------------------------
    def _slow(self, signal: int, frame: _Frame) -> list[Record]:
        try:
            if signal == _METRICS:
                return self._metrics(frame)
            if signal == _TRACES:
                return self._traces(frame)
            if signal == _LOGS:
                return self._logs(frame)
        except DecodeError:
            count(self._state, UNDECODABLE)
        return []

    def _metrics(self, frame: _Frame) -> list[Record]:
        heard = self._heard(frame)  # all of it, before anything has an effect: it may turn out to be undecodable
        if frame.held:
            self._hearing.rows(frame.now_unix_ns)
        records: list[Record] = []
        for said in heard:
            process = said.voice.process
            if said.voice.speaker.system:
                continue  # no word of the process itself
            self._life.heard(process, frame.now_unix_ns)
            for row in said.rows:
                records += self._row(frame, said.voice, row)
        # Measured while a process ended: that must not open it, or the run, again.
        counted = [said for said in heard if not said.voice.speaker.system or said.voice.process.status is None]
        foreign: list[Found] = [(said.voice.speaker, said.voice.process, said.others) for said in counted]
        points = self._points.rows(foreign, frame.append_unix_ns)
        for speaker, process, _ in foreign if points else ():
            if not speaker.system:
                self._life.data(process, frame.now_unix_ns)
        return [*records, *points]

    def _row(self, frame: _Frame, voice: Voice, row: _Fast | Sequence[Piece]) -> list[Record]:
        """Take what one scope holds of rows."""
        process, pieces = voice.process, row
        if isinstance(row, _Fast):
            if self._rows.expected(process, row.read[2]):
                record = self._rows.next(process, row.learned, row.read)
                self._life.row(process, frame.now_unix_ns)
                return [record]
            pieces, _ = voice.decoder.slow(row.scope)
        records: list[Record] = []
        for piece in cast("Sequence[Piece]", pieces):
            known = self._rows.redelivered
            records += self._rows.take(process, piece, frame.now_unix_ns, hold=frame.held)
            if self._rows.redelivered == known:
                self._life.row(process, frame.now_unix_ns)
        return records

    def _heard(self, frame: _Frame) -> list[_Said]:
        """Decode a frame of metrics."""
        if not frame.whole:
            writer = self._of_segment(frame.source, frame.now_unix_ns)
            if writer is None:
                return []
            pieces, others = writer.decoder.slow(frame.payload)
            return [_Said(writer, [pieces], [*others])]
        parts = resource_parts(frame.payload)
        if parts is not None:
            voices = [(self._of_bytes(frame, resource), scopes) for resource, scopes in parts]
            return [_said(voice, scopes) for voice, scopes in voices if voice is not None]
        found: list[_Said] = []
        for message in ExportMetricsServiceRequest.FromString(frame.payload).resource_metrics:
            voice = self._of_resource(frame, message.resource)
            if voice is not None:
                found.append(_said(voice, [scope.SerializeToString() for scope in message.scope_metrics]))
        return found

    def _of_bytes(self, frame: _Frame, resource: bytes) -> Voice | None:
        voice = self._voices.of_resource_bytes(frame.source, resource, frame.now_unix_ns)
        if voice is None:
            count(self._state, OTHER_RUN)
        return voice

    def _traces(self, frame: _Frame) -> list[Record]:
        records: list[Record] = []
        for voice, scopes in self._spans(frame):
            self._life.heard(voice.process, frame.now_unix_ns)
            records += self._starts.of_spans(voice, scopes, frame.now_unix_ns)
            for scope in scopes:
                self._life.data(voice.process, frame.now_unix_ns)
                who = voice.speaker.attributes, voice.process.instance
                records += self._rollouts.spans(*who, scope, frame.now_unix_ns)
        return records

    def _spans(self, frame: _Frame) -> Iterator[tuple[Voice, Iterable[ScopeSpans]]]:
        if frame.whole:
            for message in ExportTraceServiceRequest.FromString(frame.payload).resource_spans:
                voice = self._of_resource(frame, message.resource)
                if voice is not None:
                    yield voice, message.scope_spans
        elif (voice := self._of_segment(frame.source, frame.now_unix_ns)) is not None:
            yield voice, (ScopeSpans.FromString(frame.payload),)

    def _logs(self, frame: _Frame) -> list[Record]:
        records: list[Record] = []
        for voice, scopes in self._log_scopes(frame):
            if frame.source.kind != "bridge":  # what a bridge says of a dead process is no life sign
                self._life.heard(voice.process, frame.now_unix_ns)
                records += self._starts.of_logs(voice, scopes, frame.now_unix_ns)
            for scope in scopes:
                for record in scope.log_records:
                    records += self._events.take(voice.speaker, voice.process, record, frame.now_unix_ns)
        return records

    def _log_scopes(self, frame: _Frame) -> Iterator[tuple[Voice, Iterable[ScopeLogs]]]:
        if frame.whole:
            for message in ExportLogsServiceRequest.FromString(frame.payload).resource_logs:
                voice = self._of_resource(frame, message.resource)
                if voice is not None:
                    yield voice, message.scope_logs
        elif (voice := self._of_segment(frame.source, frame.now_unix_ns)) is not None:
            yield voice, (ScopeLogs.FromString(frame.payload),)

    def _of_segment(self, source: Source, now_unix_ns: int) -> Voice | None:
        try:
            voice = self._voices.of_segment(source, now_unix_ns)
        except InvalidRecordError:
            count(self._state, UNDECODABLE)
            return None
        if voice is None:
            count(self._state, OTHER_RUN)
        return voice

    def _of_resource(self, frame: _Frame, resource: Resource) -> Voice | None:
        voice = self._voices.of_resource(frame.source, resource, frame.now_unix_ns)
        if voice is None:
            count(self._state, OTHER_RUN)
        return voice

    def _told(self, records: list[Record]) -> list[Record]:
        """Put before the first row of a role's further attempt the config that names it."""
        if not self._axes.restarted:
            return records
        told: list[Record] = []
        for record in records:
            if isinstance(record, Row) and record.axis in self._axes.restarted:
                del self._axes.restarted[record.axis]
                told += self._events.restarted(record.role, record.attempt, record.time_unix_ns)
            told.append(record)
        self._axes.restarted.clear()
        return told

    # --- the end ------------------------------------------------------------------------------------------------------
    def _let_go(self, now_unix_ns: int) -> list[Record]:
        records: list[Record] = [*self._rows.close(), *self._rollouts.close(now_unix_ns)]
        if records and self._life.ended:
            self._life.more(now_unix_ns)
        return records

    def _end_if_due(self, now_unix_ns: int, *, closing: bool = False) -> list[Record]:
        if not self._life.due(now_unix_ns, closing=closing):
            return []
        return [*self._rows.close(), *self._rollouts.close(now_unix_ns), self._life.run_end()]

    def _forget(self, process: Process) -> list[Record]:
        rows = self._rows.forget(process)
        self._life.forget(process)
        self._voices.clear()
        return [*rows]


def _said(voice: Voice, scopes: Sequence[bytes]) -> _Said:
    """Part the metrics of one resource into rows of ours, by their learned shape where it is known, and the rest."""
    said = _Said(voice, [], [])
    for scope in scopes:
        if voice.speaker.foreign:
            said.others += ScopeMetrics.FromString(scope).metrics
            continue
        fast = voice.decoder.fast(scope)
        if fast is not None:
            said.rows.append(_Fast(*fast, scope))
            continue
        pieces, others = voice.decoder.slow(scope)
        said.rows.append(pieces)
        said.others += others
    return said


def _number(state: State, key: str) -> int:
    value = state.get(key)
    return value if isinstance(value, int) else 0
