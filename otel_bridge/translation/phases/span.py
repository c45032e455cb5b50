"""OTLP spans -> phases of steps. Pure.

Source: ``semconv/registry/spans.yaml``, ``span.rl.phase``. A span of any producer with
``rl.phase.name`` is a phase.
"""

from __future__ import annotations

from dataclasses import dataclass

from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span

from otel_bridge import semconv
from otel_bridge.translation.decode.attributes import int_in, mapping_of, text_in
from otel_bridge.translation.decode.scope_split import split_spans

_MAX_NAME_CHARS = 128


@dataclass(frozen=True, slots=True)
class PhaseSpan:
    """Holds one phase of a step, as its process measured it.

    Attributes:
        name: Name of the phase.
        outer: Name of the phase of the same step around it; empty: none.
        role: Role of the phase, if it is not that of its process.
    """

    name: str
    outer: str
    step: int
    role: str | None
    start_unix_ns: int
    end_unix_ns: int


def split_phases(scope_spans: ScopeSpans) -> tuple[list[Span], ScopeSpans | None]:
    """Separate the phases of one scope from its other spans; see `split_spans`."""
    is_native = scope_spans.scope.name == semconv.SCOPE_NAME
    return split_spans(scope_spans, lambda span: _is_phase(span, native=is_native))


def _is_phase(span: Span, *, native: bool) -> bool:
    if span.name == semconv.PHASE_SPAN:
        return True
    # The emitter of otel-bridge gives phases no other name, and the attributes of its rollouts are
    # many.
    return not native and any(
        pair.key == semconv.PHASE_NAME for pair in span.attributes
    )


def read_phase(span: Span) -> PhaseSpan | None:
    """Return the phase that *span* describes; ``None`` without a name, step or possible times."""
    attributes = mapping_of(span.attributes)
    name = text_in(attributes, semconv.PHASE_NAME)[:_MAX_NAME_CHARS]
    step = int_in(attributes, semconv.STEP)
    if (
        not name
        or step is None
        or not 0 < span.start_time_unix_nano <= span.end_time_unix_nano
    ):
        return None
    return PhaseSpan(
        name,
        text_in(attributes, semconv.PHASE_OUTER)[:_MAX_NAME_CHARS],
        step,
        text_in(attributes, semconv.ROLE) or None,
        span.start_time_unix_nano,
        span.end_time_unix_nano,
    )
