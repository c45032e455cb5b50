"""Spans ``rl.phase`` -> one step of a role whose phases are collected. Pure.

Source: ``semconv/registry/spans.yaml``, ``span.rl.phase``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_bridge import semconv
from otel_bridge.records import PHASES_ID, Json
from otel_bridge.translation.decode.attributes import text_in
from otel_bridge.translation.phases.step_times import PhaseTime, RankTimes
from otel_bridge.translation.processes.process import Process
from otel_bridge.translation.step_rows import CollectedStep

_MAX_NAME_CHARS = 128


def read_phase(span: Span, attributes: Mapping[str, Json]) -> PhaseTime | None:
    """Return the phase that *span* describes; ``None`` without a name or possible times.

    The caller counts it then. A start of 0 is one that a producer left out, and would make the
    phase as long as the time since 1970.
    """
    name = text_in(attributes, semconv.PHASE_NAME)[:_MAX_NAME_CHARS]
    outer = text_in(attributes, semconv.PHASE_OUTER)[:_MAX_NAME_CHARS]
    start_ns = span.start_time_unix_nano
    end_ns = span.end_time_unix_nano
    if name and 0 < start_ns <= end_ns:
        return PhaseTime(name, outer, start_ns, end_ns)
    return None


@dataclass(slots=True)
class PhaseStep(CollectedStep):
    """Holds one step of one role and attempt, which is closed once its row was sent.

    Attributes:
        ranks: Instance of each process to its phases.
    """

    SPACE: ClassVar[str] = "phase"
    ROW_ID: ClassVar[str] = PHASES_ID

    ranks: dict[str, RankTimes] = field(default_factory=dict[str, RankTimes])

    def add(self, process: Process, phase: PhaseTime) -> None:
        """Add a phase of *process*; a rank may have several processes, such as forked children."""
        rank = self.ranks.setdefault(
            process.instance, RankTimes(process.rank, process.forked)
        )
        rank.phases.append(phase)
