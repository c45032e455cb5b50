"""OTLP spans -> phases of steps. Pure.

Source: ``semconv/registry/spans.yaml``, ``span.rl.phase``. A span of any producer with ``rl.phase.name`` is a phase.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span

from otel_bridge import semconv
from otel_bridge.translation.decode.attributes import int_in, mapping_of, text_in

_MAX_NAME_CHARS: Final = 128


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
    """Separate the phases of one scope from its other spans.

    Returns:
        The phases, and the scope without them: the same message if there are none, ``None`` if nothing else is left.
    """
    is_native = scope_spans.scope.name == semconv.SCOPE_NAME
    phases = [span for span in scope_spans.spans if _is_phase(span, native=is_native)]
    if not phases:
        return [], scope_spans
    if len(phases) == len(scope_spans.spans):
        return phases, None
    others = [span for span in scope_spans.spans if not _is_phase(span, native=is_native)]
    return phases, ScopeSpans(scope=scope_spans.scope, spans=others, schema_url=scope_spans.schema_url)


def _is_phase(span: Span, *, native: bool) -> bool:
    if span.name == semconv.PHASE_SPAN:
        return True
    # The emitter of otel-bridge gives phases no other name, and the attributes of its rollouts are many.
    return not native and any(pair.key == semconv.PHASE_NAME for pair in span.attributes)


def read_phase(span: Span) -> PhaseSpan | None:
    """Return the phase that *span* describes; ``None`` without a name, step or possible times."""
    attributes = mapping_of(span.attributes)
    name = text_in(attributes, semconv.PHASE_NAME)[:_MAX_NAME_CHARS]
    step = int_in(attributes, semconv.STEP)
    if not name or step is None or not 0 < span.start_time_unix_nano <= span.end_time_unix_nano:
        return None
    return PhaseSpan(
        name,
        text_in(attributes, semconv.PHASE_OUTER)[:_MAX_NAME_CHARS],
        step,
        text_in(attributes, semconv.ROLE) or None,
        span.start_time_unix_nano,
        span.end_time_unix_nano,
    )
