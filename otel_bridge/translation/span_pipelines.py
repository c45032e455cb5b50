"""Spans of frames -> the pipeline of their kind: phases, training steps, tokens, rollouts. Pure.

Each pipeline takes its own spans of a scope, and the rollouts what is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span

from otel_bridge import semconv
from otel_bridge.records import Record, RolloutRecord
from otel_bridge.translation.frame_decoder import DecodedFrame
from otel_bridge.translation.generated_rollouts import GeneratedRollouts
from otel_bridge.translation.lineage.pipeline import LineagePipeline
from otel_bridge.translation.metrics.third_party_points import ThirdPartyPoints
from otel_bridge.translation.options import OtherTraces
from otel_bridge.translation.phases.pipeline import PhasePipeline
from otel_bridge.translation.processes.producers import ProducerContext
from otel_bridge.translation.rollouts.pipeline import RolloutPipeline
from otel_bridge.translation.run_context import RunContext
from otel_bridge.translation.tokens.pipeline import TokenPipeline

_KINDS = frozenset({semconv.PHASE_SPAN, semconv.TRAIN_SPAN, semconv.TOKENS_SPAN})
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
        generated = GeneratedRollouts(run.state)
        self._points = points
        self.rollouts = RolloutPipeline(
            run.state,
            run.options,
            run.axes,
            other_traces=other_traces,
            processes=run.processes,
            generated=generated,
        )
        self._lineage = LineagePipeline(run, generated, self.rollouts.value)
        self._tokens = TokenPipeline(run, generated, self.rollouts.value)
        self.phases = PhasePipeline(run)

    def take(
        self, frame: DecodedFrame, context: ProducerContext, received: ScopeSpans
    ) -> list[Record]:
        """Process the spans of one scope."""
        now_ns = frame.now_unix_ns
        is_native = received.scope.name == semconv.SCOPE_NAME
        by_kind: dict[str, list[Span]] = {}
        for span in received.spans:
            by_kind.setdefault(_kind_of(span, native=is_native), []).append(span)
        records: list[Record] = []
        if phases := by_kind.pop(semconv.PHASE_SPAN, None):
            received_ns = frame.append_unix_ns if frame.held else 0
            records += self.phases.take(
                context, phases, now_ns, received_ns=received_ns
            )
        if train_spans := by_kind.pop(semconv.TRAIN_SPAN, None):
            records += self._lineage.take(context, train_spans, now_ns)
        if token_spans := by_kind.pop(semconv.TOKENS_SPAN, None):
            records += self._tokens.take(context, token_spans, now_ns)
        if not by_kind:
            return records
        scope = received
        rollout_spans = by_kind[_OTHER]
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
            context.producer.attributes, context.process.instance, scope, now_ns
        )

    def note_shown(self, records: Iterable[Record], now_unix_ns: int) -> None:
        """Note the rollouts among *records*, which trackers get: their tokens are shown with them."""
        for record in records:
            if isinstance(record, RolloutRecord):
                self._tokens.shown(record, now_unix_ns)

    def tick(self, now_unix_ns: int) -> list[Record]:
        """Return what is due."""
        records = self.rollouts.tick(now_unix_ns)
        records += self.phases.tick(now_unix_ns)
        records += self._lineage.tick(now_unix_ns)
        return records + self._tokens.tick(now_unix_ns)

    def close(self, now_unix_ns: int) -> list[Record]:
        """Return everything that waits, since no more data are expected."""
        # The values of consumed rollouts become part of those that still wait for their step.
        values = [*self._lineage.close(now_unix_ns), *self._tokens.close(now_unix_ns)]
        rollouts = self.rollouts.close(now_unix_ns)
        self.note_shown(rollouts, now_unix_ns)
        return [*values, *rollouts, *self._tokens.close_views(), *self.phases.close()]

    @property
    def waiting_steps(self) -> int:
        """Number of steps whose row waits for what is late."""
        stores = (self.phases.steps, self._lineage.steps, self._tokens.steps)
        return sum(steps.waiting for steps in stores)

    def forget(self, instance: str) -> None:
        """Forget a process."""
        self.rollouts.forget(instance)
        self.phases.forget(instance)

    def flush(self) -> None:
        """Write the facts in memory to the state."""
        self.rollouts.flush()
        self.phases.flush()
        self._lineage.flush()
        self._tokens.flush()


def _kind_of(span: Span, *, native: bool) -> str:
    """Return the name by which otel-bridge sends spans of this kind; `_OTHER` for those of rollouts."""
    if span.name in _KINDS:
        return span.name
    # The emitter of otel-bridge gives phases no other name, and the attributes of its rollouts are
    # many.
    if not native and any(pair.key == semconv.PHASE_NAME for pair in span.attributes):
        return semconv.PHASE_SPAN
    return _OTHER
