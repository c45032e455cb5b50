"""Trace with several rollouts -> one trace for each rollout, with an id of its own.

A producer whose spans are all below one span of the application has one trace id for many rollouts. A span that is
marked as a rollout begins one, unless a span above it is marked. The earliest rollout keeps the trace's id and every
span without a rollout. The ids of other rollouts are made of the trace's id and the span's id. Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span

from otel_bridge import semconv
from otel_bridge.records import Evaluation, axis_of
from otel_bridge.translation.decode import spans as reading
from otel_bridge.translation.decode.resources import SpanOrigin
from otel_bridge.translation.rollouts.assembly import EvaluationScore, ReceivedTrace, SamplingFacts
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

_INHERITED: Final = (semconv.STEP, *semconv.THIRD_PARTY_STEPS, semconv.SPLIT, semconv.GROUP_ID)
"""Attributes that a rollout without them inherits from the nearest span above that has them."""


def sub_trace_id(trace_id: str, span_id: bytes) -> str:
    """Return the id of the rollout that *span_id* begins, unless the rollout is the trace's first."""
    return hashlib.md5(f"{trace_id}\0{span_id.hex()}".encode(), usedforsecurity=False).hexdigest()


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
        found: list[tuple[SpanOrigin, ScopeSpans]] = []
        for origin, span in self.trace.spans:
            if not found or found[-1][0] is not origin:
                found.append((origin, ScopeSpans()))
            found[-1][1].spans.append(span)
        return found


def sub_traces(trace: ReceivedTrace, *, further: bool = False) -> list[SubTrace]:
    """Split *trace* into its rollouts, the earliest first.

    Args:
        trace: The received spans.
        further: Whether the trace's first rollout was already published, so that each rollout here gets an id of its
            own.

    Returns:
        The parts; when *further*, spans without a rollout are left out.
    """
    once: dict[bytes, tuple[SpanOrigin, Span]] = {}
    for pair in trace.spans:
        once.setdefault(pair[1].span_id, pair)
    spans = {span_id: span for span_id, (_, span) in once.items()}
    above = _beginnings(spans)
    order = sorted(set(above.values()), key=lambda span_id: (spans[span_id].start_time_unix_nano, span_id))
    parts: list[SubTrace] = []
    for beginning in order:
        first = not parts and not further
        mine = [
            pair for span_id, pair in once.items() if above.get(span_id, b"" if not first else beginning) == beginning
        ]
        placed = _inherited(spans[beginning], spans)
        given = trace.id if first else sub_trace_id(trace.id, beginning)
        moved = [
            (origin, _moved(placed if span.span_id == beginning else span, beginning, given, trace.id, spans))
            if not first
            else (origin, placed if span.span_id == beginning else span)
            for origin, span in mine
        ]
        parts.append(SubTrace(ReceivedTrace(given, moved), beginning, frozenset(span.span_id for _, span in mine)))
    return parts


def _beginnings(spans: Mapping[bytes, Span]) -> dict[bytes, bytes]:
    """Return, for each span, the span that begins its rollout; spans without a rollout are left out."""
    tops: dict[bytes, bytes | None] = {}
    for span_id in spans:
        path: list[bytes] = []
        at, top = span_id, None
        while at in spans and at not in tops and at not in path:
            path.append(at)
            at = spans[at].parent_span_id
        top = tops.get(at)
        for step in reversed(path):
            top = top or (step if reading.is_marked(spans[step]) else None)
            tops[step] = top
    return _joined({span_id: top for span_id, top in tops.items() if top is not None}, spans)


def _joined(tops: dict[bytes, bytes], spans: Mapping[bytes, Span]) -> dict[bytes, bytes]:
    """Join sibling spans that name one rollout, since some producers put its id on every span."""
    first: dict[str, bytes] = {}
    of: dict[bytes, bytes] = {}
    for top in sorted(set(tops.values()), key=lambda span_id: (spans[span_id].start_time_unix_nano, span_id)):
        name = None if spans[top].name == semconv.ROLLOUT_SPAN else _rollout_id(spans[top])
        of[top] = top if name is None else first.setdefault(name, top)
    return {span_id: of[top] for span_id, top in tops.items()}


def _rollout_id(span: Span) -> str | None:
    return next((pair.value.string_value for pair in span.attributes if pair.key == semconv.ROLLOUT_ID), None)


def _inherited(span: Span, spans: Mapping[bytes, Span]) -> Span:
    """Return *span* with the inherited attributes that it lacks, taken from the spans above."""
    known = {pair.key for pair in span.attributes}
    if known.intersection(_INHERITED[:-2]):
        known.update(_INHERITED[:-2])
    copy, at, seen = Span.FromString(span.SerializeToString()), span.parent_span_id, {span.span_id}
    while at in spans and at not in seen:
        seen.add(at)
        new = [pair for pair in spans[at].attributes if pair.key in _INHERITED and pair.key not in known]
        copy.attributes.extend(new)
        known.update(pair.key for pair in new)
        at = spans[at].parent_span_id
    return copy


def _moved(span: Span, beginning: bytes, given: str, trace_id: str, spans: Mapping[bytes, Span]) -> Span:
    """Return *span* as a span of the trace *given*; the beginning span gets a link in place of its parent."""
    copy = moved_to(given, span)
    if span.span_id == beginning:
        if not reading.is_root(span):
            copy.links.add(trace_id=bytes.fromhex(trace_id), span_id=span.parent_span_id)
            copy.parent_span_id = b""
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
    at, seen = span.span_id, set[bytes]()
    if reading.is_marked(span):
        while at in spans and at not in seen:
            if at == beginning:
                return True
            seen.add(at)
            at = spans[at].parent_span_id
        return False
    return True


def belongs_further(found: Sequence[Span], known: Iterable[bytes], ids: Iterable[bytes]) -> list[Span]:
    """Return the spans of *found* that may belong to further rollouts, in a trace whose first rollout is complete.

    Args:
        found: Received spans.
        known: Ids of spans of complete rollouts; their children belong there, and they themselves are redelivered.
        ids: Ids of spans that wait for a further rollout.
    """
    old, waiting = set(known), set(ids)
    rest = [span for span in found if span.span_id not in old]
    moved = True
    while moved:  # a child may precede its parent
        moved = False
        for span in list(rest):
            if span.parent_span_id in old and not reading.is_marked(span) and span.parent_span_id not in waiting:
                old.add(span.span_id)
                rest.remove(span)
                moved = True
    return [span for span in rest if reading.is_marked(span) or not reading.is_root(span)]


# Routing of data for a trace whose rollouts are split, or complete. Pure.


class SpanRouter:
    """Routes spans and evaluations to their rollouts."""

    def __init__(
        self, state: TranslationState, store: TraceStore, ended: CompletedTraces, evaluations: Evaluations
    ) -> None:
        self._state, self._store, self._ended, self._evaluations = state, store, ended, evaluations

    def further(self, trace_id: str, found: list[Span]) -> list[Span]:
        """Return the spans that may belong to further rollouts of a trace with a complete rollout."""
        ended, trace = self._ended.get(trace_id), self._store.traces.get(trace_id)
        if ended is not None and not ended.known:
            return []  # no ids are remembered that would reveal a redelivery
        waiting = self._store.traces.get(f"{trace_id}{FURTHER}")
        ids = waiting.span_ids if waiting is not None else set[bytes]()
        known: set[bytes] = set()
        for span in found:
            for span_id in (span.span_id, span.parent_span_id):
                of_another = self.is_complete(sub_trace_id(trace_id, span_id))
                first = (
                    tail(span_id) in ended.known
                    if ended is not None
                    else trace is not None and span_id in trace.span_ids
                )
                if first or of_another:
                    known.add(span_id)
        return belongs_further(found, known, ids)

    def late_spans(self, trace_id: str, ended: CompletedTrace, found: list[Span]) -> list[Span]:
        """Return the new spans of a finished trace, each once; spans of its further rollouts are redelivered."""
        return unknown(ended, [span for span in found if not self._is_redelivered(trace_id, span)])

    def _is_redelivered(self, trace_id: str, span: Span) -> bool:
        above = self._ended.get(sub_trace_id(trace_id, span.parent_span_id))
        known = above is not None and tail(span.span_id) in above.known
        return known or self.is_complete(sub_trace_id(trace_id, span.span_id))

    def is_complete(self, trace_id: str) -> bool:
        """Return whether the rollout of this id is complete: waiting for its step, or decided on."""
        trace = self._store.traces.get(trace_id)
        return self._ended.get(trace_id) is not None or (trace is not None and trace.facts is not None)

    def addressed(self, evaluation: ReceivedEvaluation) -> ReceivedEvaluation:
        """Return a value for one span under the id of the span's rollout, or, while that is open, of the span."""
        if not evaluation.span_id:
            return evaluation
        part = sub_trace_id(evaluation.trace_id, bytes.fromhex(evaluation.span_id))
        if self.is_complete(part):
            return replace(evaluation, trace_id=part)
        trace = self._store.traces.get(evaluation.trace_id)
        for other in filter(None, map(self._store.traces.get, trace.parts if trace is not None else ())):
            if bytes.fromhex(evaluation.span_id) in other.span_ids:
                return replace(evaluation, trace_id=other.id)
        if self.is_complete(evaluation.trace_id):
            return evaluation
        return self._evaluations.of_span(evaluation)

    def fresh(self, trace: PendingTrace, found: list[Span]) -> list[Span]:
        """Return the spans that *trace* lacks and has room for, each once."""
        once = {span.span_id: span for span in reversed(found) if span.span_id not in trace.span_ids}
        fresh = list(reversed(once.values()))
        room = MAX_SPANS - len(trace.span_ids)
        if len(fresh) <= room:
            return fresh
        root = next((span for span in fresh if reading.is_root(span)), None) if trace.root_ns is None else None
        if root is not None:  # the other spans are useless without their root
            fresh = [root, *(span for span in fresh if span is not root)]
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
        taken = {span_id for part in parts for span_id in part.span_ids}
        return [(origin, span) for origin, span in source.spans if span.span_id not in taken]

    def keep_remaining_spans(self, trace: PendingTrace, rest: list[tuple[SpanOrigin, Span]]) -> PendingTrace:
        """Store *rest* again, as a waiting trace in place of the forgotten *trace*, and return it."""
        waiting = PendingTrace(trace.id, trace.first_ns, trace.last_ns)
        for origin, span in rest:
            waiting.add([span], trace.last_ns)
            self._store.keep(waiting, origin, ScopeSpans(spans=[span]))
        return waiting


def revised(facts: SamplingFacts, scores: list[EvaluationScore]) -> SamplingFacts:
    """Return *facts* with the reward that arrived apart from the trace, if any."""
    rewards = [score.value for score in scores if score.name == "reward" and score.value is not None]
    return replace(facts, reward=rewards[-1]) if rewards else facts


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
