"""Store of the traces that wait for spans or for their step: spans in the state as bytes, an index in memory.

``trace/meta/<trace id>`` holds the facts of a trace, ``trace/spans/<trace id>/<n>`` its spans as
received, with their producer. ``trace/done/…`` and ``trace/other/…`` remember finished traces, so
that a redelivery is detected.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

import orjson
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span

from otel_bridge import semconv
from otel_bridge.translation.decode import spans as reading
from otel_bridge.translation.decode.attributes import as_int, value_of
from otel_bridge.translation.decode.content_events import is_content_span
from otel_bridge.translation.decode.resources import SpanOrigin
from otel_bridge.translation.packing import NOT_STORED, packed, unpacked, unpacked_below
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
        span_ids: Ids of the received spans; not in the state, which has the spans.
        chunks: Number of values of the state that hold its spans.
        size: Size of these values in bytes.
        root_ns: Arrival time of the root.
        expected: Number of spans that the root announces.
        rollout: Whether the trace is known to be a rollout.
        facts: Facts for sampling, set when the trace is complete and waits for its step.
        complete_ns: Time at which the trace began to wait for its step.
        marks: Ids in `span_ids` of spans marked as rollouts.
        marked_ns: Arrival time of the first marked span.
        received_in: Id of the trace as received, when this rollout was split from it and has an id of
            its own.
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
    span_ids: set[bytes] = field(default_factory=set[bytes], metadata=NOT_STORED)
    chunks: int = 0
    size: int = 0
    root_ns: int | None = None
    expected: int | None = None
    rollout: bool = False
    facts: SamplingFacts | None = None
    marks: set[bytes] = field(default_factory=set[bytes])
    marked_ns: int | None = None
    received_in: str = ""
    sender: str = ""
    step: int | None = None
    contents: int = 0
    bare: bool = False
    complete_ns: int | None = None
    native: bool = False

    def split_off(self, trace_id: str) -> PendingTrace:
        """Return a trace without spans for one rollout of this trace, which holds several."""
        return PendingTrace(
            trace_id,
            self.first_ns,
            self.last_ns,
            sender=self.sender,
            native=self.native,
            received_in=self.base if trace_id != self.base else "",
        )

    @property
    def begins_rollout(self) -> bool:
        """Return whether the trace is a rollout of this run: a native process sent a part, or its root has arrived.

        Before that it may be a stray: spans of an inference server that belong to a rollout of
        another run.
        """
        return (
            self.native
            or (self.rollout and self.root_ns is not None)
            or self.facts is not None
        )

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
        """Return whether all spans that the root announced are present.

        Always ``False`` without a root or an announcement, as of third-party producers: time
        completes their rollouts. Log records with messages do not count, since no root announces
        them.
        """
        return (
            self.root_ns is not None
            and self.expected is not None
            and len(self.span_ids) - self.contents >= self.expected
        )

    @property
    def complete_rollout(self) -> bool:
        """Return whether the trace is a rollout with all its spans, and does not wait for its step yet."""
        return self.whole and self.rollout and self.facts is None

    def restore(self, span_ids: Iterable[bytes]) -> None:
        """Add the ids of spans that were stored before a restart.

        All other facts of them are stored.
        """
        self.span_ids.update(span_ids)

    def fresh(self, received: Iterable[Span]) -> tuple[list[Span], int]:
        """Return the spans that the trace lacks and has room for, each once, and the number of those without room.

        Of spans with one id the first that was received wins, as in `assembly.first_by_id`.

        The caller counts those without room: an endless source of spans must not grow without
        bound.
        """
        by_id: dict[bytes, Span] = {}
        for span in received:
            if span.span_id not in self.span_ids:
                by_id.setdefault(span.span_id, span)
        fresh = list(by_id.values())
        # Not below 0 where the root came beyond the limit.
        room = max(MAX_SPANS - len(self.span_ids), 0)
        if len(fresh) > room and self.root_ns is None:
            # The root first, and beyond the limit too: without it the others are useless.
            fresh.sort(key=lambda span: not reading.is_root(span))
            room = max(room, reading.is_root(fresh[0]))
        return fresh[:room], max(len(fresh) - room, 0)

    def add(self, spans: Iterable[Span], now_unix_ns: int) -> None:
        """Update the state of the trace from new spans, those of `fresh`; never raises.

        A span that is given twice would count twice as a log record (`contents`).
        """
        self.last_ns = max(self.last_ns, now_unix_ns)
        for span in spans:
            self.span_ids.add(span.span_id)
            if is_content_span(span):
                self.contents += 1
                self.bare = False
            else:
                self._add_span(span, now_unix_ns)

    def _add_span(self, span: Span, now_unix_ns: int) -> None:
        """Update the state from a span that does not stand for a log record.

        `bare` ends with the first message, in whatever order log records and spans arrive.
        """
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
        """Note the facts of a root. A rollout's span below one of the application is its root if it announces spans.

        An announced number of 0 or less is ignored: the rollout is then complete by time. The first
        step and the first root stay, so that a redelivery changes neither.
        """
        expected = _integer(span, semconv.SPAN_COUNT)
        # Other producers announce nothing: their rollouts are complete by time alone.
        if expected is not None and expected > 0:
            self.expected = expected
        if self.step is None:
            self.step = _integer(span, semconv.STEP, *semconv.THIRD_PARTY_STEPS)
        if (is_root or expected is not None) and self.root_ns is None:
            self.root_ns = now_unix_ns


def _integer(span: Span, *keys: str) -> int | None:
    """Return the integer attribute of the first of *keys* that *span* has.

    ``None`` when none of them is a whole number, which is ignored here; the keys are in order of
    precedence.
    """
    for key in keys:
        for pair in span.attributes:
            integer = None
            if pair.key == key:
                integer = as_int(value_of(pair.value))
            if integer is not None:
                return integer
    return None


class SpanOwners:
    """Indexes the spans of rollouts that have another id than the trace in which they were received.

    In memory only: waiting and completed rollouts add theirs again after a restart.
    """

    def __init__(self) -> None:
        self._rollout_ids: dict[tuple[str, bytes], str] = {}

    def get(self, trace_id: str, span_id: bytes) -> str | None:
        """Return the id of the rollout that holds a span of a trace, ``None`` when no such rollout does."""
        return self._rollout_ids.get((trace_id, tail(span_id)))

    def add(self, received_in: str, rollout_id: str, tails: Iterable[bytes]) -> None:
        """Note spans of a rollout; nothing for one that has the id of its trace."""
        if received_in:
            for span_tail in tails:
                self._rollout_ids[received_in, span_tail] = rollout_id

    def forget(self, received_in: str, tails: Iterable[bytes]) -> None:
        """Forget spans of a rollout."""
        for span_tail in tails:
            self._rollout_ids.pop((received_in, span_tail), None)


class TraceStore:
    """Stores every waiting trace, by id, oldest first.

    Attributes:
        traces: The waiting traces.
        size: Number of bytes that they take in the state.
        owners: Spans of the rollouts that were split from a trace.
    """

    def __init__(self, state: TranslationState) -> None:
        self._state = state
        stored = unpacked_below(PendingTrace, state, _META).values()
        # Oldest first, as the limits release them; the id decides between equal times.
        traces = sorted(stored, key=attrgetter("first_ns", "id"))
        self.traces = {trace.id: trace for trace in traces}
        self.size = sum(trace.size for trace in traces)
        self.owners = SpanOwners()
        for trace in traces:
            # Not stored with the trace: the ids of thousands of spans at each new one.
            trace.restore(span.span_id for _, span in self.read(trace).spans)
            self.owners.add(trace.received_in, trace.id, _tails(trace.span_ids))

    def keep(
        self, trace: PendingTrace, origin: SpanOrigin, spans: Sequence[Span]
    ) -> None:
        """Store more spans of *trace*, which `PendingTrace.add` has noted.

        Each message is a value of its own, so that earlier ones are not written again.
        """
        header = [
            origin.role,
            origin.run_id,
            origin.is_native,
            dict(origin.facts),
            origin.scope,
        ]
        # JSON has no raw line break, so the first one ends the header.
        message = ScopeSpans(spans=spans).SerializeToString()
        chunk = orjson.dumps(header) + b"\n" + message
        self._state.set(f"{_SPANS}{trace.id}/{trace.chunks}", chunk)
        trace.chunks += 1
        trace.size += len(chunk)
        self.size += len(chunk)
        self.traces[trace.id] = trace
        self.owners.add(
            trace.received_in, trace.id, (tail(span.span_id) for span in spans)
        )
        self.note(trace)

    def note(self, trace: PendingTrace) -> None:
        """Store the state of *trace*."""
        self._state.set(f"{_META}{trace.id}", packed(trace))

    def read(self, trace: PendingTrace) -> ReceivedTrace:
        """Return *trace* with its spans, in order of arrival.

        Spans are read from the state, not kept in memory: waiting traces may hold a gigabyte
        (``OTEL_BRIDGE_MAX_OPEN_TRACE_BYTES``). Without any for a trace that was just split off.

        Raises:
            JournalError: The ledger cannot give them; see `TranslationState`.
        """
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
        """Remove *trace* and its spans from the store; a trace that is not stored is ignored."""
        if self.traces.pop(trace.id, None) is None:
            return
        self.size -= trace.size
        self.owners.forget(trace.received_in, _tails(trace.span_ids))
        for number in range(trace.chunks):
            self._state.delete(f"{_SPANS}{trace.id}/{number}")
        self._state.delete(f"{_META}{trace.id}")


@dataclass(frozen=True, slots=True)
class CompletedTrace:
    """Holds what is remembered of a finished trace.

    Attributes:
        emitted: Whether the rollout was emitted; else it was sampled out.
        key: Key under which trackers show the rollout.
        span_ids: Last bytes of the id of each span; when they are too many to remember, of those
            marked as rollouts, so that these are recognised when they come again.
        is_whole: Whether `span_ids` has every span.
        received_in: As in `PendingTrace`.
    """

    emitted: bool
    key: str
    role: str | None
    step: int | None
    span_ids: frozenset[bytes] = frozenset()
    is_whole: bool = True
    received_in: str = ""


class CompletedTraces:
    """Remembers the last *limit* finished traces, in the state below *prefix*.

    Args:
        state: Key space *prefix*.
        prefix: End of the key: the trace id.
        limit: Most traces that are remembered.
        owners: Gets the spans of those that were split from a trace.
    """

    def __init__(
        self, state: TranslationState, prefix: str, limit: int, owners: SpanOwners
    ) -> None:
        self._state = state
        self._owners = owners
        self._prefix = prefix
        self._limit = limit
        self._ended: dict[str, CompletedTrace] = {}
        self._number = 0
        entries = named(state, prefix)
        # By the number of their end: the state is ordered by trace id.
        for trace_id in sorted(entries, key=lambda trace_id: entries[trace_id][0]):
            self._number, stored = entries[trace_id]
            self._remember(trace_id, unpacked(CompletedTrace, stored))

    def get(self, trace_id: str) -> CompletedTrace | None:
        """Return the outcome of a trace, ``None`` when the trace is not remembered."""
        return self._ended.get(trace_id)

    def ids(self) -> frozenset[str]:
        """Return the ids of all remembered traces."""
        return frozenset(self._ended)

    def add(self, trace_id: str, ended: CompletedTrace) -> str | None:
        """Remember a trace; return the id of the trace that is forgotten in exchange.

        ``None`` while there is room. If spans of the forgotten one still arrive, they begin a trace
        anew.
        """
        self._number += 1
        self._state.set(f"{self._prefix}{trace_id}", [self._number, packed(ended)])
        self._remember(trace_id, ended)
        if len(self._ended) <= self._limit:
            return None
        oldest = next(iter(self._ended))
        self.forget(oldest)
        return oldest

    def forget(self, trace_id: str) -> None:
        """Forget a trace that is remembered: spans of it begin a trace anew."""
        forgotten = self._ended.pop(trace_id)
        self._owners.forget(forgotten.received_in, forgotten.span_ids)
        self._state.delete(f"{self._prefix}{trace_id}")

    def _remember(self, trace_id: str, ended: CompletedTrace) -> None:
        self._ended[trace_id] = ended
        self._owners.add(ended.received_in, trace_id, ended.span_ids)


def ended_as(
    trace: PendingTrace, key: str, role: str | None, step: int | None, *, emitted: bool
) -> CompletedTrace:
    """Return what is remembered of *trace*, which is decided on."""
    is_whole = len(trace.span_ids) <= _KNOWN_SPANS
    span_ids = trace.span_ids if is_whole else trace.marks
    return CompletedTrace(
        emitted, key, role, step, _tails(span_ids), is_whole, trace.received_in
    )


def tail(span_id: bytes) -> bytes:
    """Return the part of a span id that is remembered of a finished trace."""
    return span_id[-_KNOWN_BYTES:]


def _tails(span_ids: set[bytes]) -> frozenset[bytes]:
    return frozenset(map(tail, span_ids))


def unknown(ended: CompletedTrace, spans: Sequence[Span]) -> list[Span]:
    """Return those of *spans* that were not part of a finished trace, each once.

    Of a trace whose spans were too many to remember all but the marked ones are returned, also
    those that are redelivered; the caller counts them.
    """
    # Also within the message, since a sender may repeat a span in it.
    by_tail = {tail(span.span_id): span for span in spans}
    return [
        span for span_tail, span in by_tail.items() if span_tail not in ended.span_ids
    ]


def completed_by(ended: CompletedTrace, spans: Sequence[Span]) -> CompletedTrace:
    """Return *ended* with *spans* among the spans that are remembered of it, as far as there is room.

    Unchanged beyond `_KNOWN_SPANS`: a late span that is redelivered is then emitted once more.
    """
    if not ended.is_whole or len(ended.span_ids) + len(spans) > _KNOWN_SPANS:
        return ended
    return replace(
        ended, span_ids=ended.span_ids | _tails({span.span_id for span in spans})
    )
