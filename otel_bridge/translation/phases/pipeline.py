"""Phases of all processes -> one row a step and role, once every process is past the step. Pure.

A step closes when every living process of its role has sent a phase of a later step, when no
phase came for `TranslationOptions.step_timeout_ns`, or when the run ends. Rollouts have a
shorter wait, but a phase may last for hours. Processes that have sent no phase yet are
awaited for `TranslationOptions.step_watermark_ns`. A phase that arrives after its row gives a
further row, which replaces the values of the first.
Bad input is counted (``drop/phase/<reason>``) and never raises.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import cast

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_bridge import semconv
from otel_bridge.records import Record, Row, axis_of
from otel_bridge.translation.decode.attributes import text_in
from otel_bridge.translation.phases.awaited import AwaitedRank, awaited_rank
from otel_bridge.translation.phases.slow_rank import SlowRankOfSteps, SlowRanks
from otel_bridge.translation.phases.span import PhaseSpan, read_phase
from otel_bridge.translation.phases.step import PhaseStep
from otel_bridge.translation.phases.step_times import RankTimes, step_values
from otel_bridge.translation.phases.timeline import TimelinePhase
from otel_bridge.translation.processes.process import Process
from otel_bridge.translation.processes.producers import ProducerContext
from otel_bridge.translation.rollouts.step_workers import StepProgress, StepWorkers
from otel_bridge.translation.run_context import RunContext
from otel_bridge.translation.state import count
from otel_bridge.translation.step_rows import StepStore

INVALID = "phase/invalid"
LATE = "phase/late"
TOO_MANY = "phase/too_many"
TOO_MANY_NAMES = "phase/too_many_names"
UNCLOSED = "phase/unclosed"
_PACE = "phase/pace/"
_NAMES = "phase/names"
_MAX_NAMES = 256
"""Most names of phases in a run; each becomes several keys of metrics."""
_MAX_CLOSED = 128
"""Number of closed steps whose phases are remembered, so that a late phase gives a whole row."""
_MAX_CLOSED_PHASES = 20_000
_KEPT_STEPS = 2
"""Number of closed steps of each role that are remembered even if they are large."""
_MAX_PHASES = 200_000
"""Most phases of open steps, and of closed ones."""
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
        self.steps = StepStore(run, PhaseStep, LATE)
        # Beside the store, since every frame asks for them.
        self._open = {step.key: step for step in self.steps if not step.closed}
        self._phases = _phases_of(self.steps)
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
        for span in spans:
            phase = read_phase(span)
            if phase is None:
                count(self._run.state, INVALID, name=span.name)
                continue
            role = phase.role or context.producer.third_party_role
            step = self._step_of(process, role, phase)
            if step is None:
                continue
            if self._add(step, process, phase, now_unix_ns):
                self._new.append(_timeline_phase(context, step, phase, received_ns))
            if self._workers.sent(process.instance, role, "", phase.step, now_unix_ns):
                self._run.axes.reached(axis_of(role), phase.step)
                advanced_roles.add(role)
        records: list[Record] = []
        # Once a role and frame: looking at its steps costs more than adding a phase.
        for role in advanced_roles:
            records += self._close_passed(role, now_unix_ns)
        return records + self._bounded()

    def take_new(self) -> list[TimelinePhase]:
        """Return the phases since the last call."""
        new = self._new
        self._new = []
        return new

    def tick(self, now_unix_ns: int) -> list[Record]:
        """Return the rows of steps that are due, and of closed steps that changed and are quiet again."""
        if not self.steps.begin_check(now_unix_ns):
            return []
        return [self._row(step) for step in self._due(now_unix_ns)]

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
            rank = awaited_rank(
                of_role[-_RECENT:], self._workers.living(role, now_unix_ns)
            )
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

    def _step_of(
        self, process: Process, role: str | None, phase: PhaseSpan
    ) -> PhaseStep | None:
        """Return the step of a phase.

        ``None``: it is dropped, for its name or because the step is forgotten.
        """
        if phase.name not in self._names and not self._admit_name(phase.name):
            return None
        track = role or "", self._run.attempt_of(process, role)
        step = self.steps.find(track, phase.step, phase.name)
        if step is not None and not step.closed:
            self._open[step.key] = step
        return step

    def _admit_name(self, name: str) -> bool:
        if len(self._names) >= _MAX_NAMES:
            count(self._run.state, TOO_MANY_NAMES, name=name)
            return False
        self._names.add(name)
        self._run.state.set(_NAMES, sorted(self._names))
        return True

    def _add(
        self, step: PhaseStep, process: Process, phase: PhaseSpan, now_unix_ns: int
    ) -> bool:
        """Add a phase to its step; return whether it is new and the step has room for it."""
        size = step.size
        if not step.add(process, phase, now_unix_ns):
            count(self._run.state, TOO_MANY, name=phase.name)
        if step.size == size:
            return False
        self._phases += 1
        self.steps.mark_changed(step)
        return True

    # --- when a step closes -----------------------------------------------------------------------
    def _close_passed(self, role: str | None, now_unix_ns: int) -> list[Record]:
        reach = self._workers.reach(role or "", "", now_unix_ns)
        steps = [step for step in self._open.values() if step.role == role]
        passed = [
            step
            for step in steps
            if self._passed_ns(step, reach, now_unix_ns) <= now_unix_ns
        ]
        return [self._row(step) for step in _in_order(passed)]

    def _due(self, now_unix_ns: int) -> list[PhaseStep]:
        """Return the open steps that have waited long enough, and the closed ones whose row must be corrected."""
        wait_ns = self._run.options.step_watermark_ns
        reaches: dict[str | None, StepProgress] = {}
        steps: list[PhaseStep] = []
        for step in self._open.values():
            if step.role not in reaches:
                reaches[step.role] = self._workers.reach(
                    step.role or "", "", now_unix_ns
                )
            is_over = step.track[1] < self._run.axes.current(axis_of(step.role))
            quiet_ns = self._run.options.step_timeout_ns
            if is_over:
                quiet_ns = wait_ns
            due_ns = self._run.receive_clock.due(step.last_ns, quiet_ns)
            if now_unix_ns >= min(
                due_ns, self._passed_ns(step, reaches[step.role], now_unix_ns)
            ):
                steps.append(step)
        corrected = (
            step
            for step in self.steps
            if step.changed_ns is not None and now_unix_ns >= step.changed_ns + wait_ns
        )
        return _in_order([*steps, *corrected])

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
        self._open.pop(step.key, None)
        return self.steps.row(step, values)

    def _latest_ranks(self, step: PhaseStep) -> list[RankTimes]:
        """Return the ranks of *step*, without those of a process that another one has succeeded within the step."""
        by_rank: dict[int, list[Process]] = {}
        for instance, rank in step.ranks.items():
            if instance in self._run.processes:
                by_rank.setdefault(rank.rank, []).append(self._run.processes[instance])
        replaced: set[str] = set()
        for processes in by_rank.values():
            for process in processes:
                if any(successor.succeeds(process) for successor in processes):
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

    def _bounded(self) -> list[Record]:
        """Keep the bounds: close steps early, and forget the phases of closed ones after their last row."""
        records: list[Record] = []
        if _phases_of(self._open.values()) > _MAX_PHASES:
            records.append(self._row(_in_order(self._open.values())[0]))
        while (step := self._step_to_forget()) is not None:
            if step.changed_ns is not None:
                records.append(self._row(step))
            self.steps.forget(step)
            self._phases -= step.size
        return records

    def _step_to_forget(self) -> PhaseStep | None:
        """Return the oldest closed step beyond the bounds.

        Of the last ones of a role only if nothing else helps.
        """
        has_many = len(self.steps) - len(self._open) > _MAX_CLOSED
        if not has_many and self._phases <= _MAX_CLOSED_PHASES:
            return None  # nearly always
        closed = sorted(
            (step for step in self.steps if step.closed), key=lambda step: step.last_ns
        )
        phases = _phases_of(closed)
        if not has_many and phases <= _MAX_CLOSED_PHASES:
            return None
        steps_of_role = Counter(step.role for step in closed)
        for step in closed:
            if steps_of_role[step.role] > _KEPT_STEPS:
                return step
        if has_many or phases > _MAX_PHASES:
            return closed[0]
        return None


def _timeline_phase(
    context: ProducerContext, step: PhaseStep, phase: PhaseSpan, received_ns: int
) -> TimelinePhase:
    role, attempt = step.track
    return TimelinePhase(
        phase,
        role,
        context.process.rank,
        context.process.instance,
        text_in(context.producer.attributes, semconv.HOST_NAME),
        received_ns,
        attempt=attempt,
        forked=context.process.forked,
    )


def _phases_of(steps: Iterable[PhaseStep]) -> int:
    return sum(step.size for step in steps)


def _in_order(steps: Iterable[PhaseStep]) -> list[PhaseStep]:
    return sorted(steps, key=lambda step: (step.track, step.number))
