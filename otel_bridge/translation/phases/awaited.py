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


def awaited_rank(steps: Sequence[PhaseStep], living: Collection[str]) -> AwaitedRank | None:
    """Return the rank that is awaited in the newest of *steps*; ``None`` when there is none, or there are several.

    Args:
        steps: Steps of one role and attempt, open ones and the last closed ones, in order.
        living: Instances of the role's processes that run.
    """
    if len(living) < 2 or not steps:
        return None
    newest = steps[-1]
    awaited: AwaitedRank | None = None
    for name, ends in newest.ends.items():
        missing = [instance for instance in living if instance not in ends]
        if len(missing) != 1:
            continue
        since_ns = max(end_ns for instance, end_ns in ends.items() if instance in living)
        rank = _rank_before(steps, name, missing[0])
        if rank is not None and (awaited is None or since_ns > awaited.since_ns):
            awaited = AwaitedRank(missing[0], rank, name, newest.number, since_ns, len(living) - 1)
    if awaited is None or _has_gone_on(newest, awaited):
        return None
    return awaited


def _rank_before(steps: Sequence[PhaseStep], name: str, instance: str) -> int | None:
    """Return the rank of a process that had phase *name* in an earlier step; ``None`` when it had not."""
    for step in steps[:-1]:
        if instance in step.ends.get(name, ()):
            return step.ranks[instance].rank
    return None


def _has_gone_on(step: PhaseStep, awaited: AwaitedRank) -> bool:
    """Return whether the process has ended something since, so that it does not have the phase in this step."""
    rank = step.ranks.get(awaited.instance)
    return rank is not None and max(phase.end_ns for phase in rank.phases) > awaited.since_ns
