"""Spans ``rl.train`` -> one training step with the rollouts that it consumed or left unused. Pure.

Source: ``semconv/registry/spans.yaml``, ``span.rl.train``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_bridge import semconv
from otel_bridge.records import LINEAGE_ID
from otel_bridge.translation.decode.attributes import int_in, mapping_of, text_in
from otel_bridge.translation.step_rows import SpanStep, StepSpan

_MAX_REASON_CHARS = 64


@dataclass(frozen=True, slots=True)
class TrainSpan(StepSpan):
    """Holds one span of a training step, as received.

    Attributes:
        unused: Reason for which the rollouts are not used; empty: they are consumed.
    """

    unused: str = ""


def read_train_span(span: Span) -> TrainSpan | None:
    """Return the training step that *span* describes, each rollout once.

    ``None`` without a step, a time or a link to a rollout; the caller counts it then. Links with
    another length of id than 16 bytes are ignored: they name no trace.
    """
    attributes = mapping_of(span.attributes)
    step = int_in(attributes, semconv.STEP)
    rollouts = tuple(
        dict.fromkeys(
            link.trace_id.hex() for link in span.links if len(link.trace_id) == 16
        )
    )
    if step is None or not rollouts or not span.end_time_unix_nano:
        return None
    return TrainSpan(
        span.span_id.hex(),
        step,
        text_in(attributes, semconv.ROLE) or None,
        span.end_time_unix_nano,
        rollouts,
        text_in(attributes, semconv.TRAIN_UNUSED)[:_MAX_REASON_CHARS],
    )


@dataclass(slots=True)
class TrainStep(SpanStep):
    """Holds one training step of one role and attempt.

    Attributes:
        rollouts: Trace id of each rollout to the reason for which the step left it out; empty: the
            step consumed it.
    """

    SPACE: ClassVar[str] = "lineage"
    ROW_ID: ClassVar[str] = LINEAGE_ID

    rollouts: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def size(self) -> int:
        """Number of spans, and of rollouts that the step consumed or left out."""
        return len(self.spans) + len(self.rollouts)

    @property
    def consumed(self) -> list[str]:
        """Trace ids of the rollouts that the step consumed."""
        return [trace_id for trace_id, reason in self.rollouts.items() if not reason]

    def add(self, span: TrainSpan) -> None:
        """Add the rollouts of a span. One rank may leave out what another one consumed: then it is consumed."""
        for trace_id in span.rollouts:
            if self.rollouts.get(trace_id) != "":
                self.rollouts[trace_id] = span.unused
