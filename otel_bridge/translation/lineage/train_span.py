"""Spans ``rl.train`` -> the rollouts that a training step consumed or left unused. Pure.

Source: ``semconv/registry/spans.yaml``, ``span.rl.train``.
"""

from __future__ import annotations

from dataclasses import dataclass

from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span

from otel_bridge import semconv
from otel_bridge.translation.decode.attributes import int_in, mapping_of, text_in
from otel_bridge.translation.decode.scope_split import split_spans
from otel_bridge.translation.span_steps import StepSpan

_MAX_REASON_CHARS = 64


@dataclass(frozen=True, slots=True)
class TrainSpan(StepSpan):
    """Holds one span of a training step, as received.

    Attributes:
        unused: Reason for which the rollouts are not used; empty: they are consumed.
    """

    unused: str


def split_train_spans(scope_spans: ScopeSpans) -> tuple[list[Span], ScopeSpans | None]:
    """Separate the spans of training steps from the other spans of one scope; see `split_spans`."""
    return split_spans(scope_spans, lambda span: span.name == semconv.TRAIN_SPAN)


def read_train_span(span: Span) -> TrainSpan | None:
    """Return the training step that *span* describes.

    ``None`` without a step, a time or a link to a rollout.
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
        rollouts,
        span.end_time_unix_nano,
        text_in(attributes, semconv.TRAIN_UNUSED)[:_MAX_REASON_CHARS],
    )
