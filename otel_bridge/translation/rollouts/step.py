"""One step of a role and split: its seats, its statistics and the rollouts that wait for sampling. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias
from urllib.parse import quote

from otel_bridge.records import is_evaluation
from otel_bridge.translation.packing import NOT_STORED
from otel_bridge.translation.rollouts.assembly import SamplingFacts
from otel_bridge.translation.rollouts.sampled_out import SampledOut
from otel_bridge.translation.rollouts.statistics import Statistics

STEPS = "step/"
"""Key space of the state."""

Track: TypeAlias = tuple[str, str, int]
"""Role (empty without one), split, and attempt of the role."""


@dataclass(slots=True)
class SampledStep:
    """Holds one step of one role and split.

    Attributes:
        number: Number of the step; ``None``: rollouts without a step.
        first_ns: Arrival time of the first rollout.
        last_ns: Arrival time of the last rollout.
        sender_ns: End of the last rollout by the senders' clocks: the time of the statistics.
        kept: Number of seats taken.
        closed: Whether the step is sampled.
        changed_ns: Arrival time of a rollout after the statistics were sent; ``None``: no such
            rollout.
        revision: Number of times that the statistics were sent.
        passed_ns: Time at which every worker was past the step and only rollouts under way were
            awaited.
        events: Ids of the merged statistics of emitters; ``None`` once the ids are forgotten.
        waiting: Rollouts that wait for sampling, by trace id; the state holds them with their
            traces.
    """

    track: Track
    number: int | None
    first_ns: int
    last_ns: int
    sender_ns: int = 0
    run_id: str = ""
    kept: int = 0
    closed: bool = False
    changed_ns: int | None = None
    revision: int = 0
    passed_ns: int | None = None
    statistics: Statistics = field(default_factory=Statistics)
    events: list[str] | None = field(default_factory=list[str])
    waiting: dict[str, SamplingFacts] = field(
        default_factory=dict[str, SamplingFacts], metadata=NOT_STORED
    )

    @property
    def role(self) -> str | None:
        """Role of the step."""
        return self.track[0] or None

    @property
    def attempt(self) -> int:
        """Attempt of the role that the step belongs to."""
        return self.track[2]

    @property
    def key(self) -> tuple[Track, int | None]:
        """Track and number."""
        return self.track, self.number

    @property
    def state_key(self) -> str:
        """Key of the step in the state."""
        role, split, attempt = self.track
        number = "-" if self.number is None else self.number
        later = f"@{attempt}" if attempt > 1 else ""
        return f"{STEPS}{quote(role, safe='')}/{quote(split, safe='')}/{number}{later}"

    def see(self, came_ns: int, facts: SamplingFacts) -> None:
        """Note that a rollout of the step arrived."""
        # Rollouts of a restored step come in any order.
        self.first_ns = min(self.first_ns, came_ns)
        self.last_ns = max(self.last_ns, came_ns)
        self.sender_ns = max(self.sender_ns, facts.end_unix_ns)
        self.run_id = self.run_id or facts.run_id

    def wait(self, trace_id: str, facts: SamplingFacts, came_ns: int) -> None:
        """Add a rollout that waits for sampling, or replace its facts."""
        self.waiting[trace_id] = facts
        self.see(came_ns, facts)

    def seat(self, facts: SamplingFacts, cap: int) -> bool:
        """Count a rollout that does not wait.

        Return whether the rollout gets one of *cap* seats.
        """
        self.statistics.add(facts.group, facts.reward, facts.staleness)
        has_seat = self.kept < cap
        self.kept += has_seat
        return has_seat

    def takes(self, event: SampledOut) -> bool:
        """Return whether an emitter's statistics are new, as far as known."""
        return self.events is not None and event.id not in self.events

    def merge(self, event: SampledOut, came_ns: int) -> int:
        """Merge an emitter's statistics; return the number of new rollouts.

        A redelivered one must be refused by `takes` before: it would count again. Sums that are not
        valid are left out (`Statistics.add_sampled_out`), and their rollouts still count.
        """
        old_total = self.statistics.total
        self.events = [*(self.events or []), event.id]
        self.last_ns = max(self.last_ns, came_ns)
        self.sender_ns = max(self.sender_ns, event.sender_ns)
        self.statistics.add_sampled_out(event.rollouts, event.sums)
        # An evaluator counts steps of its own, which say nothing about the policy.
        if event.staleness is not None and not is_evaluation(event.split):
            self.statistics.staleness.add(*event.staleness)
        return self.statistics.total - old_total

    def count(
        self, trace_ids: Iterable[str], rewards: Mapping[str, float | None]
    ) -> None:
        """Move waiting rollouts into the statistics, when sampling has decided on them."""
        for trace_id in trace_ids:
            facts = self.waiting.pop(trace_id)
            self.statistics.add(facts.group, rewards[trace_id], facts.staleness)

    def close(self, new_seats: int) -> None:
        """Note that the step is sampled, with *new_seats* more seats taken."""
        self.kept += new_seats
        self.closed = True

    def change(self, now_unix_ns: int) -> None:
        """Note that a rollout arrived after the statistics were sent."""
        self.changed_ns = now_unix_ns

    def sent(self) -> None:
        """Note that the current statistics are sent."""
        self.revision += 1
        self.changed_ns = None

    def passed_at(self, passed_ns: int | None) -> bool:
        """Note the time at which every worker was past the step.

        Return whether this time changed.
        """
        has_changed = self.passed_ns != passed_ns
        self.passed_ns = passed_ns
        return has_changed

    def forget_details(self) -> bool:
        """Drop all details but the sums of the statistics; return whether there were details.

        Groups and ids of thousands of steps would fill the state. Late rollouts still count, each
        group as new.
        """
        if self.events is None:
            return False
        # Late statistics of the step are refused from now on: they cannot be recognised.
        self.statistics.fold()
        self.events = None
        return True
