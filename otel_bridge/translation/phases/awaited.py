"""Open steps of phases -> the rank that every other one waits for. Pure.

A rank is awaited when all others have ended a phase of a step and it has not, while it had that
phase before. Only the other ranks' phases are needed, so a hung rank is named too.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from otel_bridge.translation.phases.step import PhaseStep


@dataclass(frozen=True, slots=True)
class AwaitedRank:
    """Holds the rank that the others wait for.

    Attributes:
        instance: Instance of its process.
        phase: Phase that it has not ended.
        since_ns: Time at which the last of the others ended the phase, by its clock.
        others: Number of the others.
    """

    instance: str
    rank: int
    phase: str
    step: int
    since_ns: int
    others: int


def awaited_rank(
    steps: Sequence[PhaseStep], living: Collection[str]
) -> AwaitedRank | None:
    """Return the rank that is awaited in the newest of *steps*.

    ``None`` when there is none, or there are several.

    Args:
        steps: Steps of one role and attempt, open ones and the last closed ones, in order.
        living: Instances of the role's processes that run.
    """
    # One process alone is not waited for by others.
    if len(living) < 2 or not steps:
        return None
    candidates = [_awaited_in(steps, phase, living) for phase in steps[-1].ends]
    awaited = max(
        filter(None, candidates), key=lambda candidate: candidate.since_ns, default=None
    )
    if awaited is None or _has_gone_on(steps[-1], awaited):
        return None
    return awaited


def _awaited_in(
    steps: Sequence[PhaseStep], phase: str, living: Collection[str]
) -> AwaitedRank | None:
    """Return the only rank that has not ended *phase* in the newest step, if it had that phase before."""
    newest = steps[-1]
    ends = newest.ends[phase]
    missing = [instance for instance in living if instance not in ends]
    # Of several missing ranks none is the one that holds up the others.
    rank = None
    if len(missing) == 1:
        rank = _rank_before(steps, phase, missing[0])
    if rank is None:
        return None
    last_end_ns = max(end_ns for instance, end_ns in ends.items() if instance in living)
    return AwaitedRank(
        missing[0], rank, phase, newest.number, last_end_ns, len(living) - 1
    )


def _rank_before(steps: Sequence[PhaseStep], name: str, instance: str) -> int | None:
    """Return the rank of a process that had phase *name* in an earlier step.

    ``None`` when it had not.
    """
    for step in steps[:-1]:
        if instance in step.ends.get(name, ()):
            return step.ranks[instance].rank
    return None


def _has_gone_on(step: PhaseStep, awaited: AwaitedRank) -> bool:
    """Return whether the process has ended something since, so that it does not have the phase in this step."""
    rank = step.ranks.get(awaited.instance)
    return (
        rank is not None
        and max(phase.end_ns for phase in rank.phases) > awaited.since_ns
    )
