"""One training step whose spans are collected, and its state. Pure.

Owns ``lineage/step/`` of the state.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, cast

from otel_bridge.records import LINEAGE_ID, Json
from otel_bridge.translation.lineage.train_span import TrainSpan
from otel_bridge.translation.span_steps import SpanStep, ids_of

_TRACE_DIGITS = 32


@dataclass(slots=True)
class TrainStep(SpanStep):
    """Holds one training step of one role and attempt.

    Attributes:
        consumed: Trace ids of the rollouts.
        unused: Trace ids of rollouts that are left out, to the reason.
    """

    SPACE: ClassVar[str] = "lineage"
    ROW_ID: ClassVar[str] = LINEAGE_ID

    consumed: dict[str, None] = field(default_factory=dict[str, None])
    unused: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def rollouts(self) -> int:
        """Number of rollouts that the step consumed or left out."""
        return len(self.consumed) + len(self.unused)

    def add(self, span: TrainSpan) -> None:
        """Add the rollouts of a span."""
        if span.unused:
            self.unused |= dict.fromkeys(span.rollouts, span.unused)
        else:
            self.consumed |= dict.fromkeys(span.rollouts)

    def names(self, trace_id: str) -> bool:
        """Return whether the step consumed a rollout, or left it out."""
        return trace_id in self.consumed or trace_id in self.unused

    def to_json(self) -> Json:
        """Return the step as stored in the state."""
        return [
            *self.track, self.number, self.last_ns, self.end_unix_ns, self.changed_ns, self.revision,
            # One text: as a list, 200,000 ids would cost their quotes and commas in each commit.
            "".join(self.spans), "".join(self.consumed), {**self.unused},
        ]  # fmt: skip

    @classmethod
    def from_json(cls, value: object) -> TrainStep:
        """Restore what `to_json` returned."""
        facts = cast(
            "tuple[str, int, int, int, int, int | None, int, str, str, dict[str, str]]",
            value,
        )
        (
            role,
            attempt,
            number,
            last_ns,
            end_unix_ns,
            changed_ns,
            revision,
            spans,
            consumed,
            unused,
        ) = facts
        return cls(
            (role, attempt), number, last_ns, end_unix_ns, changed_ns, revision,
            ids_of(spans), ids_of(consumed, _TRACE_DIGITS), dict(unused),
        )  # fmt: skip
