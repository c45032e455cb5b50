"""One step of a role whose phases are collected, and its state. Pure.

Owns ``phase/step/`` (facts of a step) and ``phase/time/`` (phases of one process in it) of the
state. A batch writes only the processes that sent something.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, cast

from otel_bridge.records import PHASES_ID, Json
from otel_bridge.translation.phases.span import PhaseSpan
from otel_bridge.translation.phases.step_times import PhaseTime, RankTimes
from otel_bridge.translation.processes.process import Process
from otel_bridge.translation.state import TranslationState, named
from otel_bridge.translation.step_rows import CollectedStep

TIMES = "phase/time/"
MAX_PHASES = 4_000
"""Most phases of one process in one step."""


@dataclass(slots=True)
class PhaseStep(CollectedStep):
    """Holds one step of one role and attempt, which is closed once its row was sent.

    Attributes:
        passed_ns: Time at which every process was past the step; not stored.
        ranks: Instance of each process to its phases.
        size: Number of phases.
        ends: By phase, the processes that ended it with the time of its last end, by the sender's
            clock.
    """

    SPACE: ClassVar[str] = "phase"
    ROW_ID: ClassVar[str] = PHASES_ID

    passed_ns: int | None = None
    ranks: dict[str, RankTimes] = field(default_factory=dict[str, RankTimes])
    size: int = 0
    ends: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])
    _changed: set[str] = field(default_factory=set[str])

    @property
    def closed(self) -> bool:
        """Whether the row was sent; a phase that arrives later changes it."""
        return self.revision > 0

    def add(self, process: Process, phase: PhaseSpan, now_unix_ns: int) -> bool:
        """Add a phase of *process*.

        Return whether there was room. One that is there already changes nothing.
        """
        rank = self.ranks.get(process.instance)
        if rank is None:
            rank = RankTimes(process.rank, process.forked)
            self.ranks[process.instance] = rank
        time = PhaseTime(
            phase.name, phase.outer, phase.start_unix_ns, phase.end_unix_ns
        )
        if time in rank.phases:
            return True
        if len(rank.phases) >= MAX_PHASES:
            return False
        rank.phases.add(time)
        self.size += 1
        self._note_end(process.instance, time)
        self.arrive(now_unix_ns, phase.end_unix_ns)
        # An open step gets its row anyway; only a sent one must be corrected.
        if self.closed:
            self.change(now_unix_ns)
        self._changed.add(process.instance)
        return True

    def _note_end(self, instance: str, phase: PhaseTime) -> None:
        # Not computed when it is read: a report asks for it up to ten times a second.
        of_phase = self.ends.setdefault(phase.name, {})
        of_phase[instance] = max(of_phase.get(instance, 0), phase.end_ns)

    def restore(self, instance: str, rank: RankTimes) -> None:
        """Add the phases of a process as they were stored."""
        self.ranks[instance] = rank
        self.size += len(rank.phases)
        for phase in rank.phases:
            self._note_end(instance, phase)

    def passed_at(self, passed_ns: int | None) -> None:
        """Note the time at which every process was past the step."""
        self.passed_ns = passed_ns

    def to_json(self) -> Json:
        """Return the facts of the step as stored in the state.

        The phases of each process have keys of their own.
        """
        return [
            *self.track, self.number, self.last_ns, self.end_unix_ns, self.closed, self.changed_ns, self.revision,
        ]  # fmt: skip

    @classmethod
    def from_json(cls, value: object) -> PhaseStep:
        """Restore what `to_json` returned."""
        facts = cast("tuple[str, int, int, int, int, bool, int | None, int]", value)
        role, attempt, number, last_ns, end_unix_ns, _, changed_ns, revision = facts
        return cls((role, attempt), number, last_ns, end_unix_ns, changed_ns, revision)

    def store(self, state: TranslationState) -> None:
        """Write the facts of the step to *state*, and the phases of the processes that have sent any since."""
        super(PhaseStep, self).store(state)
        for instance in self._changed:
            state.set(f"{TIMES}{self.name}/{instance}", self.ranks[instance].to_json())
        self._changed.clear()

    def delete(self, state: TranslationState) -> None:
        """Remove the step from *state*."""
        super(PhaseStep, self).delete(state)
        for instance in self.ranks:
            state.delete(f"{TIMES}{self.name}/{instance}")

    @classmethod
    def stored(cls, state: TranslationState) -> list[PhaseStep]:
        """Return the steps in *state*."""
        # Not super(): within a dataclass with slots it fails before Python 3.14.
        steps = {step.name: step for step in super(PhaseStep, cls).stored(state)}
        for key, value in named(state, TIMES).items():
            name, _, instance = key.rpartition("/")
            if name in steps:
                steps[name].restore(instance, RankTimes.from_json(value))
        return list(steps.values())
