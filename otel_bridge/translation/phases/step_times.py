"""Phases of one step on all its ranks -> the values of the step's row. Pure.

The time of a phase on a rank is the time during which it was open at least once. So nested phases
of one name count once, and so do those of threads that run at one time. A phase that arrives twice
changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any, ClassVar, NamedTuple, TypeAlias

from otel_bridge.records import PHASES_ID
from otel_bridge.translation.processes.process import Process
from otel_bridge.translation.step_rows import CollectedStep

STEP = "step"
"""Phase that is the step itself; phases inside it count as outermost."""
PREFIX = "time/"
_NS = 1e9
Interval: TypeAlias = tuple[int, int]
"""Start and end in Unix ns."""


@dataclass(frozen=True, slots=True)
class PhaseTime:
    """Holds one phase on one rank; *outer* is empty for an outermost phase."""

    name: str
    outer: str
    start_ns: int
    end_ns: int

    @property
    def is_outermost(self) -> bool:
        """Whether no phase but that of the step is around it."""
        return self.name != STEP and self.outer in {"", STEP}

    @property
    def interval(self) -> Interval:
        """Its start and end."""
        return self.start_ns, self.end_ns


class TimelineEvent(NamedTuple):
    """Holds one event of the timeline.

    Attributes:
        kind: ``phase``, ``rollout``, ``turn``, ``tool``, ``span`` or ``mark``.
        name: Name of the phase or span; id of the rollout; empty for a mark, which is a row of the
            step.
        track: Instance of the process of a phase; id of the rollout of its spans; else empty.
        start_ns: Start by the sender's clock.
        end_ns: End by the sender's clock.
        facts: For a phase ``rank`` and ``host`` (empty if unknown), and, where they apply,
            ``outer``, ``attempt`` above 1, ``forked`` (its time is not that of a step) and
            ``received_ns`` (when a receiver accepted it, by the clock of its machine); for a
            rollout its ``reward``, ``group`` and ``error``; for a mark the rates of its row.
    """

    kind: str
    name: str
    track: str
    start_ns: int
    end_ns: int
    facts: Mapping[str, Any]


TimelinePhase: TypeAlias = tuple[str, int, TimelineEvent]
"""Role (empty without one), step, and event, such as that of one phase."""


class PhaseTotal(NamedTuple):
    """Holds all phases of one name on one rank, of which there is at least one.

    Attributes:
        rank: Rank of the process.
        seconds: Time during which at least one was open.
        parts: Number of them.
        mean_end_s: Mean of their ends, in Unix seconds.
    """

    rank: int
    seconds: float
    parts: int
    mean_end_s: float


@dataclass(slots=True)
class RankTimes:
    """Holds the phases of one step on one rank, at least one.

    Attributes:
        rank: Rank of the process.
        forked: Whether the process is a forked child, whose time is not that of a step.
    """

    rank: int
    forked: bool
    phases: list[PhaseTime] = field(default_factory=list[PhaseTime])

    def intervals(self) -> dict[str, list[Interval]]:
        """Return when each phase was open, and the step under `STEP`.

        Without a phase of that name the step lasts from the first start to the last end: most
        programs measure the parts of a step alone.
        """
        by_name: dict[str, list[Interval]] = {}
        for phase in self.phases:
            by_name.setdefault(phase.name, []).append(phase.interval)
        start_ns = min(phase.start_ns for phase in self.phases)
        by_name.setdefault(STEP, [(start_ns, max(self.ends().values()))])
        return by_name

    def totals(self) -> dict[str, PhaseTotal]:
        """Return the total of each phase, and of the step under `STEP`."""
        totals: dict[str, PhaseTotal] = {}
        for name, intervals in self.intervals().items():
            mean_end_s = fmean(end_ns for _, end_ns in intervals) / _NS
            seconds = length(intervals) / _NS
            totals[name] = PhaseTotal(self.rank, seconds, len(intervals), mean_end_s)
        return totals

    def idle_and_overlap(self) -> tuple[float, float]:
        """Return the seconds of the step in no outermost phase, and those in several at a time, counted again each.

        Both are 0 without an outermost phase: the step as a whole says nothing about its parts.
        """
        outermost = [phase.interval for phase in self.phases if phase.is_outermost]
        if not outermost:
            return 0.0, 0.0
        covered_ns = length(outermost)
        idle_ns = length(outermost + self.intervals()[STEP]) - covered_ns
        total_ns = sum(end_ns - start_ns for start_ns, end_ns in outermost)
        return idle_ns / _NS, (total_ns - covered_ns) / _NS

    def ends(self) -> dict[str, int]:
        """Return the last end of each phase, by the sender's clock."""
        ends: dict[str, int] = {}
        for phase in self.phases:
            ends[phase.name] = max(ends.get(phase.name, 0), phase.end_ns)
        return ends

    def unclosed(self) -> set[str]:
        """Return the names of phases that ended ones name as their outer phase, and that never ended themselves."""
        return {phase.outer for phase in self.phases} - self.ends().keys() - {""}


@dataclass(slots=True)
class PhaseStep(CollectedStep):
    """Holds one step of one role and attempt, which is closed once its row was sent.

    Attributes:
        ranks: Instance of each process to its phases.
    """

    SPACE: ClassVar[str] = "phase"
    ROW_ID: ClassVar[str] = PHASES_ID

    ranks: dict[str, RankTimes] = field(default_factory=dict[str, RankTimes])

    def add(self, process: Process, phase: PhaseTime) -> None:
        """Add a phase of *process*; a rank may have several processes, such as forked children."""
        rank = self.ranks.setdefault(
            process.instance, RankTimes(process.rank, process.forked)
        )
        rank.phases.append(phase)


def length(intervals: Iterable[Interval]) -> int:
    """Return the length of the union of *intervals*, in ns; 0 without any.

    A sum would count nested phases and those of threads several times.
    """
    total_ns = 0
    reached_ns = 0
    for start_ns, end_ns in sorted(intervals):
        total_ns += max(end_ns - max(start_ns, reached_ns), 0)
        reached_ns = max(reached_ns, end_ns)
    return total_ns


def step_values(ranks: Collection[RankTimes]) -> dict[str, float | int]:
    """Return the values of a step's row, by key without role, in seconds unless a key says otherwise.

    Args:
        ranks: Ranks of the step, at least one, each with at least one phase. Forked children count
            in their phases, and not in the time of the step, unless all are forked.
    """
    ordered = sorted(ranks, key=lambda rank: rank.rank)
    leading = [rank for rank in ordered if not rank.forked] or ordered
    by_phase: dict[str, list[PhaseTotal]] = {}
    for rank in ordered:
        totals = rank.totals()
        # The extent of a forked child is not that of its step.
        if rank.forked and len(leading) < len(ordered):
            del totals[STEP]
        for name, total in totals.items():
            by_phase.setdefault(name, []).append(total)
    step_s = fmean(total.seconds for total in by_phase[STEP])
    values: dict[str, float | int] = {}
    for name, totals_of_ranks in by_phase.items():
        values |= _phase_values(name, totals_of_ranks, step_s)
    idle: list[float] = []
    overlap: list[float] = []
    for rank in leading:
        idle_s, overlap_s = rank.idle_and_overlap()
        idle.append(idle_s)
        overlap.append(overlap_s)
    values[f"{PREFIX}idle"] = fmean(idle)
    values[f"{PREFIX}overlap"] = fmean(overlap)
    values[f"{PREFIX}ranks"] = len(leading)
    return values


def _phase_values(
    name: str, totals: Sequence[PhaseTotal], step_s: float
) -> dict[str, float | int]:
    """Return the values of one phase over the ranks that had it.

    Args:
        name: Name of the phase.
        totals: Its total on each of these ranks, in their order.
        step_s: Seconds of the step.
    """
    mean_s = fmean(total.seconds for total in totals)
    values: dict[str, float | int] = {
        f"{PREFIX}{name}": mean_s,
        f"{PREFIX}max/{name}": max(total.seconds for total in totals),
    }
    if name != STEP and step_s > 0:
        values[f"{PREFIX}share/{name}"] = mean_s / step_s
    if len(totals) > 1:
        slowest, ratio = _slowest(totals)
        values[f"{PREFIX}slowest_rank/{name}"] = slowest.rank
        if ratio is not None:
            values[f"{PREFIX}slowest_ratio/{name}"] = ratio
    return values


def _slowest(totals: Sequence[PhaseTotal]) -> tuple[PhaseTotal, float | None]:
    """Return the slowest of several ranks, and how many times as long it took as the others.

    The ratio is ``None`` if the others took no time.
    """
    *shorter, longest = sorted(totals, key=lambda total: total.seconds)
    # The median, so that a second slow rank does not hide the first.
    others_s = median(total.seconds for total in shorter)
    later_s = longest.parts * (
        longest.mean_end_s - median(total.mean_end_s for total in shorter)
    )
    # It began before the others rather than ended after them: it waits, as all do, for the rank
    # that comes last, which is the one that has to wait least.
    if later_s < (longest.seconds - others_s) / 2:
        return shorter[0], 1.0
    return longest, longest.seconds / others_s if others_s > 0 else None
