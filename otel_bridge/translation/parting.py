"""What comes for a trace whose rollouts are parted, or complete: whose it is. Pure."""

from __future__ import annotations

from dataclasses import replace

from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span

from otel_bridge.records import LateValue, axis_of
from otel_bridge.translation import spans as reading
from otel_bridge.translation.assembly import Facts, Score, Trace
from otel_bridge.translation.late import Evaluation, LateValues
from otel_bridge.translation.parts import Part, belongs_further, part_id
from otel_bridge.translation.state import State, count
from otel_bridge.translation.traces import FURTHER, MAX_SPANS, Ended, EndedTraces, OpenTrace, TraceStore, tail, unknown


class Parting:
    """Finds the rollout that spans and late values belong to."""

    def __init__(self, state: State, store: TraceStore, ended: EndedTraces, late: LateValues) -> None:
        self._state, self._store, self._ended, self._late = state, store, ended, late

    def further(self, trace_id: str, found: list[Span]) -> list[Span]:
        """Return those spans of a trace with a complete rollout that may belong to further ones."""
        ended, trace = self._ended.get(trace_id), self._store.traces.get(trace_id)
        if ended is not None and not ended.known:
            return []  # nothing is remembered by which one that comes again would be recognised
        waiting = self._store.traces.get(f"{trace_id}{FURTHER}")
        ids = waiting.span_ids if waiting is not None else set[bytes]()
        known: set[bytes] = set()
        for span in found:
            for span_id in (span.span_id, span.parent_span_id):
                of_another = self.is_complete(part_id(trace_id, span_id))
                first = (
                    tail(span_id) in ended.known
                    if ended is not None
                    else trace is not None and span_id in trace.span_ids
                )
                if first or of_another:
                    known.add(span_id)
        return belongs_further(found, known, ids)

    def late(self, trace_id: str, ended: Ended, found: list[Span]) -> int:
        """Return how many spans of a finished trace are new; those of its further rollouts come again."""
        return unknown(ended, [span for span in found if not self._again(trace_id, span)])

    def _again(self, trace_id: str, span: Span) -> bool:
        above = self._ended.get(part_id(trace_id, span.parent_span_id))
        known = above is not None and tail(span.span_id) in above.known
        return known or self.is_complete(part_id(trace_id, span.span_id))

    def is_complete(self, trace_id: str) -> bool:
        """Return whether the rollout of this id is complete: it waits for its step, or was decided on."""
        trace = self._store.traces.get(trace_id)
        return self._ended.get(trace_id) is not None or (trace is not None and trace.facts is not None)

    def addressed(self, evaluation: Evaluation) -> Evaluation:
        """Return a value for one span under the id of that span's rollout, or, while that is open, under the span's."""
        if not evaluation.span_id:
            return evaluation
        part = part_id(evaluation.trace_id, bytes.fromhex(evaluation.span_id))
        if self.is_complete(part):
            return replace(evaluation, trace_id=part)
        trace = self._store.traces.get(evaluation.trace_id)
        for other in filter(None, map(self._store.traces.get, trace.parts if trace is not None else ())):
            if bytes.fromhex(evaluation.span_id) in other.span_ids:
                return replace(evaluation, trace_id=other.id)
        if self.is_complete(evaluation.trace_id):
            return evaluation
        return self._late.of_span(evaluation)

    def fresh(self, trace: OpenTrace, found: list[Span]) -> list[Span]:
        """Return those spans that *trace* does not have and has room for, each once."""
        once = {span.span_id: span for span in reversed(found) if span.span_id not in trace.span_ids}
        fresh = list(reversed(once.values()))
        room = MAX_SPANS - len(trace.span_ids)
        if len(fresh) <= room:
            return fresh
        root = next((span for span in fresh if reading.is_root(span)), None) if trace.root_ns is None else None
        if root is not None:  # without it nobody would know what all the others are
            fresh = [root, *(span for span in fresh if span is not root)]
            room = max(room, 1)
        count(self._state, "span/too_many", len(fresh) - room)
        return fresh[:room]

    def rest(self, trace: OpenTrace, source: Trace, parts: list[Part]) -> OpenTrace | None:
        """Store anew what of *trace*, which is forgotten, belongs to none of its further rollouts: it waits on.

        Args:
            trace: Spans that came when the first rollout was complete.
            source: The same with all its spans.
            parts: The further rollouts found in it; with none of these nothing is waited for.

        Returns:
            The trace that waits, if any does.
        """
        first = self._store.traces.get(trace.base)
        if first is not None:
            first.parts += tuple(part.trace.id for part in parts)
            self._store.note(first)
        taken = {span_id for part in parts for span_id in part.span_ids}
        rest = [(producer, span) for producer, span in source.spans if span.span_id not in taken]
        if not rest:
            return None
        if not parts:
            count(self._state, "span/late", len(rest))
            return None
        waiting = OpenTrace(trace.id, trace.first_ns, trace.last_ns)
        for producer, span in rest:
            waiting.add([span], trace.last_ns)
            self._store.keep(waiting, producer, ScopeSpans(spans=[span]))
        return waiting


def revised(facts: Facts, scores: list[Score]) -> Facts:
    """Return *facts* with the reward that came apart from the trace, if any did."""
    rewards = [score.value for score in scores if score.name == "reward" and score.value is not None]
    return replace(facts, reward=rewards[-1]) if rewards else facts


def late_value(value: Evaluation, ended: Ended) -> LateValue:
    """Return the record of a value whose rollout was emitted before it."""
    return LateValue(
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
