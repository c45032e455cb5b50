"""One step of a role whose phases are collected, and its state. Pure.

Owns ``phase/step/`` (facts of a step) and ``phase/time/`` (phases of one process in it) of the
state. A batch writes only the processes that sent something.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, cast
from urllib.parse import quote

from otel_bridge.records import Json
from otel_bridge.translation.phases.span import PhaseSpan
from otel_bridge.translation.phases.step_times import PhaseTime, RankTimes
from otel_bridge.translation.processes.process import Process
from otel_bridge.translation.state import TranslationState
from otel_bridge.translation.step_rows import Track

STEPS: Final = "phase/step/"
TIMES: Final = "phase/time/"
MAX_PHASES: Final = 4_000
"""Most phases of one process in one step."""


@dataclass(slots=True)
class PhaseStep:
    """Holds one step of one role and attempt.

    Attributes:
        last_ns: Arrival time of the last phase.
        sender_ns: Latest end of a phase by the senders' clocks: the time of the row.
        passed_ns: Time at which every process was past the step; not stored.
        closed: Whether the row was sent.
        changed_ns: Arrival time of a phase after the row was sent; ``None``: no such phase.
        revision: Number of times that the row was sent.
        ranks: Instance of each process to its phases.
        size: Number of phases.
        ends: By phase, the processes that ended it with the time of its last end, by the sender's clock.
    """

    track: Track
    number: int
    last_ns: int = 0
    sender_ns: int = 0
    passed_ns: int | None = None
    closed: bool = False
    changed_ns: int | None = None
    revision: int = 0
    ranks: dict[str, RankTimes] = field(default_factory=dict[str, RankTimes])
    size: int = 0
    ends: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])
    _changed: set[str] = field(default_factory=set[str])

    @property
    def role(self) -> str | None:
        """Role of the step."""
        return self.track[0] or None

    def add(self, process: Process, phase: PhaseSpan, now_unix_ns: int) -> bool:
        """Add a phase of *process*; return whether there was room. One that is there already changes nothing."""
        rank = self.ranks.get(process.instance)
        if rank is None:
            rank = RankTimes(process.rank, process.forked)
            self.ranks[process.instance] = rank
        time = PhaseTime(phase.name, phase.outer, phase.start_unix_ns, phase.end_unix_ns)
        if time in rank.phases:
            return True
        if len(rank.phases) >= MAX_PHASES:
            return False
        rank.phases.add(time)
        self.size += 1
        self._note_end(process.instance, time)
        self.last_ns = max(self.last_ns, now_unix_ns)
        self.sender_ns = max(self.sender_ns, phase.end_unix_ns)
        if self.closed:
            self.changed_ns = now_unix_ns
        self._changed.add(process.instance)
        return True

    def _note_end(self, instance: str, phase: PhaseTime) -> None:
        # Not computed when it is read: a report asks for it up to ten times a second.
        of_phase = self.ends.setdefault(phase.name, {})
        of_phase[instance] = max(of_phase.get(instance, 0), phase.end_ns)

    def sent(self) -> None:
        """Note that the row is sent."""
        self.closed = True
        self.changed_ns = None
        self.revision += 1
        self._changed.add("")

    def restore(self, instance: str, rank: RankTimes) -> None:
        """Add the phases of a process as they were stored."""
        self.ranks[instance] = rank
        self.size += len(rank.phases)
        for phase in rank.phases:
            self._note_end(instance, phase)

    def passed_at(self, passed_ns: int | None) -> None:
        """Note the time at which every process was past the step."""
        self.passed_ns = passed_ns

    def store(self, state: TranslationState) -> None:
        """Write what changed to *state*."""
        if not self._changed:
            return
        facts: list[Json] = [
            *self.track, self.number, self.last_ns, self.sender_ns, self.closed, self.changed_ns, self.revision,
        ]  # fmt: skip
        state.set(f"{STEPS}{self._name}", facts)
        for instance in self._changed & self.ranks.keys():
            state.set(f"{TIMES}{self._name}/{instance}", self.ranks[instance].to_json())
        self._changed.clear()

    def delete(self, state: TranslationState) -> None:
        """Remove the step from *state*."""
        state.delete(f"{STEPS}{self._name}")
        for instance in self.ranks:
            state.delete(f"{TIMES}{self._name}/{instance}")

    @property
    def _name(self) -> str:
        role, attempt = self.track
        return f"{quote(role, safe='')}/{self.number}@{attempt}"


def stored_steps(state: TranslationState) -> list[PhaseStep]:
    """Return the steps of *state*, in the order of their last phase."""
    steps: dict[str, PhaseStep] = {}
    for key, value in state.items(STEPS):
        facts = cast("tuple[str, int, int, int, int, bool, int | None, int]", value)
        role, attempt, number, last_ns, sender_ns, closed, changed_ns, revision = facts
        steps[key.removeprefix(STEPS)] = PhaseStep(
            (role, attempt), number, last_ns, sender_ns,
            closed=closed, changed_ns=changed_ns, revision=revision,
        )  # fmt: skip
    for key, value in state.items(TIMES):
        name, _, instance = key.removeprefix(TIMES).rpartition("/")
        if name in steps:
            steps[name].restore(instance, RankTimes.from_json(value))
    return sorted(steps.values(), key=lambda step: step.last_ns)
