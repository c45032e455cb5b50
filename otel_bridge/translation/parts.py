"""A trace that holds several rollouts -> one trace for each, with an id of its own.

A producer whose spans all stand below one span of the application has one trace id for many rollouts. Each span that
says it is a rollout, and stands below none that does, begins one. The earliest keeps the trace's id and every span that
belongs to none; the id of another is made of the trace's and the span's. Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span

from otel_bridge import semconv
from otel_bridge.translation import spans as reading
from otel_bridge.translation.assembly import Trace
from otel_bridge.translation.producer import Producer

_INHERITED: Final = (semconv.STEP, *semconv.FOREIGN_STEPS, semconv.SPLIT, semconv.GROUP_ID)
"""What a rollout that does not say it takes from the nearest span above it that does."""


def part_id(trace_id: str, span_id: bytes) -> str:
    """Return the id of the rollout that *span_id* begins, unless it is the trace's first."""
    return hashlib.md5(f"{trace_id}\0{span_id.hex()}".encode(), usedforsecurity=False).hexdigest()


@dataclass(frozen=True, slots=True)
class Part:
    """The spans of one rollout, as a trace of its own.

    Attributes:
        trace: Its spans; those of the first keep the ids that they came with.
        beginning: The span that begins it.
        span_ids: Of all its spans.
    """

    trace: Trace
    beginning: bytes
    span_ids: frozenset[bytes]

    def scopes(self) -> Iterable[tuple[Producer, ScopeSpans]]:
        """Return the spans by producer, in their order."""
        found: list[tuple[Producer, ScopeSpans]] = []
        for producer, span in self.trace.spans:
            if not found or found[-1][0] is not producer:
                found.append((producer, ScopeSpans()))
            found[-1][1].spans.append(span)
        return found


def parted(trace: Trace, *, further: bool = False) -> list[Part]:
    """Part *trace* into its rollouts, the earliest first.

    Args:
        trace: The spans that came.
        further: The trace's first rollout is gone already: these follow it, each with an id of its own.

    Returns:
        The parts; when *further*, spans that belong to none of them are left out.
    """
    once: dict[bytes, tuple[Producer, Span]] = {}
    for pair in trace.spans:
        once.setdefault(pair[1].span_id, pair)
    spans = {span_id: span for span_id, (_, span) in once.items()}
    above = _beginnings(spans)
    order = sorted(set(above.values()), key=lambda span_id: (spans[span_id].start_time_unix_nano, span_id))
    parts: list[Part] = []
    for beginning in order:
        first = not parts and not further
        mine = [
            pair for span_id, pair in once.items() if above.get(span_id, b"" if not first else beginning) == beginning
        ]
        placed = _inherited(spans[beginning], spans)
        given = trace.id if first else part_id(trace.id, beginning)
        moved = [
            (producer, _moved(placed if span.span_id == beginning else span, beginning, given, trace.id, spans))
            if not first
            else (producer, placed if span.span_id == beginning else span)
            for producer, span in mine
        ]
        parts.append(Part(Trace(given, moved), beginning, frozenset(span.span_id for _, span in mine)))
    return parts


def _beginnings(spans: Mapping[bytes, Span]) -> dict[bytes, bytes]:
    """Return of each span the one that begins its rollout; spans of none are left out."""
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
    """Make one of spans side by side that name one rollout, as producers do that put its id on every span."""
    first: dict[str, bytes] = {}
    of: dict[bytes, bytes] = {}
    for top in sorted(set(tops.values()), key=lambda span_id: (spans[span_id].start_time_unix_nano, span_id)):
        name = None if spans[top].name == semconv.ROLLOUT_SPAN else _said(spans[top])
        of[top] = top if name is None else first.setdefault(name, top)
    return {span_id: of[top] for span_id, top in tops.items()}


def _said(span: Span) -> str | None:
    return next((pair.value.string_value for pair in span.attributes if pair.key == semconv.ROLLOUT_ID), None)


def _inherited(span: Span, spans: Mapping[bytes, Span]) -> Span:
    """Return *span* with what the spans above it say of its place, where it says nothing itself."""
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
    """Return *span* as one of the trace *given*; what begins it has no parent there, and links the one it had."""
    copy = moved_to(given, span)
    if span.span_id == beginning:
        if not reading.is_root(span):
            copy.links.add(trace_id=bytes.fromhex(trace_id), span_id=span.parent_span_id)
            copy.parent_span_id = b""
    elif span.parent_span_id not in spans or not _inside(span, beginning, spans):
        copy.parent_span_id = beginning
    return copy


def moved_to(trace_id: str, span: Span) -> Span:
    """Return *span* as one of the trace *trace_id*."""
    copy = Span.FromString(span.SerializeToString())
    copy.trace_id = bytes.fromhex(trace_id)
    return copy


def _inside(span: Span, beginning: bytes, spans: Mapping[bytes, Span]) -> bool:
    """Return whether *span* stands below *beginning* or below a span that begins the same rollout beside it."""
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
    """Return those of *found* that may be of a rollout of their own, in a trace whose first rollout is complete.

    Args:
        found: Spans that came.
        known: Spans whose children belong to what is complete; they themselves come again.
        ids: Spans that wait for such a rollout.
    """
    old, waiting = set(known), set(ids)
    rest = [span for span in found if span.span_id not in old]
    moved = True
    while moved:  # a child may stand before its parent
        moved = False
        for span in list(rest):
            if span.parent_span_id in old and not reading.is_marked(span) and span.parent_span_id not in waiting:
                old.add(span.span_id)
                rest.remove(span)
                moved = True
    return [span for span in rest if reading.is_marked(span) or not reading.is_root(span)]
