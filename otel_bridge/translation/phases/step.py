"""Spans ``rl.phase`` -> one step of a role whose phases are collected. Pure.

Source: ``semconv/registry/spans.yaml``, ``span.rl.phase``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_bridge import semconv
from otel_bridge.records import PHASES_ID
from otel_bridge.translation.decode.attributes import int_in, mapping_of, text_in
from otel_bridge.translation.phases.step_times import PhaseTime, RankTimes
from otel_bridge.translation.processes.process import Process
from otel_bridge.translation.step_rows import SpanStep, StepSpan

_MAX_NAME_CHARS = 128


@dataclass(frozen=True, slots=True)
class PhaseSpan(StepSpan):
    """Holds one phase of a step, as its process measured it."""

    time: PhaseTime = field(kw_only=True)


def read_phase(span: Span) -> PhaseSpan | None:
    """Return the phase that *span* describes; ``None`` without a name, step or possible times.

    The caller counts it then. A start of 0 is one that a producer left out, and would make the
    phase as long as the time since 1970.
    """
    attributes = mapping_of(span.attributes)
    name = text_in(attributes, semconv.PHASE_NAME)[:_MAX_NAME_CHARS]
    step = int_in(attributes, semconv.STEP)
    has_times = 0 < span.start_time_unix_nano <= span.end_time_unix_nano
    if not name or step is None or not has_times:
        return None
    outer = text_in(attributes, semconv.PHASE_OUTER)[:_MAX_NAME_CHARS]
    return PhaseSpan(
        span.span_id.hex(),
        step,
        text_in(attributes, semconv.ROLE) or None,
        span.end_time_unix_nano,
        time=PhaseTime(name, outer, span.start_time_unix_nano, span.end_time_unix_nano),
    )


@dataclass(slots=True)
class PhaseStep(SpanStep):
    """Holds one step of one role and attempt, which is closed once its row was sent.

    Attributes:
        ranks: Instance of each process to its phases.
    """

    SPACE: ClassVar[str] = "phase"
    ROW_ID: ClassVar[str] = PHASES_ID

    ranks: dict[str, RankTimes] = field(default_factory=dict[str, RankTimes])

    def add(self, process: Process, phase: PhaseTime) -> None:
        """Add a phase of *process*; a rank may have several processes, such as forked children."""
        if process.instance not in self.ranks:
            self.ranks[process.instance] = RankTimes(process.rank, process.forked)
        self.ranks[process.instance].phases.append(phase)
