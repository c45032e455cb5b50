"""Phases of all processes -> one row a step and role, once every process is past the step. Pure.

A step closes when every living process of its role has sent a phase of a later step, when no
phase came for `TranslationOptions.step_timeout_ns`, or when the run ends. Rollouts have a
shorter wait, but a phase may last for hours. Processes that have sent no phase yet are
awaited for `TranslationOptions.step_watermark_ns`. A phase that arrives after its row gives a
further row, which replaces the values of the first.
Bad input is counted (``drop/phase/<reason>``) and never raises.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from typing import Any, cast

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_bridge import semconv
from otel_bridge.records import Json, Record, Value, axis_of
from otel_bridge.translation.decode.attributes import text_in
from otel_bridge.translation.phases.slow_ranks import (
    AwaitedRank,
    SlowRanks,
    awaited_rank,
)
from otel_bridge.translation.phases.step_times import (
    PhaseStep,
    PhaseTime,
    RankTimes,
    TimelineEvent,
    TimelinePhase,
    step_values,
)
from otel_bridge.translation.run_context import RunContext
from otel_bridge.translation.step_rows import SpanBatch, SpanPipeline

_NAMES = "phase/names"
_MAX_NAME_CHARS = 128
_MAX_NAMES = 256
"""Most names of phases in a run; each becomes several keys of metrics."""
_OTHER = "other"
"""Name of the phases beyond the limit."""
_RECENT = 8
"""Number of steps in which a rank has had a phase before it is awaited in it."""


class PhasePipeline(SpanPipeline[PhaseStep, PhaseTime]):
    """Collects the phases of one run.

    Args:
        run: The run; key space ``phase/`` of its state.

    Attributes:
        slow_ranks: The rank that is slow in most of the last steps of its role.
    """

    def __init__(self, run: RunContext) -> None:
        super().__init__(run, PhaseStep)
        self._names = set(cast("list[str] | None", run.state.get(_NAMES)) or [])
        self._new: list[TimelinePhase] = []
        self.slow_ranks = SlowRanks()

    def read(self, span: Span, attributes: Mapping[str, Json]) -> PhaseTime | None:
        """Return the phase that *span* describes; ``None`` without a name or possible times.

        A start of 0 is one that a producer left out, and would make the phase as long as the time
        since 1970.
        """
        name = text_in(attributes, semconv.PHASE_NAME)[:_MAX_NAME_CHARS]
        outer = text_in(attributes, semconv.PHASE_OUTER)[:_MAX_NAME_CHARS]
        start_ns = span.start_time_unix_nano
        end_ns = span.end_time_unix_nano
        if name and 0 < start_ns <= end_ns:
            return PhaseTime(name, outer, start_ns, end_ns)
        return None

    def take(self, batch: SpanBatch) -> list[Record]:
        """Take phases of one process; return the rows of steps that every process has passed.

        A span without a name, a step or possible times is counted as ``phase/invalid``, one of a
        forgotten step as ``phase/late``. A redelivered one changes nothing.
        """
        process = batch.context.process
        now_unix_ns = batch.frame.now_unix_ns
        has_advanced = False
        for step, received in self.new_spans(batch):
            phase = replace(received, name=self._name_of(received))
            step.add(process, phase)
            self._new.append(_timeline_phase(batch, step, phase))
            if self._workers.sent(
                process.instance, step.role, "", step.number, now_unix_ns
            ):
                has_advanced = True
        records: list[Record] = []
        # Once a frame: looking at the steps costs more than adding a phase.
        if has_advanced:
            records += self.due(now_unix_ns)
        return records + self.beyond_bound(now_unix_ns)

    def take_new(self) -> list[TimelinePhase]:
        """Return the phases since the last call, for the timeline: it has them before their row is due."""
        new = self._new
        self._new = []
        return new

    @property
    def waiting(self) -> int:
        """Number of steps whose row was sent and is to be corrected.

        An open step is not counted: a running job always has one, and `status` would name it.
        """
        return sum(step.revision > 0 for step in self.changed())

    def awaited(self, now_unix_ns: int) -> dict[str, AwaitedRank]:
        """Return the rank that the others of its role wait for, by role; a role without one is left out.

        Only steps of the current attempt count: of an earlier one nothing more is awaited.
        """
        awaited: dict[str, AwaitedRank] = {}
        for (role, attempt), steps in groupby(self.ordered(), attrgetter("track")):
            if attempt == self._run.axes.current(axis_of(role or None)):
                living = self._workers.living(role, now_unix_ns)
                rank = awaited_rank(list(steps)[-_RECENT:], living)
                if rank is not None:
                    awaited[role] = rank
        return awaited

    def _name_of(self, phase: PhaseTime) -> str:
        """Return the name under which *phase* is counted: `_OTHER` beyond the limit, which is counted too."""
        if phase.name in self._names:
            return phase.name
        if len(self._names) >= _MAX_NAMES:
            self.note_drop("too_many_names", phase.name)
            return _OTHER
        self._names.add(phase.name)
        self._run.state.set(_NAMES, sorted(self._names))
        return phase.name

    # --- the row of a step ------------------------------------------------------------------------
    def wait_ns(self, step: PhaseStep, now_unix_ns: int) -> int:
        """Return how long the row of *step* waits after its last phase; 0 when no process can add to it.

        The longest wait is that for a silent process, since a phase may last for hours.
        """
        # What came after the row corrects it, and is never a whole step.
        if step.revision:
            return super().wait_ns(step, now_unix_ns)
        options = self._run.options
        quiet_ns = options.step_timeout_ns
        # The role was started again: of the attempt before, only what is under way can arrive.
        if step.track[1] < self._run.axes.current(axis_of(step.role)):
            quiet_ns = options.step_watermark_ns
        reach = self.reach(step.track[0], now_unix_ns)
        if step.number >= reach.past_below:
            return quiet_ns
        if reach.newcomer:
            # It may be a rank whose first phase is long, or one that has no phases at all.
            return min(quiet_ns, options.step_watermark_ns)
        # Phases that came over a network may still be under way.
        return options.row_wait_ns if reach.settles else 0

    def values(self, step: PhaseStep) -> Mapping[str, Value]:
        """Return the values of a row of *step*."""
        values = step_values(self._latest_ranks(step))
        # A corrected row is of a step that is counted.
        if not step.revision:
            self._count_unclosed(step)
            self.slow_ranks.note(step.track[0], values)
        return values

    def _latest_ranks(self, step: PhaseStep) -> list[RankTimes]:
        """Return the ranks of *step*, without those of a process that another one has succeeded within the step.

        Both have the same rank, and it would count twice. A forgotten process stays: whether it has
        a successor is unknown.
        """
        ranks = dict(step.ranks)
        by_instance = self._run.processes
        processes = [by_instance[name] for name in step.ranks if name in by_instance]
        for process in processes:
            # Nearly all run, and only one that ended has a successor.
            if process.status is not None and any(
                successor.succeeds(process) for successor in processes
            ):
                del ranks[process.instance]
        return list(ranks.values())

    def _count_unclosed(self, step: PhaseStep) -> None:
        """Count the phases that were open when their process ended, as far as phases inside them name them.

        A phase is sent when it ends, so that of one cut off by a crash there is no other trace.
        Those of a running process are not counted: they may still end.
        """
        for instance, rank in step.ranks.items():
            process = self._run.processes.get(instance)
            if process is None or process.status is not None or process.drained:
                for name in sorted(rank.unclosed()):
                    self.note_drop("unclosed", name)


def _timeline_phase(
    batch: SpanBatch, step: PhaseStep, phase: PhaseTime
) -> TimelinePhase:
    """Return a phase as an event of the timeline.

    Facts with their usual value are left out to save room.
    """
    role, attempt = step.track
    process = batch.context.process
    facts: dict[str, Any] = {
        "rank": process.rank,
        "host": text_in(batch.context.producer.attributes, semconv.HOST_NAME),
    }
    if attempt > 1:
        facts["attempt"] = attempt
    if process.forked:
        facts["forked"] = True
    if phase.outer:
        facts["outer"] = phase.outer
    # Only a receiver has a clock of another machine beside that of the sender.
    if batch.frame.from_receiver:
        facts["received_ns"] = batch.frame.append_unix_ns
    event = TimelineEvent(
        "phase", phase.name, process.instance, phase.start_ns, phase.end_ns, facts
    )
    return role, step.number, event
