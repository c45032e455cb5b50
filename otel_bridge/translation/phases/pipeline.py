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
from collections.abc import Iterable, Mapping
from typing import Final, cast

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_bridge import semconv
from otel_bridge.records import PHASES_ID, Record, Row, axis_of
from otel_bridge.translation.decode.attributes import text_in
from otel_bridge.translation.metrics.keys import StepAxes
from otel_bridge.translation.options import TranslationOptions
from otel_bridge.translation.phases.awaited import AwaitedRank, awaited_rank
from otel_bridge.translation.phases.span import PhaseSpan, read_phase
from otel_bridge.translation.phases.step import PhaseStep, stored_steps
from otel_bridge.translation.phases.step_times import RankTimes, step_values
from otel_bridge.translation.phases.timeline import TimelinePhase
from otel_bridge.translation.processes.process import Process
from otel_bridge.translation.processes.producers import ProducerContext
from otel_bridge.translation.processes.receive_clock import ReceiveClock
from otel_bridge.translation.rollouts.step_workers import StepProgress, StepWorkers
from otel_bridge.translation.state import TranslationState, count, name_first
from otel_bridge.translation.step_rows import ForgottenSteps, Track, step_row

INVALID: Final = "phase/invalid"
LATE: Final = "phase/late"
TOO_MANY: Final = "phase/too_many"
TOO_MANY_NAMES: Final = "phase/too_many_names"
UNCLOSED: Final = "phase/unclosed"
_PACE: Final = "phase/pace/"
_NAMES: Final = "phase/names"
_FORGOTTEN: Final = "phase/forgotten"
_MAX_NAMES: Final = 256
"""Most names of phases in a run; each becomes several keys of metrics."""
_MAX_CLOSED: Final = 128
"""Number of closed steps whose phases are remembered, so that a late phase gives a whole row."""
_MAX_CLOSED_PHASES: Final = 20_000
_KEPT_STEPS: Final = 2
"""Number of closed steps of each role that are remembered even if they are large."""
_MAX_PHASES: Final = 200_000
"""Most phases of open steps, and of closed ones."""
_RECENT: Final = 8
"""Number of steps in which a rank has had a phase before it is awaited in it."""
_CHECK_NS: Final = 1_000_000_000
"""Interval at which open steps are checked, since processes may start and end meanwhile."""
_NEVER: Final = 1 << 63


class PhasePipeline:
    """Collects the phases of one run.

    Args:
        state: Key space ``phase/``; counts in ``drop/``.
        options: Waiting times.
        axes: Axes of the run, and the attempt of each role.
        processes: Live view of all processes of the run.
        receive_clock: Clock of receiving: a step does not age while no receiver is up.
    """

    def __init__(
        self,
        state: TranslationState,
        options: TranslationOptions,
        axes: StepAxes,
        processes: Mapping[str, Process],
        receive_clock: ReceiveClock,
    ) -> None:
        self._state = state
        self._options = options
        self._axes = axes
        self._processes = processes
        self._receive_clock = receive_clock
        self._workers = StepWorkers(state, options, processes, space=_PACE, every_rank=True)
        self._open: dict[tuple[Track, int], PhaseStep] = {}
        self._closed: dict[tuple[Track, int], PhaseStep] = {}
        for step in stored_steps(state):
            (self._closed if step.closed else self._open)[step.track, step.number] = step
        self._open_phases = sum(step.size for step in self._open.values())
        self._closed_phases = sum(step.size for step in self._closed.values())
        self._names = set(cast("list[str] | None", state.get(_NAMES)) or [])
        self._forgotten = ForgottenSteps(state, _FORGOTTEN)
        self._changed: dict[tuple[Track, int], PhaseStep] = {}
        self._new: list[TimelinePhase] = []
        self._checked_ns = 0

    def take(
        self, context: ProducerContext, spans: Iterable[Span], now_unix_ns: int, *, received_ns: int
    ) -> list[Record]:
        """Take phases of one process; return the rows of steps that every process has passed.

        Args:
            context: The process.
            spans: Its phases.
            now_unix_ns: Now.
            received_ns: Time at which a receiver accepted them; 0: the process wrote them here.
        """
        process = context.process
        producer = context.producer
        advanced_roles: set[str | None] = set()
        for span in spans:
            phase = read_phase(span)
            if phase is None:
                self._drop(INVALID, span.name)
                continue
            role = phase.role or producer.third_party_role
            size = self._open_phases + self._closed_phases
            if self._add(process, role, phase, now_unix_ns):
                advanced_roles.add(role)
            if self._open_phases + self._closed_phases > size:
                host = text_in(producer.attributes, semconv.HOST_NAME)
                new = TimelinePhase(
                    phase,
                    role or "",
                    process.rank,
                    process.instance,
                    host,
                    received_ns,
                    attempt=self._attempt(process, role),
                    forked=process.forked,
                )
                self._new.append(new)
        records: list[Record] = []
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
        if not 0 <= now_unix_ns - self._checked_ns < _CHECK_NS:
            self._checked_ns = now_unix_ns
            return [self._row(step) for step in self._due(now_unix_ns)]
        return []

    def close(self) -> list[Record]:
        """Return the rows of all open and changed steps, since no more data are expected."""
        changed = [step for step in self._closed.values() if step.changed_ns is not None]
        return [self._row(step) for step in _in_order([*self._open.values(), *changed])]

    def awaited(self, now_unix_ns: int) -> dict[str, AwaitedRank]:
        """Return the rank that the others of its role wait for, by role."""
        steps: dict[str, list[PhaseStep]] = {}
        for step in _in_order([*self._closed.values(), *self._open.values()]):
            if step.track[1] == self._axes.current(axis_of(step.role)):
                steps.setdefault(step.track[0], []).append(step)
        awaited: dict[str, AwaitedRank] = {}
        for role, of_role in steps.items():
            rank = awaited_rank(of_role[-_RECENT:], self._workers.living(role, now_unix_ns))
            if rank is not None:
                awaited[role] = rank
        return awaited

    def flush(self) -> None:
        """Write the facts in memory to the state."""
        self._workers.flush()
        for step in self._changed.values():
            step.store(self._state)
        self._changed.clear()

    def forget(self, instance: str) -> None:
        """Forget the progress of a process."""
        self._workers.forget(instance)

    def _add(self, process: Process, role: str | None, phase: PhaseSpan, now_unix_ns: int) -> bool:
        """Add a phase to its step; return whether it takes its process further."""
        if phase.name not in self._names and not self._admit_name(phase.name):
            return False
        axis = axis_of(role)
        track = role or "", self._attempt(process, role)
        step = self._step(track, phase.step)
        if step is None:
            self._drop(LATE, phase.name)
            return False
        size = step.size
        if not step.add(process, phase, now_unix_ns):
            self._drop(TOO_MANY, phase.name)
        if step.closed:
            self._closed_phases += step.size - size
        else:
            self._open_phases += step.size - size
        self._changed[track, phase.step] = step
        has_advanced = self._workers.sent(process.instance, role, "", phase.step, now_unix_ns)
        if has_advanced:
            self._axes.reached(axis, phase.step)
        return has_advanced

    def _attempt(self, process: Process, role: str | None) -> int:
        axis = axis_of(role)
        return process.attempts.get(axis) or self._axes.current(axis)

    def _admit_name(self, name: str) -> bool:
        if len(self._names) >= _MAX_NAMES:
            self._drop(TOO_MANY_NAMES, name)
            return False
        self._names.add(name)
        self._state.set(_NAMES, sorted(self._names))
        return True

    def _step(self, track: Track, number: int) -> PhaseStep | None:
        """Return a step; ``None``: its phases are forgotten, so that its row can no longer be made."""
        key = track, number
        step = self._open.get(key) or self._closed.get(key)
        if step is not None or self._forgotten.has(track, number):
            return step
        step = PhaseStep(track, number)
        self._open[key] = step
        return step

    # --- when a step closes -------------------------------------------------------------------------------------------
    def _close_passed(self, role: str | None, now_unix_ns: int) -> list[Record]:
        reach = self._workers.reach(role or "", "", now_unix_ns)
        steps = [step for step in self._open.values() if step.role == role]
        passed = [step for step in steps if self._passed_ns(step, reach, now_unix_ns) <= now_unix_ns]
        return [self._row(step) for step in _in_order(passed)]

    def _due(self, now_unix_ns: int) -> list[PhaseStep]:
        """Return the open steps that have waited long enough, and the closed ones whose row must be corrected."""
        wait_ns = self._options.step_watermark_ns
        reaches: dict[str | None, StepProgress] = {}
        steps: list[PhaseStep] = []
        for step in self._open.values():
            if step.role not in reaches:
                reaches[step.role] = self._workers.reach(step.role or "", "", now_unix_ns)
            is_over = step.track[1] < self._axes.current(axis_of(step.role))
            quiet_ns = wait_ns if is_over else self._options.step_timeout_ns
            due_ns = self._receive_clock.due(step.last_ns, quiet_ns)
            if now_unix_ns >= min(due_ns, self._passed_ns(step, reaches[step.role], now_unix_ns)):
                steps.append(step)
        corrected = (
            step
            for step in self._closed.values()
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
            return self._receive_clock.due(step.last_ns, self._options.step_watermark_ns)
        if not reach.settles:
            return now_unix_ns
        # Phases that came over a network may still be under way.
        passed_ns = step.passed_ns or now_unix_ns
        step.passed_at(passed_ns)
        return self._receive_clock.due(passed_ns, self._options.row_wait_ns)

    # --- its row ------------------------------------------------------------------------------------------------------
    def _row(self, step: PhaseStep) -> Row:
        """Return the row of *step*, which is closed from then on; further rows of the step have other ids."""
        if not step.closed:
            self._count_unclosed(step)
        values = step_values(self._latest_ranks(step))
        row = step_row(
            self._axes,
            PHASES_ID,
            step.track,
            step.number,
            values,
            revision=step.revision,
            time_unix_ns=step.sender_ns,
        )
        step.sent()
        key = step.track, step.number
        self._changed[key] = step
        if self._open.pop(key, None) is not None:
            self._closed[key] = step
            self._open_phases -= step.size
            self._closed_phases += step.size
        return row

    def _latest_ranks(self, step: PhaseStep) -> list[RankTimes]:
        """Return the ranks of *step*, without those of a process that another one has succeeded within the step."""
        by_rank: dict[int, list[Process]] = {}
        for instance, rank in step.ranks.items():
            if instance in self._processes:
                by_rank.setdefault(rank.rank, []).append(self._processes[instance])
        replaced: set[str] = set()
        for processes in by_rank.values():
            for process in processes:
                if any(successor.succeeds(process) for successor in processes):
                    replaced.add(process.instance)
        return [rank for instance, rank in step.ranks.items() if instance not in replaced]

    def _count_unclosed(self, step: PhaseStep) -> None:
        """Count the phases that were open when their process ended, as far as phases inside them name them."""
        for instance, rank in step.ranks.items():
            process = self._processes.get(instance)
            if process is None or process.status is not None or process.drained:
                for name in sorted(rank.unclosed()):
                    self._drop(UNCLOSED, name)

    def _bounded(self) -> list[Record]:
        """Keep the bounds: close steps early, and forget the phases of closed ones after their last row."""
        records: list[Record] = []
        if self._open_phases > _MAX_PHASES:
            records.append(self._row(_in_order(self._open.values())[0]))
        while (key := self._step_to_forget()) is not None:
            step = self._closed[key]
            if step.changed_ns is not None:
                records.append(self._row(step))
            self._forget(key)
        return records

    def _step_to_forget(self) -> tuple[Track, int] | None:
        """Return the oldest closed step beyond the bounds; of the last ones of a role only if nothing else helps."""
        has_many = len(self._closed) > _MAX_CLOSED
        if not has_many and self._closed_phases <= _MAX_CLOSED_PHASES:
            return None
        steps_of_role = Counter(step.role for step in self._closed.values())
        for key, step in self._closed.items():
            if steps_of_role[step.role] > _KEPT_STEPS:
                return key
        return next(iter(self._closed)) if has_many or self._closed_phases > _MAX_PHASES else None

    def _forget(self, key: tuple[Track, int]) -> None:
        step = self._closed.pop(key)
        self._closed_phases -= step.size
        self._changed.pop(key, None)
        step.delete(self._state)
        self._forgotten.add(step.track, step.number)

    def _drop(self, reason: str, name: str) -> None:
        count(self._state, reason)
        name_first(self._state, reason, name)


def _in_order(steps: Iterable[PhaseStep]) -> list[PhaseStep]:
    return sorted(steps, key=lambda step: (step.track, step.number))
