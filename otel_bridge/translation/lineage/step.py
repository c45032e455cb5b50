"""One training step whose spans are collected, and its state. Pure.

Owns ``lineage/step/`` of the state.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, cast
from urllib.parse import quote

from otel_bridge.records import Json
from otel_bridge.translation.lineage.train_span import TrainSpan
from otel_bridge.translation.state import TranslationState
from otel_bridge.translation.step_rows import Track

STEPS: Final = "lineage/step/"
_MAX_ROLLOUTS: Final = 200_000
_MAX_SPANS: Final = 20_000
"""Most spans of one step, each of a rank and up to 10,000 rollouts."""


@dataclass(slots=True)
class TrainStep:
    """Holds one training step of one role and attempt.

    Attributes:
        last_ns: Arrival time of the last span.
        end_unix_ns: Latest end of a span by the senders' clocks: the time of the row.
        spans: Ids of the spans, so that a redelivered one changes nothing.
        consumed: Trace ids of the rollouts.
        unused: Trace ids of rollouts that are left out, to the reason.
        changed_ns: Arrival time of what changes the row since; ``None``: nothing.
        revision: Number of times that the row was sent.
    """

    track: Track
    number: int
    last_ns: int = 0
    end_unix_ns: int = 0
    spans: dict[str, None] = field(default_factory=dict[str, None])
    consumed: dict[str, None] = field(default_factory=dict[str, None])
    unused: dict[str, str] = field(default_factory=dict[str, str])
    changed_ns: int | None = None
    revision: int = 0

    @property
    def role(self) -> str | None:
        """Role of the step."""
        return self.track[0] or None

    @property
    def state_key(self) -> str:
        """Key of the step in the state."""
        role, attempt = self.track
        return f"{STEPS}{quote(role, safe='')}/{self.number}@{attempt}"

    def add(self, span: TrainSpan, now_unix_ns: int) -> bool | None:
        """Add a span; return whether it is new, ``None`` when the step has no room for it."""
        if span.id in self.spans:
            return False
        rollouts = len(self.consumed) + len(self.unused) + len(span.rollouts)
        if rollouts > _MAX_ROLLOUTS or len(self.spans) >= _MAX_SPANS:
            return None
        self.spans[span.id] = None
        if span.unused:
            self.unused |= dict.fromkeys(span.rollouts, span.unused)
        else:
            self.consumed |= dict.fromkeys(span.rollouts)
        self.last_ns = max(self.last_ns, now_unix_ns)
        self.end_unix_ns = max(self.end_unix_ns, span.end_unix_ns)
        self.change(now_unix_ns)
        return True

    def names(self, trace_id: str) -> bool:
        """Return whether the step consumed a rollout, or left it out."""
        return trace_id in self.consumed or trace_id in self.unused

    def change(self, now_unix_ns: int) -> None:
        """Note that the row would be another one now."""
        self.changed_ns = now_unix_ns

    def sent(self) -> None:
        """Note that the row is sent."""
        self.changed_ns = None
        self.revision += 1

    def store(self, state: TranslationState) -> None:
        """Write the step to *state*."""
        facts: list[Json] = [
            *self.track, self.number, self.last_ns, self.end_unix_ns, self.changed_ns, self.revision,
            "".join(self.spans), "".join(self.consumed), {**self.unused},
        ]  # fmt: skip
        state.set(self.state_key, facts)

    @classmethod
    def from_json(cls, value: object) -> TrainStep:
        """Restore what `store` wrote."""
        facts = cast("tuple[str, int, int, int, int, int | None, int, str, str, dict[str, str]]", value)
        role, attempt, number, last_ns, end_unix_ns, changed_ns, revision, spans, consumed, unused = facts
        return cls(
            (role, attempt), number, last_ns, end_unix_ns, _ids(spans, 16), _ids(consumed, 32),
            dict(unused), changed_ns=changed_ns, revision=revision,
        )  # fmt: skip


def _ids(joined: str, digits: int) -> dict[str, None]:
    return dict.fromkeys(joined[start : start + digits] for start in range(0, len(joined), digits))
