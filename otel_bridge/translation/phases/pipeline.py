"""Phases of all processes -> one row a step and role, once every process is past the step. Pure.

A step closes when every living process of its role has sent a phase of a later step, when no
phase came for `TranslationOptions.step_timeout_ns`, or when the run ends. Rollouts have a
shorter wait, but a phase may last for hours. Processes that have sent no phase yet are
awaited for `TranslationOptions.step_watermark_ns`. A phase that arrives after its row gives a
further row, which replaces the values of the first.
Bad input is counted (``drop/phase/<reason>``) and never raises.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any, cast

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_bridge import semconv
from otel_bridge.records import Record, Row, axis_of
from otel_bridge.translation.decode.attributes import text_in
from otel_bridge.translation.phases.slow_ranks import (
    AwaitedRank,
    SlowRankOfSteps,
    SlowRanks,
    awaited_rank,
)
from otel_bridge.translation.phases.step import PhaseStep, read_phase
from otel_bridge.translation.phases.step_times import PhaseTime, RankTimes, step_values
from otel_bridge.translation.phases.timeline import TimelineEvent, TimelinePhase
from otel_bridge.translation.processes.producers import ProducerContext
from otel_bridge.translation.rollouts.step_workers import StepProgress, StepWorkers
from otel_bridge.translation.run_context import RunContext
from otel_bridge.translation.state import count
from otel_bridge.translation.step_rows import SpanStepStore

TOO_MANY_NAMES = "phase/too_many_names"
UNCLOSED = "phase/unclosed"
_PACE = "phase/pace/"
_NAMES = "phase/names"
_MAX_NAMES = 256
"""Most names of phases in a run; each becomes several keys of metrics."""
_OTHER = "other"
"""Name of the phases beyond the limit."""
_RECENT = 8
"""Number of steps in which a rank has had a phase before it is awaited in it."""
_NEVER = 1 << 63


class PhasePipeline:
    """Collects the phases of one run.

    Args:
        run: The run; key space ``phase/`` of its state.

    Attributes:
        steps: The steps that are open or remembered.
    """

    def __init__(self, run: RunContext) -> None:
        self._run = run
        self._workers = StepWorkers(
            run.state, run.options, run.processes, space=_PACE, every_rank=True
        )
        self.steps = SpanStepStore(run, PhaseStep, read_phase)
        self._names = set(cast("list[str] | None", run.state.get(_NAMES)) or [])
        self._new: list[TimelinePhase] = []
        self._slow_ranks = SlowRanks()

    def take(
        self,
        context: ProducerContext,
        spans: Iterable[Span],
        now_unix_ns: int,
        *,
        received_ns: int,
    ) -> list[Record]:
        """Take phases of one process; return the rows of steps that every process has passed.

        Args:
            context: The process.
            spans: Its phases.
            now_unix_ns: Now.
            received_ns: Time at which a receiver accepted them; 0: the process wrote them here.
        """
        process = context.process
        advanced_roles: set[str | None] = set()
        for step, span in self.steps.take(context, spans, now_unix_ns):
            phase = span.time
            if not self._admits(phase.name):
                phase = replace(phase, name=_OTHER)
            step.add(process, phase)
            self._new.append(_timeline_phase(context, step, phase, received_ns))
            if self._workers.sent(
                process.instance, step.role, "", step.number, now_unix_ns
            ):
                advanced_roles.add(step.role)
        # Once a role and frame: looking at its steps costs more than adding a phase.
        records = self._due(now_unix_ns, advanced_roles)
        for step in self.steps.overdue():
            if not step.closed or step.changed_ns is not None:
                records.append(self._row(step))
        return records

    def take_new(self) -> list[TimelinePhase]:
        """Return the phases since the last call."""
        new = self._new
        self._new = []
        return new

    def tick(self, now_unix_ns: int) -> list[Record]:
        """Return the rows of steps that are due, and of closed steps that changed and are quiet again."""
        if not self.steps.begin_check(now_unix_ns):
            return []
        return self._due(now_unix_ns, {step.role for step in self.steps})

    def close(self) -> list[Record]:
        """Return the rows of all open and changed steps, since no more data are expected."""
        return [
            self._row(step)
            for step in self.steps.ordered()
            if not step.closed or step.changed_ns is not None
        ]

    def awaited(self, now_unix_ns: int) -> dict[str, AwaitedRank]:
        """Return the rank that the others of its role wait for, by role."""
        steps: dict[str, list[PhaseStep]] = {}
        for step in self.steps.ordered():
            if step.track[1] == self._run.axes.current(axis_of(step.role)):
                steps.setdefault(step.track[0], []).append(step)
        awaited: dict[str, AwaitedRank] = {}
        for role, of_role in steps.items():
            living = self._workers.living(role, now_unix_ns)
            rank = awaited_rank(of_role[-_RECENT:], living)
            if rank is not None:
                awaited[role] = rank
        return awaited

    def slow_ranks(self) -> dict[str, SlowRankOfSteps]:
        """Return the rank that is slow in most of the last steps of its role, by role."""
        return self._slow_ranks.by_role()

    def flush(self) -> None:
        """Write the facts in memory to the state."""
        self._workers.flush()
        self.steps.flush()

    def forget(self, instance: str) -> None:
        """Forget the progress of a process."""
        self._workers.forget(instance)

    def _admits(self, name: str) -> bool:
        """Return whether *name* is within the limit; others are counted."""
        if name in self._names:
            return True
        if len(self._names) >= _MAX_NAMES:
            count(self._run.state, TOO_MANY_NAMES, name=name)
            return False
        self._names.add(name)
        self._run.state.set(_NAMES, sorted(self._names))
        return True

    # --- when a step closes -----------------------------------------------------------------------
    def _due(self, now_unix_ns: int, roles: Collection[str | None]) -> list[Record]:
        """Return the rows of the open steps of *roles* that are over, and of those that must be corrected."""
        reaches = {
            role: self._workers.reach(role or "", "", now_unix_ns) for role in roles
        }
        rows: list[Record] = []
        if not roles:
            return rows
        for step in self.steps.ordered():
            reach = reaches.get(step.role)
            if reach and now_unix_ns >= self._due_ns(step, reach, now_unix_ns):
                rows.append(self._row(step))
        return rows

    def _due_ns(self, step: PhaseStep, reach: StepProgress, now_unix_ns: int) -> int:
        """Return the time at which the row of *step* is due, if nothing more comes."""
        options = self._run.options
        if step.closed:
            if step.changed_ns is None:
                return _NEVER
            return step.changed_ns + options.step_watermark_ns
        quiet_ns = options.step_timeout_ns
        if step.track[1] < self._run.axes.current(axis_of(step.role)):
            quiet_ns = options.step_watermark_ns
        due_ns = self._run.receive_clock.due(step.last_ns, quiet_ns)
        return min(due_ns, self._passed_ns(step, reach, now_unix_ns))

    def _passed_ns(self, step: PhaseStep, reach: StepProgress, now_unix_ns: int) -> int:
        """Return the time at which *step* closes because every living process is past it."""
        if step.number >= reach.past_below:
            step.passed_at(None)
            return _NEVER
        if reach.newcomer:
            # It may be a rank whose first phase is long, or one that has no phases at all.
            return self._run.receive_clock.due(
                step.last_ns, self._run.options.step_watermark_ns
            )
        if not reach.settles:
            return now_unix_ns
        # Phases that came over a network may still be under way.
        passed_ns = step.passed_ns or now_unix_ns
        step.passed_at(passed_ns)
        return self._run.receive_clock.due(passed_ns, self._run.options.row_wait_ns)

    # --- its row ----------------------------------------------------------------------------------
    def _row(self, step: PhaseStep) -> Row:
        """Return the row of *step*, which is closed from then on.

        Further rows of the step have other ids.
        """
        values = step_values(self._latest_ranks(step))
        # A corrected row is of a step that is counted.
        if not step.closed:
            self._count_unclosed(step)
            self._slow_ranks.note(step.track[0], values)
        return self.steps.row(step, values)

    def _latest_ranks(self, step: PhaseStep) -> list[RankTimes]:
        """Return the ranks of *step*, without those of a process that another one has succeeded within the step."""
        processes = [
            self._run.processes[instance]
            for instance in step.ranks
            if instance in self._run.processes
        ]
        replaced: set[str] = set()
        for process in processes:
            # Nearly all run, and only one that ended has a successor.
            if process.status is not None and any(
                successor.succeeds(process) for successor in processes
            ):
                replaced.add(process.instance)
        return [
            rank for instance, rank in step.ranks.items() if instance not in replaced
        ]

    def _count_unclosed(self, step: PhaseStep) -> None:
        """Count the phases that were open when their process ended, as far as phases inside them name them."""
        for instance, rank in step.ranks.items():
            process = self._run.processes.get(instance)
            if process is None or process.status is not None or process.drained:
                for name in sorted(rank.unclosed()):
                    count(self._run.state, UNCLOSED, name=name)


def _timeline_phase(
    context: ProducerContext, step: PhaseStep, phase: PhaseTime, received_ns: int
) -> TimelinePhase:
    role, attempt = step.track
    process = context.process
    facts: dict[str, Any] = {
        "rank": process.rank,
        "host": text_in(context.producer.attributes, semconv.HOST_NAME),
    }
    if attempt > 1:
        facts["attempt"] = attempt
    if process.forked:
        facts["forked"] = True
    if phase.outer:
        facts["outer"] = phase.outer
    if received_ns:
        facts["received_ns"] = received_ns
    event = TimelineEvent(
        "phase", phase.name, process.instance, phase.start_ns, phase.end_ns, facts
    )
    return role, step.number, event
