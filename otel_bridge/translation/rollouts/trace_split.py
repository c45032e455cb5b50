"""Trace with several rollouts -> one trace for each rollout, with an id of its own.

A producer whose spans are all below one span of the application has one trace id for many rollouts.
A span that is marked as a rollout begins one, unless a span above it is marked. The earliest
rollout keeps the trace's id and every span without a rollout. The ids of other rollouts are made of
the trace's id and the span's id, so that a redelivery and a restart give the same ones. Spans that
arrive once a rollout of their trace is complete go to the rollout that holds them or their parent.
Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_bridge import semconv
from otel_bridge.translation.decode import spans as reading
from otel_bridge.translation.decode.attributes import keys_of
from otel_bridge.translation.decode.resources import SpanOrigin
from otel_bridge.translation.rollouts.assembly import ReceivedTrace, first_by_id
from otel_bridge.translation.rollouts.evaluations import Evaluations, ReceivedEvaluation
from otel_bridge.translation.rollouts.trace_store import (
    FURTHER,
    CompletedTraces,
    TraceStore,
    tail,
)

_STEP_NAMES = (semconv.STEP, *semconv.THIRD_PARTY_STEPS)
_INHERITED = (*_STEP_NAMES, semconv.SPLIT, semconv.GROUP_ID)
"""Attributes that a rollout without them inherits from the nearest span above that has them."""


def sub_trace_id(trace_id: str, span_id: bytes) -> str:
    """Return the id of the rollout that *span_id* begins, unless the rollout is the trace's first."""
    return hashlib.md5(
        f"{trace_id}\0{span_id.hex()}".encode(), usedforsecurity=False
    ).hexdigest()


def sub_traces(trace: ReceivedTrace, *, further: bool = False) -> list[ReceivedTrace]:
    """Split *trace* into its rollouts, the earliest first; none when no span is marked.

    Never raises: circles of parents and spans without a parent are read too. The order of start
    decides which rollout keeps the trace's id, so that a restart gives the same ids.

    Args:
        trace: The received spans; the spans of the first rollout keep their ids.
        further: Whether the trace's first rollout is complete already. Then each rollout here gets
            an id of its own, and spans without a rollout are left out.
    """
    pairs = first_by_id(trace.spans)
    spans = {span_id: span for span_id, (_, span) in pairs.items()}
    beginnings = _beginnings(spans)
    parts: list[ReceivedTrace] = []
    for beginning in _by_start(beginnings.values(), spans):
        keeps_id = not parts and not further
        # No span is lost: the first rollout has those that belong to none.
        without_rollout = beginning if keeps_id else None
        rollout_id = trace.id if keeps_id else sub_trace_id(trace.id, beginning)
        members: list[tuple[SpanOrigin, Span]] = []
        for span_id, (origin, span) in pairs.items():
            if beginnings.get(span_id, without_rollout) != beginning:
                continue
            member = span
            if span_id == beginning:
                member = _inherited(span, spans)
            if not keeps_id:
                is_top = beginnings.get(span.parent_span_id) != beginning
                member = _detached(member, rollout_id, beginning, is_top=is_top)
            members.append((origin, member))
        parts.append(ReceivedTrace(rollout_id, members))
    return parts


def _by_start(span_ids: Iterable[bytes], spans: Mapping[bytes, Span]) -> list[bytes]:
    """Return each of *span_ids* once, the earliest span first.

    The id decides between equal times.
    """
    return sorted(
        set(span_ids),
        key=lambda span_id: (spans[span_id].start_time_unix_nano, span_id),
    )


def _beginnings(spans: Mapping[bytes, Span]) -> dict[bytes, bytes]:
    """Return, for each span, the span that begins its rollout: the topmost marked one above it.

    Spans without a rollout are left out. Siblings that name one rollout begin it together, by the
    earliest of them.

    A rollout inside a rollout is a part of it, because only the outer one has the whole outcome.
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
        for path_id in reversed(path):
            if top is None and reading.is_marked(spans[path_id]):
                top = path_id
            tops[path_id] = top
    marked_tops = {span_id: top for span_id, top in tops.items() if top is not None}
    beginning_of = _joined(marked_tops.values(), spans)
    return {span_id: beginning_of[top] for span_id, top in marked_tops.items()}


def _joined(tops: Iterable[bytes], spans: Mapping[bytes, Span]) -> dict[bytes, bytes]:
    """Return, for each top, the earliest one that names the same rollout: some producers put its id on every span.

    Spans named ``rollout`` stay apart: a program that returns to its checkpoint uses an id again.
    """
    first_of_name: dict[str, bytes] = {}
    beginnings: dict[bytes, bytes] = {}
    for top in _by_start(tops, spans):
        name = None
        if spans[top].name != semconv.ROLLOUT_SPAN:
            name = _rollout_id(spans[top])
        beginnings[top] = top if name is None else first_of_name.setdefault(name, top)
    return beginnings


def _rollout_id(span: Span) -> str | None:
    for pair in span.attributes:
        if pair.key == semconv.ROLLOUT_ID:
            return pair.value.string_value
    return None


def _inherited(span: Span, spans: Mapping[bytes, Span]) -> Span:
    """Return a copy of *span* with the inherited attributes that it lacks, taken from the nearest span above.

    Programs set the step, split or group once, on the span around their rollouts.
    """
    keys = keys_of(span.attributes)
    if keys.intersection(_STEP_NAMES):  # one step is enough, by whatever name
        keys.update(_STEP_NAMES)
    copy = Span.FromString(span.SerializeToString())
    for ancestor in _ancestors(span, spans):
        for pair in ancestor.attributes:
            if pair.key in _INHERITED and pair.key not in keys:
                copy.attributes.append(pair)
        keys |= keys_of(ancestor.attributes)
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


def _detached(span: Span, rollout_id: str, beginning: bytes, *, is_top: bool) -> Span:
    """Return *span* as a span of the trace *rollout_id*, whose only root is *beginning*.

    *is_top*: whether the parent of the span does not belong to the rollout.
    """
    copy = moved_to(rollout_id, span)
    if span.span_id != beginning:
        if is_top:  # a sibling that was joined to the rollout would be a second root
            copy.parent_span_id = beginning
    elif not reading.is_root(span):
        # A link in its place: with a parent of another trace it would not be a root.
        copy.links.add(trace_id=span.trace_id, span_id=span.parent_span_id)
        copy.parent_span_id = b""
    return copy


def moved_to(trace_id: str, span: Span) -> Span:
    """Return a copy of *span* as a span of the trace *trace_id*."""
    copy = Span.FromString(span.SerializeToString())
    copy.trace_id = bytes.fromhex(trace_id)
    return copy


class SpanRouter:
    """Routes spans and evaluations to the rollouts of their trace.

    Args:
        store: The waiting traces.
        ended: The rollouts that were emitted or sampled out.
        evaluations: The waiting evaluations.
    """

    def __init__(
        self, store: TraceStore, ended: CompletedTraces, evaluations: Evaluations
    ) -> None:
        self._store = store
        self._ended = ended
        self._evaluations = evaluations

    def routed(self, trace_id: str, received: list[Span]) -> dict[str, list[Span]]:
        """Return the *received* spans of a trace by the id of the stored or ended trace that they belong to.

        As long as no rollout of the trace is complete, this is the trace itself. Later it is the
        rollout that holds the span (a redelivery) or its parent (a late span). A span without a
        parent belongs to the first rollout. Any other may belong to a further rollout, and waits
        under the trace's id with `FURTHER`. Of a trace whose spans were too many to remember all go
        to the trace itself, where they count as late.

        A further one gets its own place because the first may wait for its step under the trace's
        id.
        """
        ended = self._ended.get(trace_id)
        # Of a rollout too large to remember its spans, a redelivery would wait as a further one.
        is_forgotten = ended is not None and not ended.span_ids
        if is_forgotten or not self.is_complete(trace_id):
            return {trace_id: received}
        by_id = {span.span_id: span for span in received}
        routed: dict[str, list[Span]] = {}
        for span in received:
            target = self._target(trace_id, span, by_id)
            is_moved = target.removesuffix(FURTHER) != trace_id
            member = moved_to(target, span) if is_moved else span
            routed.setdefault(target, []).append(member)
        return routed

    def _target(self, trace_id: str, span: Span, received: Mapping[bytes, Span]) -> str:
        """Return the id under which *span* belongs, of a trace with a complete rollout.

        A marked span that no rollout holds begins a further one, and takes the spans below it
        along.
        """
        top = span
        # Upwards, because SDKs send a child before its parent, in the same message too.
        for above in (span, *_ancestors(span, received)):
            owner = self._owner(trace_id, above.span_id)
            if owner is not None:
                return owner
            if reading.is_marked(above):
                return f"{trace_id}{FURTHER}"
            top = above
        owner = self._owner(trace_id, top.parent_span_id)
        if owner is None and reading.is_root(top):
            return trace_id
        return owner or f"{trace_id}{FURTHER}"

    def _owner(self, trace_id: str, span_id: bytes) -> str | None:
        """Return the id of the complete rollout of a trace that holds a span.

        ``None`` when none does, or has too many spans to remember this one.

        The first rollout is asked by itself: its spans are in no index, since most traces hold one
        rollout.
        """
        ended = self._ended.get(trace_id)
        if ended is not None:
            is_of_first = tail(span_id) in ended.span_ids
        else:
            trace = self._store.traces.get(trace_id)
            is_of_first = trace is not None and span_id in trace.span_ids
        if is_of_first:
            return trace_id
        return self._store.owners.get(trace_id, span_id)

    def is_complete(self, trace_id: str) -> bool:
        """Return whether the first rollout of a trace is complete: waiting for its step, or decided on."""
        trace = self._store.traces.get(trace_id)
        return self._ended.get(trace_id) is not None or (
            trace is not None and trace.facts is not None
        )

    def addressed(self, evaluation: ReceivedEvaluation) -> ReceivedEvaluation:
        """Return a value for one span under the id of the span's rollout.

        A value for a span of no complete rollout counts for the first rollout, once that is
        complete. Before, it waits under the span's id, because the split decides.
        """
        trace_id = evaluation.trace_id
        if not evaluation.span_id:
            return evaluation
        if not self.is_complete(trace_id):
            return self._evaluations.of_span(evaluation)
        owner = self._owner(trace_id, bytes.fromhex(evaluation.span_id))
        return replace(evaluation, trace_id=owner or trace_id)
