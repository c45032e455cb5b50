"""Phases of steps -> the rank that is slow, that holds up the others, or that is slow for long. Pure.

A slow rank of a step is one fact of its row. `status` names a rank that is slow in most of the
last steps, alerts name one by a rule such as ``straggler>1.5x:5``.
A rank is awaited when all others have ended a phase of a step and it has not, while it had that
phase before. Only the other ranks' phases are needed, so a hung rank is named too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import cast

from otel_bridge.alert_rules import AlertKind, AlertRule
from otel_bridge.records import PHASES_ID, Alert, Row, Value, key_of
from otel_bridge.translation.phases.step_times import PREFIX, STEP, PhaseStep
from otel_bridge.translation.state import TranslationState, identity

_RATIO = f"{PREFIX}slowest_ratio/"
_RANK = f"{PREFIX}slowest_rank/"
_SLOW = 1.5
"""Ratio of the slowest rank to the others from which on it is named."""
_LAST = 8
"""Number of steps of a role among which a rank must be slow in at least half."""
_SPACE = "alert/straggler/"


# --- slow -----------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class SlowRank:
    """Holds a slow rank of a step, and how many times as long as the others it took in a phase."""

    rank: int
    phase: str
    ratio: float


def slow_rank_of(values: Mapping[str, float | int]) -> SlowRank | None:
    """Return the slow rank of a step, in the phase that costs the others most.

    ``None`` when no phase has a rank that took `_SLOW` times as long as the others. By cost and not
    by ratio, since a short phase has large ratios that delay nobody.

    Args:
        values: Result of `step_values`.
    """
    slow_ranks = [slow for slow in _slowest_ranks(values) if slow.ratio >= _SLOW]

    def cost(slow: SlowRank) -> tuple[bool, float]:
        # The step as a whole names a rank, but not what it does: any other phase comes before it.
        seconds = cast("float", values[f"{PREFIX}max/{slow.phase}"])
        return slow.phase != STEP, seconds * (1 - 1 / slow.ratio)

    return max(slow_ranks, key=cost, default=None)


def _slowest_ranks(
    values: Mapping[str, Value], role: str | None = None
) -> Iterator[SlowRank]:
    """Yield the slowest rank of each phase, however slow it is; none where a value is missing.

    The limit of keys of the run may have dropped one of them. *values* are by key with *role*.
    """
    prefix = key_of(role, _RATIO)
    for key, ratio in values.items():
        if not key.startswith(prefix):
            continue
        phase = key.removeprefix(prefix)
        rank = values.get(key_of(role, _RANK + phase))
        if isinstance(rank, int):
            yield SlowRank(rank, phase, cast("float", ratio))


@dataclass(frozen=True, slots=True)
class SlowRankOfSteps:
    """Holds a rank that is slow in at least half of the last *steps* of its role.

    Attributes:
        ratio: Median over the steps in which it is slow.
        slow_steps: Number of those.
    """

    rank: int
    phase: str
    ratio: float
    slow_steps: int
    steps: int


class SlowRanks:
    """Remembers the last steps of each role, in memory: the next bridge begins anew."""

    def __init__(self) -> None:
        self._steps: dict[str, deque[SlowRank | None]] = {}

    def note(self, role: str, values: Mapping[str, float | int]) -> None:
        """Note a step of *role* by the result of `step_values`."""
        self._steps.setdefault(role, deque(maxlen=_LAST)).append(slow_rank_of(values))

    def by_role(self) -> dict[str, SlowRankOfSteps]:
        """Return the slow rank of each role that has one.

        None before `_LAST` / 2 slow steps have come.
        """
        slow_ranks: dict[str, SlowRankOfSteps] = {}
        for role, steps in self._steps.items():
            ratios: dict[tuple[int, str], list[float]] = {}
            for slow in filter(None, steps):
                # With the phase: a rank that is slow here and there has no cause to name.
                ratios.setdefault((slow.rank, slow.phase), []).append(slow.ratio)
            for (rank, phase), of_phase in ratios.items():
                if 2 * len(of_phase) >= _LAST:
                    slow_ranks[role] = SlowRankOfSteps(
                        rank, phase, median(of_phase), len(of_phase), len(steps)
                    )
        return slow_ranks


# --- slow for several steps -----------------------------------------------------------------------
class StragglerCauses:
    """Watches the phases of one run.

    A cause is one rank in one phase of a role. It ends with a step in which that rank is not the
    slowest, or not beyond the bound.

    Args:
        state: Key space ``alert/straggler/``: rank, number of steps in a row, attempt, last step.
        rules: Rules of the run, of which those of the kind straggler apply.
    """

    def __init__(self, state: TranslationState, rules: Sequence[AlertRule]) -> None:
        self._state = state
        self._rules = rules

    def row(self, row: Row) -> list[Alert]:
        """Return the alerts that *row* raises; none of rows that are not of phases, or without rules.

        Made of the row and not of the phases, so that an alert comes behind the row that shows why.
        """
        alerts: list[Alert] = []
        if not row.id.startswith(PHASES_ID):
            return alerts
        for rule in self._rules:
            if rule.kind is AlertKind.STRAGGLER and rule.watches_role(row.role):
                for slow in _slowest_ranks(row.values, row.role):
                    if self._is_due(rule, row, slow):
                        alerts.append(_alert(rule, row, slow))
        return alerts

    def _is_due(self, rule: AlertRule, row: Row, slow: SlowRank) -> bool:
        """Note one phase of one step; return whether the rank is slow for as long as the rule says.

        It is not due at further steps of a cause, which has had its alert.
        """
        key = f"{_SPACE}{identity(rule.text, row.role, slow.phase).hex()}"
        cause = cast("list[int] | None", self._state.get(key))
        rank, steps, *last = cause or [-1, 0]
        # A restart from a checkpoint repeats steps; a corrected row of a step that is counted is of
        # the same attempt.
        if cause is not None and [row.attempt, row.step or 0] <= last:
            return False
        if not rule.is_met(slow.ratio):
            self._state.delete(key)
            return False
        # Another rank is another cause: slow ranks that take turns are not one straggler.
        steps = steps + 1 if rank == slow.rank else 1
        self._state.set(key, [slow.rank, steps, row.attempt, row.step or 0])
        return steps == rule.steps


def _alert(rule: AlertRule, row: Row, slow: SlowRank) -> Alert:
    text = (
        f"rank {slow.rank} took {slow.ratio:.3g} times as long as the others in "
        f"{slow.phase}, for {rule.steps} steps in a row"
    )
    return Alert(
        f"a:{row.id}:{identity(rule.text, slow.phase).hex()}",
        row.role,
        f"{row.role or 'the run'}: rank {slow.rank} is slow in {slow.phase}",
        f"{text}, up to step {row.step} (rule {rule.text})",
        "warn",
        row.step,
        row.time_unix_ns,
    )


# --- awaited --------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class AwaitedRank:
    """Holds the rank that the others wait for.

    Attributes:
        phase: Phase that it has not ended.
        since_unix_ns: Time at which the last of the others ended the phase, by its clock.
        others: Number of the others.
    """

    rank: int
    phase: str
    step: int
    since_unix_ns: int
    others: int


def awaited_rank(
    steps: Sequence[PhaseStep], living: Collection[str]
) -> AwaitedRank | None:
    """Return the rank that is awaited in the newest of *steps*.

    ``None`` when none is missing, or several are. Of several phases the one that the others ended
    last counts: that is where they wait now.

    Args:
        steps: Steps of one role and attempt, at least one, open ones and the last closed ones, in
            order.
        living: Instances of the role's processes that run.
    """
    *earlier, newest = steps
    ends = {instance: rank.ends() for instance, rank in newest.ranks.items()}
    awaited: list[AwaitedRank] = []
    for phase in set[str]().union(*ends.values()):
        finished = [name for name in living if phase in ends.get(name, {})]
        missing = {*living}.difference(finished)
        # One process alone is not waited for, and of several missing ones none holds up the others.
        if not finished or len(missing) != 1:
            continue
        (instance,) = missing
        since_ns = max(ends[name][phase] for name in finished)
        rank = _rank_before(earlier, phase, instance)
        # If it has gone on since, it does not have the phase in this step.
        last_end_ns = max(ends.get(instance, {"": 0}).values())
        if rank is not None and last_end_ns <= since_ns:
            awaited.append(
                AwaitedRank(rank, phase, newest.number, since_ns, len(finished))
            )
    return max(awaited, key=lambda rank: (rank.since_unix_ns, rank.phase), default=None)


def _rank_before(steps: Sequence[PhaseStep], phase: str, instance: str) -> int | None:
    """Return the rank of a process that had *phase* in one of *steps*.

    ``None`` when it had not: some phases are of one rank alone, such as saving a checkpoint.
    """
    for step in steps:
        rank = step.ranks.get(instance)
        if rank is not None and phase in rank.ends():
            return rank.rank
    return None
