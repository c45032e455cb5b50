"""Trace with several rollouts -> one trace for each rollout, with an id of its own.

A producer whose spans are all below one span of the application has one trace id for many rollouts.
A span that is marked as a rollout begins one, unless a span above it is marked. The earliest
rollout keeps the trace's id and every span without a rollout. The ids of other rollouts are made of
the trace's id and the span's id. Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span

from otel_bridge import semconv
from otel_bridge.records import Evaluation, axis_of
from otel_bridge.translation.decode import spans as reading
from otel_bridge.translation.decode.resources import SpanOrigin
from otel_bridge.translation.rollouts.assembly import (
    EvaluationScore,
    ReceivedTrace,
    SamplingFacts,
    first_by_id,
)
from otel_bridge.translation.rollouts.evaluations import Evaluations, ReceivedEvaluation
from otel_bridge.translation.rollouts.trace_store import (
    FURTHER,
    MAX_SPANS,
    CompletedTrace,
    CompletedTraces,
    PendingTrace,
    TraceStore,
    tail,
    unknown,
)
from otel_bridge.translation.state import TranslationState, count

_STEP_NAMES = (semconv.STEP, *semconv.THIRD_PARTY_STEPS)
_INHERITED = (*_STEP_NAMES, semconv.SPLIT, semconv.GROUP_ID)
"""Attributes that a rollout without them inherits from the nearest span above that has them."""


def sub_trace_id(trace_id: str, span_id: bytes) -> str:
    """Return the id of the rollout that *span_id* begins, unless the rollout is the trace's first."""
    return hashlib.md5(
        f"{trace_id}\0{span_id.hex()}".encode(), usedforsecurity=False
    ).hexdigest()


@dataclass(frozen=True, slots=True)
class SubTrace:
    """Holds the spans of one rollout, as a trace of its own.

    Attributes:
        trace: Trace with the rollout's spans; the spans of the first rollout keep their ids.
        beginning: Id of the span that begins the rollout.
        span_ids: Ids of all its spans.
    """

    trace: ReceivedTrace
    beginning: bytes
    span_ids: frozenset[bytes]

    def scopes(self) -> Iterable[tuple[SpanOrigin, ScopeSpans]]:
        """Return the spans by producer, in their order."""
        scopes: list[tuple[SpanOrigin, ScopeSpans]] = []
        for origin, span in self.trace.spans:
            if not scopes or scopes[-1][0] is not origin:
                scopes.append((origin, ScopeSpans()))
            scopes[-1][1].spans.append(span)
        return scopes


def sub_traces(trace: ReceivedTrace, *, further: bool = False) -> list[SubTrace]:
    """Split *trace* into its rollouts, the earliest first.

    Args:
        trace: The received spans.
        further: Whether the trace's first rollout was already published, so that each rollout here
            gets an id of its own.

    Returns:
        The parts; when *further*, spans without a rollout are left out.
    """
    pairs = first_by_id(trace.spans)
    spans = {span_id: span for span_id, (_, span) in pairs.items()}
    beginnings = _beginnings(spans)
    parts: list[SubTrace] = []
    for beginning in _by_start(beginnings.values(), spans):
        keeps_id = not parts and not further
        without_rollout = beginning if keeps_id else None
        members = [
            pair
            for span_id, pair in pairs.items()
            if beginnings.get(span_id, without_rollout) == beginning
        ]
        rollout_id = trace.id
        if not keeps_id:
            rollout_id = sub_trace_id(trace.id, beginning)
        inherited = _inherited(spans[beginning], spans)
        part_spans: list[tuple[SpanOrigin, Span]] = []
        for origin, member in members:
            span = member
            if member.span_id == beginning:
                span = inherited
            if not keeps_id:
                span = _moved(span, beginning, rollout_id, trace.id, spans)
            part_spans.append((origin, span))
        span_ids = frozenset(span.span_id for _, span in members)
        parts.append(
            SubTrace(ReceivedTrace(rollout_id, part_spans), beginning, span_ids)
        )
    return parts


def _by_start(span_ids: Iterable[bytes], spans: Mapping[bytes, Span]) -> list[bytes]:
    """Return each of *span_ids* once, the earliest span first."""
    return sorted(
        set(span_ids),
        key=lambda span_id: (spans[span_id].start_time_unix_nano, span_id),
    )


def _beginnings(spans: Mapping[bytes, Span]) -> dict[bytes, bytes]:
    """Return, for each span, the span that begins its rollout.

    Spans without a rollout are left out.
    """
    tops: dict[bytes, bytes | None] = {}
    for span_id in spans:
        path: list[bytes] = []
        above = span_id
        # Each span is walked once; *path* ends circles of parents, which a producer may send.
        while above in spans and above not in tops and above not in path:
            path.append(above)
            above = spans[above].parent_span_id
        top = tops.get(above)
        for path_id in reversed(
            path
        ):  # the topmost marked span begins the rollout of all below it
            if not top and reading.is_marked(spans[path_id]):
                top = path_id
            tops[path_id] = top
    return _joined(
        {span_id: top for span_id, top in tops.items() if top is not None}, spans
    )


def _joined(
    tops: dict[bytes, bytes], spans: Mapping[bytes, Span]
) -> dict[bytes, bytes]:
    """Join sibling spans that name one rollout, since some producers put its id on every span."""
    first_of_name: dict[str, bytes] = {}
    beginnings: dict[bytes, bytes] = {}
    for top in _by_start(tops.values(), spans):
        name = None
        if spans[top].name != semconv.ROLLOUT_SPAN:
            name = _rollout_id(spans[top])
        beginnings[top] = top if name is None else first_of_name.setdefault(name, top)
    return {span_id: beginnings[top] for span_id, top in tops.items()}


def _rollout_id(span: Span) -> str | None:
    return next(
        (
            pair.value.string_value
            for pair in span.attributes
            if pair.key == semconv.ROLLOUT_ID
        ),
        None,
    )


def _inherited(span: Span, spans: Mapping[bytes, Span]) -> Span:
    """Return *span* with the inherited attributes that it lacks, taken from the spans above."""
    keys = {pair.key for pair in span.attributes}
    if keys.intersection(_STEP_NAMES):  # one step is enough, by whatever name
        keys.update(_STEP_NAMES)
    copy = Span.FromString(span.SerializeToString())
    for ancestor in _ancestors(span, spans):
        new = [
            pair
            for pair in ancestor.attributes
            if pair.key in _INHERITED and pair.key not in keys
        ]
        copy.attributes.extend(new)
        keys.update(pair.key for pair in new)
    return copy


def _ancestors(span: Span, spans: Mapping[bytes, Span]) -> Iterator[Span]:
    """Yield the spans above *span*, the nearest first.

    A circle of parents, which a producer may send, is left.
    """
    path = {span.span_id}
    parent_id = span.parent_span_id
    while parent_id in spans and parent_id not in path:
        path.add(parent_id)
        yield spans[parent_id]
        parent_id = spans[parent_id].parent_span_id


def _moved(
    span: Span,
    beginning: bytes,
    rollout_id: str,
    trace_id: str,
    spans: Mapping[bytes, Span],
) -> Span:
    """Return *span* as a span of the trace *rollout_id*.

    The beginning span gets a link in place of its parent.
    """
    copy = moved_to(rollout_id, span)
    if span.span_id == beginning:
        if not reading.is_root(span):
            copy.links.add(
                trace_id=bytes.fromhex(trace_id), span_id=span.parent_span_id
            )
            # A link in its place: with a parent of another trace it would not be a root.
            copy.parent_span_id = b""
    # Below the beginning, or it would be a second root of the rollout.
    elif span.parent_span_id not in spans or not _inside(span, beginning, spans):
        copy.parent_span_id = beginning
    return copy


def moved_to(trace_id: str, span: Span) -> Span:
    """Return *span* as a span of the trace *trace_id*."""
    copy = Span.FromString(span.SerializeToString())
    copy.trace_id = bytes.fromhex(trace_id)
    return copy


def _inside(span: Span, beginning: bytes, spans: Mapping[bytes, Span]) -> bool:
    """Return whether *span* is below *beginning*, or below a sibling that begins the same rollout."""
    if not reading.is_marked(span):
        return True
    return any(ancestor.span_id == beginning for ancestor in _ancestors(span, spans))


def belongs_further(
    received: Sequence[Span], complete: Iterable[bytes], waiting: Collection[bytes]
) -> list[Span]:
    """Return the spans of *received* that may belong to further rollouts, in a trace whose first rollout is complete.

    Args:
        received: Received spans.
        complete: Ids of spans of complete rollouts; their children belong there, and they
            themselves are redelivered.
        waiting: Ids of spans that wait for a further rollout.
    """
    complete_ids = set(complete)
    rest = [span for span in received if span.span_id not in complete_ids]
    has_changed = True
    while has_changed:  # a child may precede its parent
        has_changed = False
        for span in list(rest):
            parent_id = span.parent_span_id
            if (
                parent_id in complete_ids
                and not reading.is_marked(span)
                and parent_id not in waiting
            ):
                complete_ids.add(span.span_id)
                rest.remove(span)
                has_changed = True
    return [
        span for span in rest if reading.is_marked(span) or not reading.is_root(span)
    ]


# Routing of data for a trace whose rollouts are split, or complete. Pure.


class SpanRouter:
    """Routes spans and evaluations to their rollouts."""

    def __init__(
        self,
        state: TranslationState,
        store: TraceStore,
        ended: CompletedTraces,
        evaluations: Evaluations,
    ) -> None:
        self._state = state
        self._store = store
        self._ended = ended
        self._evaluations = evaluations

    def further(self, trace_id: str, received: list[Span]) -> list[Span]:
        """Return the spans that may belong to further rollouts of a trace with a complete rollout."""
        ended = self._ended.get(trace_id)
        if ended is not None and not ended.remembered_ids:
            return []  # no ids are remembered that would reveal a redelivery
        waiting = self._store.traces.get(f"{trace_id}{FURTHER}")
        waiting_ids = waiting.span_ids if waiting is not None else set[bytes]()
        complete: set[bytes] = set()
        for span in received:
            for span_id in (span.span_id, span.parent_span_id):
                begins_complete = self.is_complete(sub_trace_id(trace_id, span_id))
                if begins_complete or self._is_of_first(trace_id, ended, span_id):
                    complete.add(span_id)
        return belongs_further(received, complete, waiting_ids)

    def _is_of_first(
        self, trace_id: str, ended: CompletedTrace | None, span_id: bytes
    ) -> bool:
        """Return whether the first rollout of a trace has the span, which *ended* or still waits for its step."""
        if ended is not None:
            return tail(span_id) in ended.remembered_ids
        trace = self._store.traces.get(trace_id)
        return trace is not None and span_id in trace.span_ids

    def late_spans(
        self, trace_id: str, ended: CompletedTrace, received: list[Span]
    ) -> list[Span]:
        """Return the new spans of a finished trace, each once.

        Spans of its further rollouts are redelivered.
        """
        return unknown(
            ended,
            [span for span in received if not self._is_redelivered(trace_id, span)],
        )

    def _is_redelivered(self, trace_id: str, span: Span) -> bool:
        above = self._ended.get(sub_trace_id(trace_id, span.parent_span_id))
        is_below_complete = (
            above is not None and tail(span.span_id) in above.remembered_ids
        )
        return is_below_complete or self.is_complete(
            sub_trace_id(trace_id, span.span_id)
        )

    def is_complete(self, trace_id: str) -> bool:
        """Return whether the rollout of this id is complete: waiting for its step, or decided on."""
        trace = self._store.traces.get(trace_id)
        return self._ended.get(trace_id) is not None or (
            trace is not None and trace.facts is not None
        )

    def addressed(self, evaluation: ReceivedEvaluation) -> ReceivedEvaluation:
        """Return a value for one span under the id of the span's rollout, or, while that is open, of the span."""
        if not evaluation.span_id:
            return evaluation
        span_id = bytes.fromhex(evaluation.span_id)
        own_rollout = sub_trace_id(evaluation.trace_id, span_id)
        if self.is_complete(own_rollout):
            return replace(evaluation, trace_id=own_rollout)
        trace = self._store.traces.get(evaluation.trace_id)
        part_ids = trace.parts if trace is not None else ()
        for part in filter(None, map(self._store.traces.get, part_ids)):
            if span_id in part.span_ids:
                return replace(evaluation, trace_id=part.id)
        if self.is_complete(evaluation.trace_id):
            return evaluation
        return self._evaluations.of_span(evaluation)

    def fresh(self, trace: PendingTrace, received: list[Span]) -> list[Span]:
        """Return the spans that *trace* lacks and has room for, each once.

        Those without room are counted.
        """
        # Reversed twice: of spans with one id the first that was received wins, and the order
        # stays.
        by_id = {
            span.span_id: span
            for span in reversed(received)
            if span.span_id not in trace.span_ids
        }
        fresh = list(reversed(by_id.values()))
        room = MAX_SPANS - len(trace.span_ids)
        if len(fresh) <= room:
            return fresh
        roots = [span for span in fresh if reading.is_root(span)]
        if (
            roots and trace.root_ns is None
        ):  # the other spans are useless without their root
            fresh = [roots[0], *(span for span in fresh if span is not roots[0])]
            room = max(room, 1)
        count(self._state, "span/too_many", len(fresh) - room)
        return fresh[:room]

    def remaining_spans(
        self, trace: PendingTrace, source: ReceivedTrace, parts: list[SubTrace]
    ) -> list[tuple[SpanOrigin, Span]]:
        """Return the spans of *trace* that belong to none of *parts*, the further rollouts found in it.

        Args:
            trace: Spans that arrived after the first rollout was complete.
            source: The same trace with its span messages.
            parts: The further rollouts; they are noted in the first rollout while that waits.
        """
        first = self._store.traces.get(trace.base)
        if first is not None:
            first.add_parts(part.trace.id for part in parts)
            self._store.note(first)
        split_off: set[bytes] = set()
        for part in parts:
            split_off |= part.span_ids
        return [
            (origin, span)
            for origin, span in source.spans
            if span.span_id not in split_off
        ]

    def keep_remaining_spans(
        self, trace: PendingTrace, rest: list[tuple[SpanOrigin, Span]]
    ) -> PendingTrace:
        """Store *rest* again, as a waiting trace in place of the forgotten *trace*, and return it."""
        waiting = PendingTrace(trace.id, trace.first_ns, trace.last_ns)
        for origin, span in rest:
            waiting.add([span], trace.last_ns)
            self._store.keep(waiting, origin, ScopeSpans(spans=[span]))
        return waiting


def revised(facts: SamplingFacts, scores: list[EvaluationScore]) -> SamplingFacts:
    """Return *facts* with the reward that arrived apart from the trace, if any."""
    rewards = [
        score.value
        for score in scores
        if score.name == "reward" and score.value is not None
    ]
    if rewards:
        return replace(facts, reward=rewards[-1])
    return facts


def evaluation_record(value: ReceivedEvaluation, ended: CompletedTrace) -> Evaluation:
    """Return the record of a value whose rollout was already emitted."""
    return Evaluation(
        id=value.id,
        rollout_id=value.trace_id,
        rollout_key=ended.key,
        name=value.score.name,
        value=value.score.value,
        label=value.score.label,
        explanation=value.score.explanation,
        role=ended.role,
        step=ended.step,
        axis=axis_of(ended.role) if ended.step is not None else None,
        time_unix_ns=value.time_unix_ns,
    )
