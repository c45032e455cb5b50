"""Events of the timeline: phases as they arrive, beside what the ledger makes of records. Pure data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias


class TimelineEvent(NamedTuple):
    """Holds one event of the timeline.

    Attributes:
        kind: ``phase``, ``rollout``, ``turn``, ``tool``, ``span`` or ``mark``.
        name: Name of the phase or span; id of the rollout; empty for a mark, which is a row of the
            step.
        track: Instance of the process of a phase; id of the rollout of its spans; else empty.
        start_ns: Start by the sender's clock.
        end_ns: End by the sender's clock.
        facts: For a phase ``rank`` and ``host`` (empty if unknown), and, where they apply,
            ``outer``, ``attempt`` above 1, ``forked`` (its time is not that of a step) and
            ``received_ns`` (when a receiver accepted it, by the clock of its machine); for a
            rollout its ``reward``, ``group`` and ``error``; for a mark the rates of its row.
    """

    kind: str
    name: str
    track: str
    start_ns: int
    end_ns: int
    facts: Mapping[str, Any]


TimelinePhase: TypeAlias = tuple[str, int, TimelineEvent]
"""Role (empty without one), step, and event of one phase."""
