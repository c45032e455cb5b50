"""Which rollouts of a step are kept, over all workers, and the step's statistics: decided once, kept in the state.

A step is one role's, one split's. It closes when a later step of that role and split comes, after a time without
rollouts, or with the run; what comes after that fills the seats that are left. Rollouts without a step share seats for
one waiting time after the first of them (`Options.step_wait_ns`); then the next such time begins. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from typing import Final, TypeAlias, cast
from urllib.parse import quote

from otel_bridge.records import Json, Row, axis_of, key_of
from otel_bridge.selection import FIRST, Candidate, choose
from otel_bridge.translation.assembly import TRAIN, Facts
from otel_bridge.translation.hearing import Hearing
from otel_bridge.translation.keys import ATTEMPT
from otel_bridge.translation.options import Options
from otel_bridge.translation.state import State
from otel_bridge.translation.statistics import Statistics
from otel_bridge.translation.told import LeftOut

EVAL: Final = "eval"
_STEP: Final = "step/"
_DETAILED: Final = 64
"""Closed steps of a role and split whose groups are remembered, so that late rollouts count exactly."""
_NEVER: Final = 1 << 63
_REMEMBERED: Final = 4_096
"""Closed steps of a role and split whose seats are remembered; an older one would begin anew."""

Track: TypeAlias = tuple[str, str]
"""Role (empty without one) and split."""


def first_start(_axis: str) -> int:
    """Return 1: no role was started again."""
    return 1


class Verdict(Enum):
    """What becomes of a rollout that is complete."""

    KEEP = 1
    LEAVE_OUT = 2
    WAIT = 3


@dataclass(slots=True)
class Step:
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
        attempt: Which start of its role its last rollout came from.
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
    attempt: int = 1
    statistics: Statistics = field(default_factory=Statistics)
    events: list[str] | None = field(default_factory=list[str])
    waiting: dict[str, Facts] = field(default_factory=dict[str, Facts])

    @property
    def role(self) -> str | None:
        """The role."""
        return self.track[0] or None

    @property
    def state_key(self) -> str:
        """Where it lies in the state."""
        role, split = self.track
        return f"{_STEP}{quote(role, safe='')}/{quote(split, safe='')}/{'-' if self.number is None else self.number}"


class Steps:
    """Every step that is open or whose seats are remembered.

    Args:
        state: Key space ``step/``.
        options: Cap, rule and waiting times.
        axes: Returns every axis known so far to its last step.
        waiting: Rollouts that waited for their step when the state was written, and when each came.
        attempt_of: From an axis to the start that its role is in.
    """

    def __init__(
        self,
        state: State,
        options: Options,
        axes: Callable[[], Mapping[str, int]],
        waiting: Iterator[tuple[str, Facts, int]],
        *,
        attempt_of: Callable[[str], int] = first_start,
    ) -> None:
        self._state, self._options, self._axes, self._attempt_of = state, options, axes, attempt_of
        self._open: dict[Track, dict[int | None, Step]] = {}
        self._closed: dict[Track, dict[int | None, Step]] = {}
        self._changed: dict[str, Step] = {}
        self._next_ns = 0
        self._hearing = Hearing(0, 0)
        loaded = sorted((_loaded(value) for _, value in state.items(_STEP)), key=lambda step: step.last_ns)
        for step in loaded:
            (self._closed if step.closed else self._open).setdefault(step.track, {})[step.number] = step
            if step.changed_ns is not None:
                self._changed[step.state_key] = step
        for trace_id, facts, came_ns in waiting:
            step = self._step(facts.role, facts.split, facts.step, came_ns)
            step.waiting[trace_id] = facts
            step.run_id, step.said_ns = step.run_id or facts.run_id, max(step.said_ns, facts.end_unix_ns)
            step.first_ns, step.last_ns = min(step.first_ns, came_ns), max(step.last_ns, came_ns)
            self._started(step)

    def reconsider(self, hearing: Hearing) -> None:
        """Ask anew when each step is due, by *hearing*: since when those could be heard who send rollouts."""
        self._hearing, self._next_ns = hearing, 0

    def passed(self, role: str | None, split: str, number: int | None) -> list[Step]:
        """Return the open steps that a rollout of step *number* closes, the lowest first."""
        steps = self._open.get((role or "", split))
        if number is None or not steps:
            return []
        return sorted((s for n, s in steps.items() if n is not None and n < number), key=lambda step: step.number or 0)

    def take(self, trace_id: str, facts: Facts, now_unix_ns: int) -> Verdict:
        """Decide on a complete rollout, or let it wait for its step."""
        step = self._step(facts.role, facts.split, facts.step, now_unix_ns)
        step.last_ns, step.said_ns = max(step.last_ns, now_unix_ns), max(step.said_ns, facts.end_unix_ns)
        step.run_id = step.run_id or facts.run_id
        self._started(step)
        cap = self.cap(facts.split)
        if not step.closed and self._options.selection != FIRST and cap > 0:
            step.waiting[trace_id] = facts
            return Verdict.WAIT
        step.statistics.add(facts.group, facts.reward)
        kept = step.kept < cap
        step.kept += kept
        self._touched(step, now_unix_ns)
        return Verdict.KEEP if kept else Verdict.LEAVE_OUT

    def left_out(self, told: LeftOut, now_unix_ns: int) -> int:
        """Merge statistics that an emitter sent and that came *now*; return how many rollouts were new."""
        step = self._step(told.role, told.split, told.step, now_unix_ns)
        if step.events is None or told.id in step.events:
            return 0
        before = step.statistics.total
        step.events = [*step.events, told.id]
        step.last_ns, step.said_ns = max(step.last_ns, now_unix_ns), max(step.said_ns, told.said_ns)
        self._started(step)
        step.statistics.add_left_out(told.rollouts, told.sums)
        self._touched(step, now_unix_ns)
        return step.statistics.total - before

    def revise(self, facts: Facts, trace_id: str, revised: Facts) -> None:
        """Replace the facts of a waiting rollout."""
        step = self._open.get((facts.role or "", facts.split), {}).get(facts.step)
        if step is not None and trace_id in step.waiting:
            step.waiting[trace_id] = revised

    def close(self, step: Step, reward_of: Callable[[str, Facts], float | None]) -> tuple[list[str], list[str]]:
        """Choose among the rollouts that wait for *step*.

        Args:
            step: An open step.
            reward_of: The reward of a waiting rollout, late values included.

        Returns:
            Trace ids that are kept, by start time, and those that are left out.
        """
        order = sorted(step.waiting)
        candidates: list[Candidate] = []
        for trace_id in order:
            facts = step.waiting[trace_id]
            reward = reward_of(trace_id, facts)
            candidates.append(Candidate(reward, facts.group, facts.failed, facts.truncated, trace_id))
            step.statistics.add(facts.group, reward)
        seats = max(self.cap(step.track[1]) - step.kept, 0)
        seed = f"{self._options.run_id or step.run_id}/{step.number}"
        chosen = {order[index] for index in choose(candidates, seats, rule=self._options.selection, seed=seed)}
        kept = sorted(chosen, key=lambda trace_id: (step.waiting[trace_id].start_unix_ns, trace_id))
        left = [trace_id for trace_id in order if trace_id not in chosen]
        step.kept += len(kept)
        step.waiting = {}
        self._move(step)
        return kept, left

    def row(self, step: Step) -> Row:
        """Return the statistics of a closed step; a later one of the same step has an id of its own."""
        role, split = step.track
        identity = f"s:{role}:{split}:{step.first_ns if step.number is None else step.number}"
        axis = axis_of(step.role) if step.number is not None else None
        steps = dict(self._axes())
        if axis is not None and step.number is not None:
            steps[axis] = max(step.number, steps.get(axis, step.number))
        values = step.statistics.values(step.kept, None if split == TRAIN else split)
        if step.attempt > 1:
            values = {ATTEMPT: step.attempt, **values}
        row = Row(
            id=f"{identity}:{step.revision}" if step.revision else identity,
            role=step.role,
            step=step.number,
            axis=axis,
            time_unix_ns=step.said_ns or step.last_ns,
            values={key_of(step.role, key): value for key, value in values.items()},
            steps=steps,
            attempt=step.attempt,
        )
        step.revision += 1
        step.changed_ns = None
        self._changed.pop(step.state_key, None)
        if step.number is None:
            self._closed.get(step.track, {}).pop(None, None)
            self._state.delete(step.state_key)
        else:
            self._store(step)
        return row

    def due(self, now_unix_ns: int) -> list[Step]:
        """Return the open steps that have waited long enough, oldest first."""
        if now_unix_ns < self._next_ns:
            return []
        dues = [(self._due_ns(step), step) for steps in self._open.values() for step in steps.values()]
        self._next_ns = min((due_ns for due_ns, _ in dues if due_ns > now_unix_ns), default=_NEVER)
        return sorted((step for due_ns, step in dues if due_ns <= now_unix_ns), key=_age)

    def _due_ns(self, step: Step) -> int:
        start_ns = step.first_ns if step.number is None else step.last_ns
        quiet_ns = self._hearing.due(start_ns, self._options.step_wait_ns)
        return min(quiet_ns, self._hearing.due(step.first_ns, self._options.trace_timeout_ns))

    def corrected(self, now_unix_ns: int | None) -> list[Step]:
        """Return the closed steps whose statistics changed and that have been quiet since; ``None``: all changed."""
        wait = self._options.step_wait_ns
        found = [
            step
            for step in self._changed.values()
            if now_unix_ns is None or (step.changed_ns is not None and now_unix_ns >= step.changed_ns + wait)
        ]
        return sorted(found, key=_age)

    def open(self) -> list[Step]:
        """Return the open steps, oldest first."""
        return sorted((step for steps in self._open.values() for step in steps.values()), key=_age)

    def cap(self, split: str) -> int:
        """Return the seats of a step of *split*."""
        eval_cap = self._options.max_rollouts_eval
        return eval_cap if split == EVAL and eval_cap is not None else self._options.max_rollouts

    def _step(self, role: str | None, split: str, number: int | None, now_unix_ns: int) -> Step:
        track = (role or "", split)
        found = self._open.get(track, {}).get(number) or self._closed.get(track, {}).get(number)
        if found is None:
            found = Step(track, number, now_unix_ns, now_unix_ns)
            self._open.setdefault(track, {})[number] = found
            self._next_ns = min(self._next_ns, self._due_ns(found))
        return found

    def _started(self, step: Step) -> None:
        step.attempt = max(step.attempt, self._attempt_of(axis_of(step.role)))

    def _touched(self, step: Step, now_unix_ns: int) -> None:
        if step.closed:
            step.changed_ns = now_unix_ns
            self._changed[step.state_key] = step
        self._store(step)

    def _move(self, step: Step) -> None:
        """Make an open step a closed one, and remember less of the oldest."""
        steps = self._open.get(step.track, {})
        steps.pop(step.number, None)
        if not steps:
            self._open.pop(step.track, None)
        step.closed = True
        closed = self._closed.setdefault(step.track, {})
        closed[step.number] = step
        if len(closed) > _DETAILED:
            aged = closed[_behind(closed, _DETAILED)]
            if aged.events is not None:
                aged.statistics.fold()
                aged.events = None
                self._store(aged)
        if len(closed) > _REMEMBERED:
            oldest = closed.pop(next(iter(closed)))
            self._changed.pop(oldest.state_key, None)
            self._state.delete(oldest.state_key)

    def _store(self, step: Step) -> None:
        self._state.set(
            step.state_key,
            {
                "track": list(step.track),
                "number": step.number,
                "first": step.first_ns,
                "last": step.last_ns,
                "said": step.said_ns,
                "run": step.run_id,
                "kept": step.kept,
                "closed": step.closed,
                "changed": step.changed_ns,
                "revision": step.revision,
                "attempt": step.attempt,
                "statistics": step.statistics.to_json(),
                "events": step.events,
            },
        )


def _behind(closed: dict[int | None, Step], back: int) -> int | None:
    """Return the key that stands *back* places behind the newest."""
    return next(islice(reversed(closed), back, None))


def _age(step: Step) -> tuple[int, Track, int]:
    return (step.first_ns, step.track, -1 if step.number is None else step.number)


def _loaded(value: object) -> Step:
    fields = cast("dict[str, Json]", value)
    role, split = cast("list[str]", fields["track"])
    return Step(
        track=(role, split),
        number=cast("int | None", fields["number"]),
        first_ns=cast("int", fields["first"]),
        last_ns=cast("int", fields["last"]),
        said_ns=cast("int", fields["said"]),
        run_id=cast("str", fields["run"]),
        kept=cast("int", fields["kept"]),
        closed=cast("bool", fields["closed"]),
        changed_ns=cast("int | None", fields["changed"]),
        revision=cast("int", fields["revision"]),
        attempt=cast("int", fields.get("attempt", 1)),
        statistics=Statistics.from_json(cast("dict[str, Json]", fields["statistics"])),
        events=cast("list[str] | None", fields["events"]),
    )
