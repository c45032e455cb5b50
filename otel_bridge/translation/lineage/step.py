"""Spans ``rl.train`` -> one training step with the rollouts that it consumed or left unused. Pure.

Source: ``semconv/registry/spans.yaml``, ``span.rl.train``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from otel_bridge.records import LINEAGE_ID
from otel_bridge.translation.step_rows import CollectedStep


@dataclass(slots=True)
class TrainStep(CollectedStep):
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

    def add(self, trace_id: str, unused: str) -> None:
        """Add a rollout. One rank may leave out what another one consumed: then it is consumed."""
        if self.rollouts.get(trace_id) != "":
            self.rollouts[trace_id] = unused
