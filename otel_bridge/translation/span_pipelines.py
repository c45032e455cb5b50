"""Spans of frames -> the pipeline of their kind: phases, training steps, tokens, rollouts. Pure.

Each pipeline takes its own spans of a scope, and the rollouts what is left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span

from otel_bridge import semconv
from otel_bridge.records import Record, RolloutRecord
from otel_bridge.translation.decode.attributes import keys_of
from otel_bridge.translation.frame_decoder import DecodedFrame
from otel_bridge.translation.lineage.pipeline import LineagePipeline
from otel_bridge.translation.metrics.third_party_points import ThirdPartyPoints
from otel_bridge.translation.options import OtherTraces
from otel_bridge.translation.phases.pipeline import PhasePipeline
from otel_bridge.translation.processes.producers import ProducerContext
from otel_bridge.translation.rollouts.pipeline import RolloutPipeline
from otel_bridge.translation.run_context import RunContext
from otel_bridge.translation.step_rows import SpanBatch, SpanPipeline
from otel_bridge.translation.tokens.pipeline import TokenPipeline

_OTHER = ""


class SpanPipelines:
    """Gives the spans of one run to their pipelines.

    Args:
        run: The run.
        points: Rows of third-party producers, whose spans may carry some.
        other_traces: Callable that decides on a trace that is not a rollout.

    Attributes:
        rollouts: The rollouts of the run.
        phases: The phases of its steps.
    """

    def __init__(
        self,
        run: RunContext,
        points: ThirdPartyPoints,
        other_traces: Callable[[], OtherTraces],
    ) -> None:
        self._points = points
        self.rollouts = RolloutPipeline(run, other_traces)
        self._lineage = LineagePipeline(run, self.rollouts)
        self._tokens = TokenPipeline(run, self.rollouts)
        self.phases = PhasePipeline(run)
        self._by_kind: dict[str, SpanPipeline[Any, Any]] = {
            semconv.PHASE_SPAN: self.phases,
            semconv.TRAIN_SPAN: self._lineage,
            semconv.TOKENS_SPAN: self._tokens,
        }

    def take(
        self, frame: DecodedFrame, context: ProducerContext, received: ScopeSpans
    ) -> list[Record]:
        """Process the spans of one scope; return the records that they complete.

        Spans of no other kind are those of rollouts, or of traces on which `other_traces` decides.
        """
        is_native = received.scope.name == semconv.SCOPE_NAME
        by_kind: dict[str, list[Span]] = {}
        for span in received.spans:
            by_kind.setdefault(self._kind_of(span, native=is_native), []).append(span)
        records: list[Record] = []
        for kind, pipeline in self._by_kind.items():
            if kind in by_kind:
                records += pipeline.take(SpanBatch(frame, context, by_kind[kind]))
        rollout_spans = by_kind.get(_OTHER)
        if rollout_spans is None:
            return records
        scope = received
        if len(rollout_spans) < len(received.spans):
            scope = ScopeSpans(
                scope=received.scope,
                spans=rollout_spans,
                schema_url=received.schema_url,
            )
        # Our emitter sends numbers as metrics; only third-party spans carry some of a row.
        if not is_native:
            records += self._points.of_spans(context.producer, context.process, scope)
        return records + self.rollouts.spans(
            context.producer,
            context.process.instance,
            scope,
            frame.now_unix_ns,
        )

    def finished(self, records: list[Record], now_unix_ns: int) -> list[Record]:
        """Return *records* of a frame or tick with the values of rollouts that have arrived in it.

        The tokens of rollouts among them, which trackers get, are shown with them.
        """
        for record in records:
            if isinstance(record, RolloutRecord):
                self._tokens.shown(record, now_unix_ns)
        return records + self._lineage.arrived(now_unix_ns)

    def tick(self, now_unix_ns: int) -> list[Record]:
        """Return what is due."""
        records = self.rollouts.tick(now_unix_ns)
        for pipeline in self._by_kind.values():
            records += pipeline.tick(now_unix_ns)
        return records

    def close(self, now_unix_ns: int) -> list[Record]:
        """Return everything that waits, since no more data are expected.

        Pages come after the rollouts, whose messages they show.
        """
        # The values of consumed rollouts become part of those that still wait for their step.
        values = self._lineage.arrived(now_unix_ns)
        values += self._lineage.close(now_unix_ns)
        values += self._tokens.close(now_unix_ns)
        rollouts = self.finished(self.rollouts.close(now_unix_ns), now_unix_ns)
        # Again, since steps may have consumed rollouts that are complete only now.
        rollouts += self._lineage.close(now_unix_ns)
        phases = self.phases.close(now_unix_ns)
        return [*values, *rollouts, *self._tokens.close_pages(), *phases]

    @property
    def waiting_steps(self) -> int:
        """Number of steps whose row waits for what is late."""
        return sum(pipeline.waiting for pipeline in self._by_kind.values())

    def forget(self, instance: str) -> None:
        """Forget a process."""
        self.rollouts.forget(instance)
        for pipeline in self._by_kind.values():
            pipeline.forget(instance)

    def flush(self) -> None:
        """Write the facts in memory to the state."""
        self.rollouts.flush()
        for pipeline in self._by_kind.values():
            pipeline.flush()

    def _kind_of(self, span: Span, *, native: bool) -> str:
        """Return the name by which otel-bridge sends spans of this kind; `_OTHER` for those of rollouts."""
        if span.name in self._by_kind:
            return span.name
        # The emitter of otel-bridge gives phases no other name, and the attributes of its rollouts
        # are many.
        if not native and semconv.PHASE_NAME in keys_of(span.attributes):
            return semconv.PHASE_SPAN
        return _OTHER
