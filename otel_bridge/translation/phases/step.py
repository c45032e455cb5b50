"""Phases of processes -> one step of a role that collects them. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from otel_bridge.records import PHASES_ID
from otel_bridge.translation.phases.step_times import PhaseTime, RankTimes
from otel_bridge.translation.processes.process import Process
from otel_bridge.translation.step_rows import CollectedStep


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
