"""Sampling of each step's rollouts, over all workers, and the step's statistics.

Decided once, kept in the state.

A step belongs to one role, one split and one attempt of the role. A step closes in one of three
cases: every living worker is past it (`step_workers.py`), all workers reached it and rollouts
stopped for a while, or the run ends. Later rollouts take the remaining seats. Rollouts without a
step share seats for one waiting time after the first of them
(`TranslationOptions.step_watermark_ns`); then the next waiting time begins. Which of a step's
rollouts get the seats is the rule of `otel_bridge.sampling_rule`. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from itertools import islice
from typing import TypeAlias

from otel_bridge.records import STATISTICS_ID, TRAIN, Row, axis_of, is_evaluation
from otel_bridge.sampling_rule import FIRST, choose
from otel_bridge.translation.metrics.keys import ATTEMPT, keyed
from otel_bridge.translation.packing import packed, unpacked_below
from otel_bridge.translation.processes.step_workers import StepProgress, StepWorkers
from otel_bridge.translation.rollouts.assembly import SamplingFacts
from otel_bridge.translation.rollouts.sampled_out import SampledOut
from otel_bridge.translation.rollouts.step import STEPS, SampledStep, Track
from otel_bridge.translation.rollouts.trace_store import PendingTrace
from otel_bridge.translation.run_context import RunContext

_DETAILED = 256
"""Number of closed steps whose groups are remembered, so that late rollouts count exactly."""
_NEVER = 1 << 63
_STEPLESS = "stepless/last"
"""Key of the state: the highest number in the id of statistics of rollouts without a step."""
_LOOK_NS = 1_000_000_000
"""Interval at which open steps are checked, since workers may start and end meanwhile."""
_REMEMBERED = 16_384
"""Number of closed steps whose seats are remembered; an older step would begin anew."""
_StepKey: TypeAlias = tuple[Track, int | None]


class SamplingDecision(Enum):
    """Holds the decision on a complete rollout."""

    KEEP = 1
    LEAVE_OUT = 2
    WAIT = 3


class StepSampler:
    """Samples every step that is open or whose seats are remembered.

    Args:
        run: The run; key spaces ``step/``, ``stepless/`` of its state.
        traces: All stored traces, some of which are rollouts that wait for their step.
        workers: Progress of each worker.
        reward_of: Callable that returns the reward of a waiting rollout, evaluations included.
    """

    def __init__(
        self,
        run: RunContext,
        traces: Iterable[PendingTrace],
        workers: StepWorkers,
        reward_of: Callable[[str, SamplingFacts], float | None],
    ) -> None:
        self._state = run.state
        self._options = run.options
        self._axes = run.axes
        self._reward_of = reward_of
        self._workers = workers
        self._open: dict[_StepKey, SampledStep] = {}
        self._closed: dict[_StepKey, SampledStep] = {}
        """In the order in which they closed: the first one is forgotten first."""
        self._changed: dict[_StepKey, SampledStep] = {}
        self._next_ns = 0
        self._receive_clock = run.receive_clock
        loaded = unpacked_below(SampledStep, run.state, STEPS).values()
        for step in sorted(loaded, key=lambda step: step.last_ns):
            (self._closed if step.closed else self._open)[step.key] = step
            if step.changed_ns is not None:
                self._changed[step.key] = step
        # Their facts are stored with their traces, and not with the step again.
        for trace in traces:
            self.wait(trace)

    def wait(self, trace: PendingTrace) -> None:
        """Hold a rollout for its step, or replace its facts.

        Nothing for a trace that waits for spans.
        """
        facts = trace.facts
        if facts is not None:
            came_ns = trace.complete_ns or trace.last_ns
            step = self._step(facts.track, facts.step, came_ns)
            step.wait(trace.id, facts, came_ns)

    def reconsider(self) -> None:
        """Compute the due time of each step again."""
        self._next_ns = 0

    def take(
        self, trace_id: str, facts: SamplingFacts, now_unix_ns: int
    ) -> SamplingDecision:
        """Decide on a complete rollout, or hold it for its step.

        A rollout of a closed step takes a seat that is left, since its step was sampled already.
        """
        step = self._step(facts.track, facts.step, now_unix_ns)
        cap = self.cap(facts.split)
        # With ``first``, or without seats, the decision depends on no other rollout.
        if not step.closed and self._options.selection != FIRST and cap > 0:
            step.wait(trace_id, facts, now_unix_ns)
            return SamplingDecision.WAIT
        step.see(now_unix_ns, facts)
        has_seat = step.seat(facts, cap)
        self._touched(step, now_unix_ns)
        if has_seat:
            return SamplingDecision.KEEP
        return SamplingDecision.LEAVE_OUT

    def sampled_out(
        self, sampled_out: SampledOut, attempt: int, now_unix_ns: int
    ) -> int:
        """Merge an emitter's statistics that arrive *now*; return the number of new rollouts.

        0 for a redelivered event, and for one of a step whose details are forgotten, which cannot
        recognise a redelivery.
        """
        step = self._step(
            (sampled_out.role or "", sampled_out.split, attempt),
            sampled_out.step,
            now_unix_ns,
        )
        if not step.takes(sampled_out):
            return 0
        new = step.merge(sampled_out, now_unix_ns)
        self._touched(step, now_unix_ns)
        return new

    def close(self, step: SampledStep) -> tuple[list[str], list[str]]:
        """Sample the rollouts that wait for *step*, and close the step.

        The choice is made once all rollouts of the step are there, because the best one may be the
        last.

        Returns:
            Trace ids of the kept rollouts, by start time, and of the sampled-out rollouts. Both are
            empty when nothing waits.
        """
        seats = max(self.cap(step.track[1]) - step.kept, 0)
        chosen, rewards = self._chosen(step, seats)
        by_start = sorted(
            chosen,
            key=lambda trace_id: (step.waiting[trace_id].start_unix_ns, trace_id),
        )
        sampled_out = sorted(step.waiting.keys() - chosen)
        # Sorted: sums of floats depend on their order, and a kill must not change them.
        step.count(sorted(step.waiting), rewards)
        step.close(len(by_start))
        self._move(step)
        return by_start, sampled_out

    def thin(self) -> list[str]:
        """Sample early in the open step with the most rollouts beyond its seats.

        The step stays open. That frees the most room. What is kept now is compared again when the
        step closes.

        Returns:
            Trace ids that are sampled out; empty when no open step has more rollouts than seats.
        """
        step = max(self.open(), key=self._excess, default=None)
        if step is None or self._excess(step) <= 0:
            return []
        chosen, rewards = self._chosen(step, self.cap(step.track[1]))
        sampled_out = sorted(step.waiting.keys() - chosen)
        step.count(sampled_out, rewards)
        self._store(step)
        return sampled_out

    def _excess(self, step: SampledStep) -> int:
        return len(step.waiting) - self.cap(step.track[1])

    def _chosen(
        self, step: SampledStep, seats: int
    ) -> tuple[set[str], Mapping[str, float | None]]:
        """Return the ids of at most *seats* rollouts that wait for *step*, selected by the rule, and all rewards by id.

        The seed names run and step, and the order is that of ids, so that a kill, a redelivery and
        another order of arrival give the same choice.
        """
        # By id, so that the choice does not depend on the order of arrival.
        order = sorted(step.waiting)
        rewards: dict[str, float | None] = {}
        groups: list[str | None] = []
        failed: list[int] = []
        truncated: list[int] = []
        for index, trace_id in enumerate(order):
            rollout = step.waiting[trace_id]
            rewards[trace_id] = self._reward_of(trace_id, rollout)
            groups.append(rollout.group)
            if rollout.failed:
                failed.append(index)
            if rollout.truncated:
                truncated.append(index)
        # The same choice after a kill and at a redelivery.
        seed = f"{self._options.run_id or step.run_id}/{step.number}"
        chosen = choose(
            list(rewards.values()),
            groups,
            seats,
            failed=failed,
            truncated=truncated,
            key=order.__getitem__,
            rule=self._options.selection,
            seed=seed,
        )
        return {order[index] for index in chosen}, rewards

    def row(self, step: SampledStep) -> Row:
        """Return the statistics of a closed step as a row.

        Later statistics of the same step have another id.

        Writers show each id once, so a correction needs another one. Statistics without a step are
        forgotten once they are sent: later rollouts begin new ones.
        """
        role, split, attempt = step.track
        number = self._stepless_number(step) if step.number is None else step.number
        identity = f"{STATISTICS_ID}{role}:{split}:{number}"
        identity += f":a{attempt}" if attempt > 1 else ""
        axis = None
        steps = self._axes.steps()
        if step.number is not None:
            axis = axis_of(step.role)
            steps[axis] = step.number
        values = step.statistics.values(step.kept, None if split == TRAIN else split)
        if step.attempt > 1:
            values = {ATTEMPT: step.attempt, **values}
        row = Row(
            id=f"{identity}:{step.revision}" if step.revision else identity,
            role=step.role,
            step=step.number,
            axis=axis,
            time_unix_ns=step.sender_ns or step.last_ns,
            values=keyed(values, step.role),
            steps=steps,
            attempt=step.attempt,
        )
        step.sent()
        self._changed.pop(step.key, None)
        if step.number is None:
            self._forget(step)
        else:
            self._store(step)
        return row

    def _stepless_number(self, step: SampledStep) -> int:
        """Return a new number for rollouts without a step: the arrival time of the first, made unique.

        It is part of the id of their statistics, so the highest one is stored: a clock that is set
        back must not give an id twice.
        """
        last_number = self._state.get(_STEPLESS)
        number = step.first_ns
        if isinstance(last_number, int):
            number = max(step.first_ns, last_number + 1)
        self._state.set(_STEPLESS, number)
        return number

    def due(self, now_unix_ns: int) -> list[SampledStep]:
        """Return the open steps that have waited long enough, or that every worker is past; earlier steps first.

        Empty before the next check (`_LOOK_NS`), because this runs for each frame.
        """
        # Also when the clock was set back, else the next check could be hours away.
        if self._next_ns - _LOOK_NS <= now_unix_ns < self._next_ns:
            return []
        due: list[SampledStep] = []
        self._next_ns = now_unix_ns + _LOOK_NS
        reaches: dict[tuple[str, str], StepProgress] = {}
        for step in self._open.values():
            role, split, attempt = step.track
            if (role, split) not in reaches:
                reaches[role, split] = self._workers.reach(role, split, now_unix_ns)
            reach = reaches[role, split]
            # The workers of an earlier attempt are gone, so that its steps get no more rollouts.
            if attempt < self._axes.current(axis_of(role or None)):
                reach = StepProgress(_NEVER, reach.settles, [])
            due_ns = self._due_ns(step, reach, now_unix_ns)
            if due_ns <= now_unix_ns:
                due.append(step)
            else:
                self._next_ns = min(due_ns, self._next_ns)
        # In the order of their numbers, so that trackers get the rows of a role in order.
        return sorted(
            due, key=lambda step: (step.attempt, step.number or 0, step.track)
        )

    def _due_ns(self, step: SampledStep, reach: StepProgress, now_unix_ns: int) -> int:
        """Return the time at which *step* closes; it may be past.

        The watermark counts from the last rollout, without a step from the first, since such
        rollouts never end. A worker that is behind puts it off, at most by the step's time-out.

        Args:
            step: An open step.
            reach: Progress of the workers of its role and split.
            now_unix_ns: Now.
        """
        due = self._receive_clock.due
        options = self._options
        quiet_ns = due(
            step.first_ns if step.number is None else step.last_ns,
            options.step_watermark_ns,
        )
        # No worker can pass a step without a number.
        if step.number is None:
            return quiet_ns
        behind_ns = reach.behind_since(step.number)
        if behind_ns is not None:
            quiet_ns = max(
                quiet_ns, due(min(behind_ns, step.last_ns), options.step_timeout_ns)
            )
        # However slow its workers are: a step must not wait for ever for one that hangs.
        at_most_ns = due(step.first_ns, options.step_timeout_ns)
        return min(quiet_ns, at_most_ns, self._passed_ns(step, reach, now_unix_ns))

    def _passed_ns(
        self, step: SampledStep, reach: StepProgress, now_unix_ns: int
    ) -> int:
        """Return the time at which *step* closes because every worker is past it; `_NEVER` while one is not.

        Data of remote workers may overtake each other, so that it waits ``row_wait_ns`` more for
        them.
        """
        if (
            step.number is None
            or step.number >= reach.past_below
            or step.number in reach.under_way
        ):
            self._note_passed(step, None)
            return _NEVER
        # Local segments are read in order: nothing of the step is still under way.
        if not reach.settles:
            return now_unix_ns
        self._note_passed(step, step.passed_ns or now_unix_ns)
        due_ns = self._receive_clock.due(
            step.passed_ns or now_unix_ns, self._options.row_wait_ns
        )
        self._next_ns = min(self._next_ns, due_ns)
        return due_ns

    def _note_passed(self, step: SampledStep, passed_ns: int | None) -> None:
        # Stored, so that a restarted bridge does not begin this wait anew.
        if step.passed_at(passed_ns):
            self._store(step)

    def corrected(self, now_unix_ns: int) -> list[SampledStep]:
        """Return the changed closed steps without rollouts since.

        It waits as a step does, so that many late rollouts give one further row.
        """
        last_ns = now_unix_ns - self._options.step_watermark_ns
        changed = [
            step
            for step in self._changed.values()
            if (step.changed_ns or _NEVER) <= last_ns
        ]
        return sorted(changed, key=_age)

    def open(self) -> list[SampledStep]:
        """Return the open steps, oldest first."""
        return sorted(self._open.values(), key=_age)

    def cap(self, split: str) -> int:
        """Return the number of seats of a step of *split*."""
        eval_cap = self._options.max_rollouts_eval
        if is_evaluation(split) and eval_cap is not None:
            return eval_cap
        return self._options.max_rollouts

    def _step(self, track: Track, number: int | None, now_unix_ns: int) -> SampledStep:
        """Return the open or closed step of this number, or a new open one.

        A step older than the last `_REMEMBERED` closed ones begins anew, with all its seats.
        """
        key = (track, number)
        step = self._open.get(key) or self._closed.get(key)
        if step is None:
            step = SampledStep(track, number, now_unix_ns, now_unix_ns)
            self._open[key] = step
            self._next_ns = min(self._next_ns, now_unix_ns + _LOOK_NS)
        return step

    def _touched(self, step: SampledStep, now_unix_ns: int) -> None:
        if step.closed:
            step.change(now_unix_ns)
            self._changed[step.key] = step
        self._store(step)

    def _move(self, step: SampledStep) -> None:
        """Move an open step to the closed steps, and drop details of the oldest.

        Groups and events of `_DETAILED` steps are kept, for late rollouts; seats of `_REMEMBERED`
        ones.
        """
        self._open.pop(step.key, None)
        self._closed[step.key] = step
        # One step closes at a time, so one has become too old.
        if len(self._closed) > _DETAILED:
            aged = next(islice(reversed(self._closed.values()), _DETAILED, None))
            if aged.forget_details():
                self._store(aged)
        while len(self._closed) > _REMEMBERED:
            self._forget(next(iter(self._closed.values())))

    def _forget(self, step: SampledStep) -> None:
        """Remove a closed step from memory and from the state."""
        self._closed.pop(step.key, None)
        self._changed.pop(step.key, None)
        self._state.delete(step.state_key)

    def _store(self, step: SampledStep) -> None:
        self._state.set(step.state_key, packed(step))


def _age(step: SampledStep) -> tuple[int, Track, int]:
    return (step.first_ns, step.track, -1 if step.number is None else step.number)
