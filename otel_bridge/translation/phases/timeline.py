"""Facts of a phase that the timeline shows beside those of its row. Pure data."""

from __future__ import annotations

from dataclasses import dataclass

from otel_bridge.translation.phases.span import PhaseSpan


@dataclass(frozen=True, slots=True)
class TimelinePhase:
    """Holds one phase, with its process.

    Attributes:
        role: Role of the phase; empty without one.
        rank: Rank of its process.
        instance: Instance of its process.
        attempt: Attempt of the role.
        forked: Whether the process is a forked child, whose time is not that of a step.
        host: Name of the machine; empty if unknown.
        received_ns: Time at which the receiver accepted the phase, by the clock of its machine. 0:
            the process wrote it on the machine of the bridge, so that there is only one clock.
    """

    phase: PhaseSpan
    role: str
    rank: int
    instance: str
    host: str
    received_ns: int
    attempt: int = 1
    forked: bool = False
