"""One step of a role and split: its seats, its statistics and the rollouts that wait for its choice. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias, cast
from urllib.parse import quote

from otel_bridge.records import Json
from otel_bridge.translation.rollouts.assembly import EVAL, SamplingFacts
from otel_bridge.translation.rollouts.sampled_out import SampledOut
from otel_bridge.translation.rollouts.statistics import Statistics

STEPS: Final = "step/"
"""Key space of the state."""

Track: TypeAlias = tuple[str, str, int]
"""Role (empty without one), split, and which start of the role."""


@dataclass(slots=True)
class SampledStep:
    """One step of one role and split.

    Attributes:
        number: ``None``: rollouts without a step.
        first_ns: When its first rollout came.
        last_ns: When its last rollout came.
        said_ns: When, by what their senders say, its last rollout ended: the time of its statistics.
        kept: Seats taken.
        closed: The choice is made.
        changed_ns: When a rollout came after the statistics were sent; ``None``: none did.
        revision: How often the statistics were sent.
        passed_ns: When every worker was past it and only rollouts under way were still awaited.
        events: Ids of the emitters' statistics that are in; ``None`` once they are forgotten.
        waiting: Rollouts that wait for the choice, by trace id.
    """

    track: Track
    number: int | None
    first_ns: int
    last_ns: int
    said_ns: int = 0
    run_id: str = ""
    kept: int = 0
    closed: bool = False
    changed_ns: int | None = None
    revision: int = 0
    passed_ns: int | None = None
    statistics: Statistics = field(default_factory=Statistics)
    events: list[str] | None = field(default_factory=list[str])
    waiting: dict[str, SamplingFacts] = field(default_factory=dict[str, SamplingFacts])

    @property
    def role(self) -> str | None:
        """The role."""
        return self.track[0] or None

    @property
    def attempt(self) -> int:
        """Which start of its role it belongs to."""
        return self.track[2]

    @property
    def state_key(self) -> str:
        """Where it lies in the state."""
        role, split, attempt = self.track
        number = "-" if self.number is None else self.number
        later = f"@{attempt}" if attempt > 1 else ""
        return f"{STEPS}{quote(role, safe='')}/{quote(split, safe='')}/{number}{later}"

    def see(self, came_ns: int, facts: SamplingFacts) -> None:
        """Note that a rollout of the step came."""
        self.first_ns, self.last_ns = min(self.first_ns, came_ns), max(self.last_ns, came_ns)
        self.said_ns = max(self.said_ns, facts.end_unix_ns)
        self.run_id = self.run_id or facts.run_id

    def restore(self, trace_id: str, facts: SamplingFacts, came_ns: int) -> None:
        """Add a rollout that waited before a restart of the bridge."""
        self.waiting[trace_id] = facts
        self.see(came_ns, facts)

    def revise(self, trace_id: str, facts: SamplingFacts) -> None:
        """Replace what is known of a rollout that waits."""
        self.waiting[trace_id] = facts
        self.said_ns = max(self.said_ns, facts.end_unix_ns)

    def seat(self, facts: SamplingFacts, cap: int) -> bool:
        """Count a rollout that does not wait; return whether it gets one of *cap* seats."""
        self.statistics.add(facts.group, facts.reward, facts.staleness)
        kept = self.kept < cap
        self.kept += kept
        return kept

    def takes(self, event: SampledOut) -> bool:
        """Return whether statistics that an emitter sent are new, as far as that is known."""
        return self.events is not None and event.id not in self.events

    def merge(self, event: SampledOut, came_ns: int) -> int:
        """Merge the statistics that an emitter sent; return how many rollouts were new."""
        before = self.statistics.total
        self.events = [*(self.events or []), event.id]
        self.last_ns, self.said_ns = max(self.last_ns, came_ns), max(self.said_ns, event.said_ns)
        self.statistics.add_sampled_out(event.rollouts, event.sums)
        if event.staleness is not None and event.split != EVAL:
            self.statistics.staleness.add(*event.staleness)
        return self.statistics.total - before

    def count(self, trace_ids: Iterable[str], rewards: Mapping[str, float | None]) -> None:
        """Move rollouts that waited into the statistics, as they are decided on."""
        for trace_id in trace_ids:
            facts = self.waiting.pop(trace_id)
            self.statistics.add(facts.group, rewards[trace_id], facts.staleness)

    def close(self, kept: int) -> None:
        """Note that the choice is made, with *kept* seats more."""
        self.kept += kept
        self.closed = True

    def change(self, now_unix_ns: int) -> None:
        """Note that a rollout came after the statistics were sent."""
        self.changed_ns = now_unix_ns

    def sent(self) -> None:
        """Note that the statistics are sent as they are now."""
        self.revision += 1
        self.changed_ns = None

    def passed_at(self, passed_ns: int | None) -> bool:
        """Note when every worker was past the step; return whether that is new."""
        new, self.passed_ns = self.passed_ns != passed_ns, passed_ns
        return new

    def forget_details(self) -> bool:
        """Keep the sums of the statistics alone; return whether there was more."""
        if self.events is None:
            return False
        self.statistics.fold()
        self.events = None
        return True

    def to_json(self) -> dict[str, Json]:
        """Return it as the state keeps it, without the rollouts that wait."""
        return {
            "track": [*self.track],
            "number": self.number,
            "first": self.first_ns,
            "last": self.last_ns,
            "said": self.said_ns,
            "run": self.run_id,
            "kept": self.kept,
            "closed": self.closed,
            "changed": self.changed_ns,
            "revision": self.revision,
            "passed": self.passed_ns,
            "statistics": self.statistics.to_json(),
            "events": None if self.events is None else [*self.events],
        }

    @classmethod
    def from_json(cls, value: object) -> SampledStep:
        """Return what `to_json` made, or an older version of it."""
        fields = cast("dict[str, Json]", value)
        role, split, *attempt = cast("list[str | int]", fields["track"])
        if not attempt:  # as older ledgers have it
            attempt = [cast("int", fields.get("attempt", 1))]
        return cls(
            track=(str(role), str(split), int(attempt[0])),
            number=cast("int | None", fields["number"]),
            first_ns=cast("int", fields["first"]),
            last_ns=cast("int", fields["last"]),
            said_ns=cast("int", fields["said"]),
            run_id=cast("str", fields["run"]),
            kept=cast("int", fields["kept"]),
            closed=cast("bool", fields["closed"]),
            changed_ns=cast("int | None", fields["changed"]),
            revision=cast("int", fields["revision"]),
            passed_ns=cast("int | None", fields.get("passed")),
            statistics=Statistics.from_json(cast("dict[str, Json]", fields["statistics"])),
            events=cast("list[str] | None", fields["events"]),
        )
