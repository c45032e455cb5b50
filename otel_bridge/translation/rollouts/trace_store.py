"""Store of the traces that wait for spans or for their step: spans in the state as bytes, an index in memory.

``trace/meta/<trace id>`` holds the facts of a trace, ``trace/spans/<trace id>/<n>`` its spans as
received, with their producer. ``trace/done/…`` and ``trace/other/…`` remember finished traces, so
that a redelivery is detected.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any

import orjson
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span

from otel_bridge import semconv
from otel_bridge.translation.decode import spans as reading
from otel_bridge.translation.decode.attributes import as_int, value_of
from otel_bridge.translation.decode.content_events import is_content_span
from otel_bridge.translation.decode.resources import SpanOrigin
from otel_bridge.translation.packing import packed, unpacked
from otel_bridge.translation.rollouts.assembly import ReceivedTrace, SamplingFacts
from otel_bridge.translation.state import TranslationState, named

MAX_SPANS = 20_000
"""Most spans of one trace; a larger trace is not a rollout but an endless span source."""
FURTHER = "+"
"""Suffix of a trace id, for spans that arrive after its first rollout was complete and may belong
to others."""
_META = "trace/meta/"
_SPANS = "trace/spans/"
_KNOWN_SPANS = 256
"""Most span ids that are remembered of a finished trace; a redelivered span of a larger trace
counts as late."""
_KNOWN_BYTES = 4
"""Bytes of a span id that distinguish the spans of one trace well enough."""


@dataclass(slots=True)
class PendingTrace:
    """Holds the state of a waiting trace.

    Attributes:
        id: 32 hex digits.
        first_ns: Arrival time of the first span.
        last_ns: Arrival time of the last span.
        span_ids: Ids of the received spans.
        chunks: Number of values of the state that hold its spans.
        size: Size of these values in bytes.
        root_ns: Arrival time of the root.
        expected: Number of spans that the root announces.
        rollout: Whether the trace is known to be a rollout.
        facts: Facts for sampling, set when the trace is complete and waits for its step.
        complete_ns: Time at which the trace began to wait for its step.
        marks: Ids in `span_ids` of spans marked as rollouts.
        marked_ns: Arrival time of the first marked span.
        parts: Ids of rollouts that were split from the trace.
        sender: Process that sent the root, or the latest spans while the root is missing.
        step: Step that the root names.
        contents: Number of `span_ids` that stand for log records with messages (`content_events`).
        bare: Whether a model was called and no message has arrived yet; log records may bring
            messages.
        native: Whether a process of the run itself sent any of its spans.
    """

    id: str
    first_ns: int
    last_ns: int
    span_ids: set[bytes] = field(default_factory=set[bytes])
    chunks: int = 0
    size: int = 0
    root_ns: int | None = None
    expected: int | None = None
    rollout: bool = False
    facts: SamplingFacts | None = None
    marks: set[bytes] = field(default_factory=set[bytes])
    marked_ns: int | None = None
    parts: list[str] = field(default_factory=list[str])
    sender: str = ""
    step: int | None = None
    contents: int = 0
    bare: bool = False
    complete_ns: int | None = None
    native: bool = False

    def split_off(
        self,
        trace_id: str,
        span_ids: Iterable[bytes],
        beginning: bytes,
        now_unix_ns: int,
        *,
        further_ids: tuple[str, ...],
    ) -> PendingTrace:
        """Return one rollout of this trace, which holds several rollouts, as a trace of its own.

        Args:
            trace_id: Id of the rollout.
            span_ids: Ids of its spans.
            beginning: Id of the span that begins the rollout.
            now_unix_ns: Now.
            further_ids: Ids of the other rollouts, stored in the rollout that keeps the trace's id.
        """
        keeps_id = trace_id == self.id
        return PendingTrace(
            trace_id,
            self.first_ns,
            self.last_ns,
            self.span_ids if keeps_id else {*span_ids},
            root_ns=now_unix_ns,
            rollout=True,
            marks={beginning},
            parts=[*further_ids] if keeps_id else [],
            sender=self.sender,
            native=self.native,
        )

    @property
    def begins_rollout(self) -> bool:
        """Return whether the trace is a rollout of this run: a native process sent a part, or its root has arrived."""
        return (
            self.native
            or (self.rollout and self.root_ns is not None)
            or self.facts is not None
        )

    def add_parts(self, trace_ids: Iterable[str]) -> None:
        """Note further rollouts that were split from the trace."""
        self.parts.extend(trace_ids)

    def sent_by(self, sender: str, *, native: bool) -> None:
        """Note the process that sent the received spans, unless the sender of the root is known."""
        self.native = self.native or native
        # Spans of a rollout may come from several processes; the root's is the worker.
        if self.root_ns is None:
            self.sender = sender

    def wait(self, facts: SamplingFacts, now_unix_ns: int) -> None:
        """Note that the trace is complete and waits for its step."""
        self.facts = facts
        self.complete_ns = now_unix_ns

    def revise(self, facts: SamplingFacts) -> None:
        """Replace the facts for sampling."""
        self.facts = facts

    @property
    def base(self) -> str:
        """Trace id of its spans, as received or as assigned by the split."""
        return self.id.removesuffix(FURTHER)

    @property
    def further(self) -> bool:
        """Return whether the spans arrived after the first rollout of their trace was complete."""
        return self.id.endswith(FURTHER)

    @property
    def whole(self) -> bool:
        """Return whether all spans that the root announced are present."""
        return (
            self.root_ns is not None
            and self.expected is not None
            and len(self.span_ids) - self.contents >= self.expected
        )

    @property
    def complete_rollout(self) -> bool:
        """Return whether the trace is a rollout with all its spans, and does not wait for its step yet."""
        return self.whole and self.rollout and self.facts is None

    def add(self, spans: Sequence[Span], now_unix_ns: int) -> None:
        """Update the state of the trace from new spans."""
        self.last_ns = max(self.last_ns, now_unix_ns)
        for span in spans:
            self.span_ids.add(span.span_id)
            if is_content_span(span):
                self.contents += 1
                self.bare = False
            else:
                self._add_span(span, now_unix_ns)

    def _add_span(self, span: Span, now_unix_ns: int) -> None:
        """Update the state from a span that does not stand for a log record."""
        self.bare = self.bare or (not self.contents and reading.is_bare(span))
        self.rollout = self.rollout or reading.is_rollout(span)
        is_root = reading.is_root(span)
        if reading.is_marked(span):
            self.marks.add(span.span_id)
            self.marked_ns = self.marked_ns or now_unix_ns
            # Behind the first rollout, each marked span begins one of its own.
            is_root = is_root or self.further
        if is_root or span.name == semconv.ROLLOUT_SPAN:
            self._add_root(span, now_unix_ns, is_root=is_root)

    def _add_root(self, span: Span, now_unix_ns: int, *, is_root: bool) -> None:
        """Note the facts of a root. A rollout's span below one of the application is its root if it announces spans."""
        expected = _integer(span, semconv.SPAN_COUNT)
        # Other producers announce nothing: their rollouts are complete by time alone.
        if expected is not None and expected > 0:
            self.expected = expected
        if self.step is None:
            self.step = _integer(span, semconv.STEP, *semconv.THIRD_PARTY_STEPS)
        if (is_root or expected is not None) and self.root_ns is None:
            self.root_ns = now_unix_ns


def _integer(span: Span, *keys: str) -> int | None:
    """Return the integer attribute of the first of *keys* that *span* has."""
    integers = {
        pair.key: as_int(value_of(pair.value))
        for pair in span.attributes
        if pair.key in keys
    }
    return next((integers[key] for key in keys if integers.get(key) is not None), None)


class TraceStore:
    """Stores every waiting trace, by id, oldest first."""

    def __init__(self, state: TranslationState) -> None:
        self._state = state
        traces = [
            _open_trace(trace_id, value)
            for trace_id, value in named(state, _META).items()
        ]
        # Oldest first, as the limits release them; the id decides between equal times.
        traces.sort(key=lambda trace: (trace.first_ns, trace.id))
        self.traces = {trace.id: trace for trace in traces}
        self.size = sum(trace.size for trace in traces)

    def keep(
        self, trace: PendingTrace, origin: SpanOrigin, scope_spans: ScopeSpans
    ) -> None:
        """Store more spans of *trace*."""
        header = [
            origin.role,
            origin.run_id,
            origin.is_native,
            dict(origin.facts),
            origin.scope,
        ]
        # JSON has no raw line break, so the first one ends the header.
        chunk = orjson.dumps(header) + b"\n" + scope_spans.SerializeToString()
        # A key for each message, so that earlier spans are not written again.
        self._state.set(f"{_SPANS}{trace.id}/{trace.chunks}", chunk)
        trace.chunks += 1
        trace.size += len(chunk)
        self.size += len(chunk)
        self.traces[trace.id] = trace
        self.note(trace)

    def note(self, trace: PendingTrace) -> None:
        """Store the state of *trace*."""
        facts = trace.facts
        self._state.set(
            f"{_META}{trace.id}",
            [
                trace.first_ns,
                trace.last_ns,
                b"".join(sorted(trace.span_ids)).hex(),
                trace.chunks,
                trace.size,
                trace.root_ns,
                trace.expected,
                trace.rollout,
                packed(facts),
                b"".join(sorted(trace.marks)).hex(),
                trace.marked_ns,
                trace.parts,
                trace.sender,
                trace.step,
                trace.contents,
                trace.bare,
                trace.complete_ns,
                trace.native,
            ],
        )

    def read(self, trace: PendingTrace) -> ReceivedTrace:
        """Return *trace* with its spans, in order of arrival."""
        spans: list[tuple[SpanOrigin, Span]] = []
        for number in range(trace.chunks):
            chunk = self._state.get(f"{_SPANS}{trace.id}/{number}")
            if isinstance(chunk, bytes):
                header, _, payload = chunk.partition(b"\n")
                origin = SpanOrigin(*orjson.loads(header))
                spans.extend(
                    (origin, span) for span in ScopeSpans.FromString(payload).spans
                )
        return ReceivedTrace(trace.base, spans)

    def forget(self, trace: PendingTrace) -> None:
        """Remove *trace* from the store."""
        if self.traces.pop(trace.id, None) is None:
            return
        self.size -= trace.size
        for number in range(trace.chunks):
            self._state.delete(f"{_SPANS}{trace.id}/{number}")
        self._state.delete(f"{_META}{trace.id}")


@dataclass(frozen=True, slots=True)
class CompletedTrace:
    """Holds what is remembered of a finished trace.

    Attributes:
        emitted: Whether the rollout was emitted; else it was sampled out.
        key: Key under which trackers show the rollout.
        span_ids: Last bytes of the id of each span; ``None`` when there were too many to remember.
        marks: In that case, last bytes of the ids of spans marked as rollouts.
    """

    emitted: bool
    key: str
    role: str | None
    step: int | None
    span_ids: frozenset[bytes] | None
    marks: frozenset[bytes] = frozenset()

    @property
    def remembered_ids(self) -> frozenset[bytes]:
        """Return every remembered span id."""
        if self.span_ids is None:
            return self.marks
        return self.span_ids


class CompletedTraces:
    """Remembers the last *limit* finished traces, in the state below *prefix*."""

    def __init__(self, state: TranslationState, prefix: str, limit: int) -> None:
        self._state = state
        self._prefix = prefix
        self._limit = limit
        self._ended: dict[str, CompletedTrace] = {}
        self._number = 0
        entries = named(state, prefix)
        # By the number of their end: the state is ordered by trace id.
        for trace_id in sorted(entries, key=lambda trace_id: entries[trace_id][0]):
            self._number, stored = entries[trace_id]
            self._ended[trace_id] = unpacked(CompletedTrace, stored)

    def get(self, trace_id: str) -> CompletedTrace | None:
        """Return the outcome of a trace, ``None`` when the trace is not remembered."""
        return self._ended.get(trace_id)

    def ids(self) -> frozenset[str]:
        """Return the ids of all remembered traces."""
        return frozenset(self._ended)

    def among(self, trace_ids: AbstractSet[str]) -> set[str]:
        """Return those of *trace_ids* that are remembered."""
        return set(trace_ids & self._ended.keys())

    def add(self, trace_id: str, ended: CompletedTrace) -> str | None:
        """Remember a trace; return the id of the trace that is forgotten in exchange."""
        self._number += 1
        self._state.set(f"{self._prefix}{trace_id}", [self._number, packed(ended)])
        self._ended[trace_id] = ended
        if len(self._ended) <= self._limit:
            return None
        oldest = next(iter(self._ended))
        del self._ended[oldest]
        self._state.delete(f"{self._prefix}{oldest}")
        return oldest


def ended_as(
    trace: PendingTrace, key: str, role: str | None, step: int | None, *, emitted: bool
) -> CompletedTrace:
    """Return the remembered form of *trace*."""
    if len(trace.span_ids) <= _KNOWN_SPANS:
        return CompletedTrace(emitted, key, role, step, span_ids=_tails(trace.span_ids))
    # Too many: only those that begin rollouts are remembered, to recognise them again.
    return CompletedTrace(
        emitted, key, role, step, span_ids=None, marks=_tails(trace.marks)
    )


def tail(span_id: bytes) -> bytes:
    """Return the part of a span id that is remembered of a finished trace."""
    return span_id[-_KNOWN_BYTES:]


def _tails(span_ids: set[bytes]) -> frozenset[bytes]:
    return frozenset(map(tail, span_ids))


def unknown(ended: CompletedTrace, spans: Sequence[Span]) -> list[Span]:
    """Return those of *spans* that were not part of a finished trace, each once."""
    remembered = ended.span_ids or frozenset()
    # Also within the message, since a sender may repeat a span in it.
    by_tail = {tail(span.span_id): span for span in spans}
    return [span for span_tail, span in by_tail.items() if span_tail not in remembered]


def completed_by(ended: CompletedTrace, spans: Sequence[Span]) -> CompletedTrace:
    """Return *ended* with *spans* among the spans that are remembered of it, as far as there is room."""
    if ended.span_ids is None or len(ended.span_ids) + len(spans) > _KNOWN_SPANS:
        return ended
    return replace(
        ended, span_ids=ended.span_ids | _tails({span.span_id for span in spans})
    )


def _span_ids(text: str) -> set[bytes]:
    """Return the ids in *text*, hex digits one behind the other."""
    raw = bytes.fromhex(text)
    return {raw[start : start + 8] for start in range(0, len(raw), 8)}


def _open_trace(trace_id: str, value: list[Any]) -> PendingTrace:
    """Return a trace from its value in the state, which holds the fields of `PendingTrace` in their order."""
    fields = list(value)
    fields[2] = _span_ids(fields[2])
    if fields[8] is not None:
        fields[8] = unpacked(SamplingFacts, fields[8])
    fields[9] = _span_ids(fields[9])
    fields[11] = [*fields[11]]  # a value in the state must not be changed in place
    return PendingTrace(trace_id, *fields)
