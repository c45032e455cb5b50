"""Traces that wait, for spans or for their step: in the state as bytes, in memory only what finding them needs.

``trace/meta/<trace id>`` says what is known of a trace, ``trace/spans/<trace id>/<n>`` holds spans as they came with
their producer, ``trace/done/…`` and ``trace/other/…`` remember finished traces, so that a redelivery is recognised.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, cast

import orjson
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span

from otel_bridge import semconv
from otel_bridge.records import Json
from otel_bridge.translation import spans as reading
from otel_bridge.translation.assembly import Facts, Trace
from otel_bridge.translation.attributes import value_of
from otel_bridge.translation.producer import Producer
from otel_bridge.translation.state import State

MAX_SPANS: Final = 20_000
"""Spans of one trace; more is no rollout but an endless span source."""
FURTHER: Final = "+"
"""Behind the id of a trace: spans that came when its first rollout was complete, and may belong to others."""
_META: Final = "trace/meta/"
_SPANS: Final = "trace/spans/"
_KNOWN_SPANS: Final = 256
"""Span ids that are remembered of a finished trace; of a larger one a span that comes again counts as late."""
_KNOWN_BYTES: Final = 4
"""Bytes of a span id that tell the spans of one trace apart well enough."""


@dataclass(slots=True)
class OpenTrace:
    """What is known of a trace that waits.

    Attributes:
        id: 32 hex digits.
        first_ns: When its first span came.
        last_ns: When its last span came.
        span_ids: Of the spans that came.
        chunks: How many values hold its spans.
        size: Their bytes.
        root_ns: When its root came.
        expected: Spans that its root says it has.
        rollout: It is known to be a rollout.
        facts: Set when it is complete and waits for its step.
        marks: Spans that say that they are rollouts, of `span_ids`.
        marked_ns: When the first of them came.
        parts: Rollouts that were parted from it.
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
    facts: Facts | None = None
    marks: set[bytes] = field(default_factory=set[bytes])
    marked_ns: int | None = None
    parts: tuple[str, ...] = ()

    @property
    def base(self) -> str:
        """The id that its spans came with, or were given when they were parted."""
        return self.id.removesuffix(FURTHER)

    @property
    def further(self) -> bool:
        """It holds what came of a trace whose first rollout was complete already."""
        return self.id.endswith(FURTHER)

    @property
    def whole(self) -> bool:
        """All spans that its root announced are there."""
        return self.root_ns is not None and self.expected is not None and len(self.span_ids) >= self.expected

    def add(self, spans: Sequence[Span], now_unix_ns: int) -> None:
        """Note what new spans say of the whole."""
        self.last_ns = max(self.last_ns, now_unix_ns)
        for span in spans:
            self.span_ids.add(span.span_id)
            self.rollout = self.rollout or reading.is_rollout(span)
            root = reading.is_root(span)
            if reading.is_marked(span):
                self.marks.add(span.span_id)
                self.marked_ns = self.marked_ns or now_unix_ns
                root = root or self.further
            if not root and span.name != semconv.ROLLOUT_SPAN:
                continue
            counts = (pair.value for pair in span.attributes if pair.key == semconv.SPAN_COUNT)
            expected = next((reading.as_int(value_of(value)) for value in counts), None)
            if expected is not None and expected > 0:
                self.expected = expected
            if (root or expected is not None) and self.root_ns is None:
                self.root_ns = now_unix_ns


class TraceStore:
    """Every waiting trace, by id, oldest first."""

    def __init__(self, state: State) -> None:
        self._state = state
        found = [_open_trace(key[len(_META) :], value) for key, value in state.items(_META)]
        self.traces = {trace.id: trace for trace in sorted(found, key=lambda trace: (trace.first_ns, trace.id))}
        self.size = sum(trace.size for trace in found)

    def keep(self, trace: OpenTrace, producer: Producer, scope_spans: ScopeSpans) -> None:
        """Store more spans of *trace*."""
        header = [producer.role, producer.run_id, producer.own, dict(producer.facts)]
        chunk = orjson.dumps(header) + b"\n" + scope_spans.SerializeToString()
        self._state.set(f"{_SPANS}{trace.id}/{trace.chunks}", chunk)
        trace.chunks += 1
        trace.size += len(chunk)
        self.size += len(chunk)
        self.traces[trace.id] = trace
        self.note(trace)

    def note(self, trace: OpenTrace) -> None:
        """Store what is known of *trace*."""
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
                _packed(facts) if facts is not None else None,
                b"".join(sorted(trace.marks)).hex(),
                trace.marked_ns,
                list(trace.parts),
            ],
        )

    def read(self, trace: OpenTrace) -> Trace:
        """Return *trace* with its spans, in the order in which they came."""
        spans: list[tuple[Producer, Span]] = []
        for number in range(trace.chunks):
            chunk = self._state.get(f"{_SPANS}{trace.id}/{number}")
            if isinstance(chunk, bytes):
                header, _, payload = chunk.partition(b"\n")
                producer = _producer(orjson.loads(header))
                spans.extend((producer, span) for span in ScopeSpans.FromString(payload).spans)
        return Trace(trace.base, spans)

    def forget(self, trace: OpenTrace) -> None:
        """Take *trace* out of the store."""
        if self.traces.pop(trace.id, None) is None:
            return
        self.size -= trace.size
        for number in range(trace.chunks):
            self._state.delete(f"{_SPANS}{trace.id}/{number}")
        self._state.delete(f"{_META}{trace.id}")


@dataclass(frozen=True, slots=True)
class Ended:
    """A trace that waits no more.

    Attributes:
        kept: Its rollout was emitted; else it was left out.
        key: Where trackers show the rollout.
        span_ids: The end of each of its spans' ids; ``None`` when there were too many to remember.
        marks: Then, the end of the ids of those that said that they are rollouts.
    """

    kept: bool
    key: str
    role: str | None
    step: int | None
    span_ids: frozenset[bytes] | None
    marks: frozenset[bytes] = frozenset()

    @property
    def known(self) -> frozenset[bytes]:
        """Every id of a span that is remembered."""
        return self.marks if self.span_ids is None else self.span_ids


class EndedTraces:
    """The last *limit* finished traces, in the state below *prefix*."""

    def __init__(self, state: State, prefix: str, limit: int) -> None:
        self._state, self._prefix, self._limit = state, prefix, limit
        found = [(cast("list[Json]", value), key[len(prefix) :]) for key, value in state.items(prefix)]
        found.sort(key=lambda pair: cast("int", pair[0][0]))
        self._ended = {trace_id: _ended(value) for value, trace_id in found}
        self._number = cast("int", found[-1][0][0]) if found else 0

    def get(self, trace_id: str) -> Ended | None:
        """Return what became of a trace, ``None`` when it is not remembered."""
        return self._ended.get(trace_id)

    def add(self, trace_id: str, ended: Ended) -> str | None:
        """Remember a trace; return the id of the one that is forgotten for it."""
        self._number += 1
        ids = b"".join(sorted(ended.span_ids)).hex() if ended.span_ids is not None else None
        fields = [self._number, ended.kept, ended.key, ended.role, ended.step, ids, b"".join(sorted(ended.marks)).hex()]
        self._state.set(f"{self._prefix}{trace_id}", fields)
        self._ended[trace_id] = ended
        if len(self._ended) <= self._limit:
            return None
        oldest = next(iter(self._ended))
        del self._ended[oldest]
        self._state.delete(f"{self._prefix}{oldest}")
        return oldest


def ended_as(trace: OpenTrace, key: str, role: str | None, step: int | None, *, kept: bool) -> Ended:
    """Return *trace* as it is remembered."""
    few = len(trace.span_ids) <= _KNOWN_SPANS
    return Ended(
        kept, key, role, step, _tails(trace.span_ids) if few else None, frozenset() if few else _tails(trace.marks)
    )


def tail(span_id: bytes) -> bytes:
    """Return what is remembered of the id of a span of a finished trace."""
    return span_id[-_KNOWN_BYTES:]


def _tails(span_ids: set[bytes]) -> frozenset[bytes]:
    return frozenset(map(tail, span_ids))


def unknown(ended: Ended, spans: Sequence[Span]) -> int:
    """Return how many of *spans* were not part of a finished trace."""
    return len({tail(span.span_id) for span in spans} - (ended.span_ids or frozenset()))


def _split_ids(text: str, size: int) -> list[bytes]:
    raw = bytes.fromhex(text)
    return [raw[at : at + size] for at in range(0, len(raw), size)]


def _open_trace(trace_id: str, value: object) -> OpenTrace:
    fields = [*cast("list[Json]", value), "", None, []]  # the last three are missing in older ledgers
    packed = fields[8]
    return OpenTrace(
        id=trace_id,
        first_ns=cast("int", fields[0]),
        last_ns=cast("int", fields[1]),
        span_ids=set(_split_ids(cast("str", fields[2]), 8)),
        chunks=cast("int", fields[3]),
        size=cast("int", fields[4]),
        root_ns=cast("int | None", fields[5]),
        expected=cast("int | None", fields[6]),
        rollout=cast("bool", fields[7]),
        facts=_unpacked(cast("list[Json]", packed)) if packed is not None else None,
        marks=set(_split_ids(cast("str", fields[9]), 8)),
        marked_ns=cast("int | None", fields[10]),
        parts=tuple(cast("list[str]", fields[11])),
    )


def _packed(facts: Facts) -> list[Json]:
    return [
        facts.role, facts.split, facts.step, facts.group, facts.reward, facts.failed, facts.truncated,
        facts.start_unix_ns, facts.end_unix_ns, facts.run_id,
    ]  # fmt: skip


def _unpacked(fields: list[Json]) -> Facts:
    return Facts(
        role=cast("str | None", fields[0]),
        split=cast("str", fields[1]),
        step=cast("int | None", fields[2]),
        group=cast("str | None", fields[3]),
        reward=cast("float | None", fields[4]),
        failed=cast("bool", fields[5]),
        truncated=cast("bool", fields[6]),
        start_unix_ns=cast("int", fields[7]),
        end_unix_ns=cast("int", fields[8]),
        run_id=cast("str", fields[9]),
    )


def _producer(header: Sequence[Json]) -> Producer:
    role, run_id, own, facts = header
    return Producer(cast("str | None", role), cast("str", run_id), cast("bool", own), cast("dict[str, Json]", facts))


def _ended(fields: list[Json]) -> Ended:
    ids = fields[5]
    return Ended(
        kept=cast("bool", fields[1]),
        key=cast("str", fields[2]),
        role=cast("str | None", fields[3]),
        step=cast("int | None", fields[4]),
        span_ids=frozenset(_split_ids(ids, _KNOWN_BYTES)) if isinstance(ids, str) else None,
        marks=frozenset(_split_ids(cast("str", fields[6]), _KNOWN_BYTES)) if len(fields) > 6 else frozenset(),
    )
