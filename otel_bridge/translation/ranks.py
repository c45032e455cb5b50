"""Rows of all ranks of a role -> one row a step, with ``OTEL_BRIDGE_RANKS=merge``. Pure.

Each key has a state that two rows add to in any order: number, sum, weighted sum, minimum and maximum. A step closes
when every rank of the world has logged a later one or has ended, or `TranslationOptions.step_watermark_ns` after its
last row. A row that arrives later gives a further one, which replaces the values of the first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias, cast

from otel_bridge.records import Distribution, Record, Row, Value, axis_of, key_of
from otel_bridge.semconv import REDUCE_PREFIX
from otel_bridge.translation.metrics.keys import ATTEMPT, StepAxes
from otel_bridge.translation.options import TranslationOptions
from otel_bridge.translation.processes.process import Process
from otel_bridge.translation.processes.receive_clock import ReceiveClock
from otel_bridge.translation.state import TranslationState, count
from otel_bridge.translation.step_rows import ForgottenSteps, Track

LATE: Final = "ranks/late"
_RANKS: Final = "ranks"
"""Key of the number of ranks that a row holds."""
_STEPS: Final = "ranks/step/"
_PACE: Final = "ranks/pace"
_FORGOTTEN: Final = "ranks/forgotten"
_MAX_STEPS: Final = 64
"""Most steps that are remembered, open and closed ones together."""
_CHECK_NS: Final = 1_000_000_000
"""Interval at which open steps are checked."""


@dataclass(slots=True)
class KeyTotals:
    """Holds what rows of several ranks have under one key.

    Attributes:
        reduction: Value under the key itself: ``mean``, ``min``, ``max`` or ``sum``.
        number: How many values.
        weight: Sum of their weights.
        weighted: Sum of the values times their weights.
    """

    reduction: str = "mean"
    number: int = 0
    weight: float = 0
    weighted: float = 0
    low: float = math.inf
    high: float = -math.inf
    total: float = 0

    def add(self, value: float, weight: float) -> None:
        """Add the value of one row. NaN makes every result NaN, as in numpy."""
        self.number += 1
        self.weight += weight
        self.weighted += value * weight
        self.total += value
        self.low = value if math.isnan(value) or value < self.low else self.low
        self.high = value if math.isnan(value) or value > self.high else self.high

    def values(self, key: str) -> Iterator[tuple[str, float]]:
        """Yield the four results: the chosen one under *key*, the others below it."""
        results = {
            "mean": self.weighted / self.weight if self.weight else math.nan,
            "min": self.low,
            "max": self.high,
            "sum": self.total,
        }
        for name, result in results.items():
            yield (key if name == self.reduction else f"{key}/{name}"), result


@dataclass(slots=True)
class RankStep:
    """Holds the rows of one step.

    Attributes:
        world: Number of ranks of the job.
        last_ns: Arrival time of the last row.
        time_unix_ns: Latest time of a row by the senders' clocks.
        ranks: Ranks that have sent a row.
        totals: Numbers by key.
        distributions: Distributions by key.
        revision: Number of times that the row was sent.
        is_open: Whether rows were added since.
    """

    track: Track
    number: int
    world: int = 1
    last_ns: int = 0
    time_unix_ns: int = 0
    ranks: set[int] = field(default_factory=set[int])
    totals: dict[str, KeyTotals] = field(default_factory=dict[str, KeyTotals])
    distributions: dict[str, Distribution] = field(default_factory=dict[str, Distribution])
    revision: int = 0
    is_open: bool = True

    def add(self, row: Row, process: Process, now_unix_ns: int) -> None:
        """Add the row of one rank."""
        self.world = max(process.merge_world, 1)
        self.last_ns = now_unix_ns
        self.time_unix_ns = max(self.time_unix_ns, row.time_unix_ns)
        self.ranks.add(process.rank)
        self.is_open = True
        reductions = dict(_reductions(row))
        for key, value in row.values.items():
            if REDUCE_PREFIX in key or key == key_of(row.role, ATTEMPT):
                continue
            if isinstance(value, Distribution):
                before = self.distributions.get(key)
                self.distributions[key] = value if before is None else _joined(before, value)
                continue
            reduction, weight = reductions.get(key, ("", 1))
            totals = self.totals.setdefault(key, KeyTotals())
            totals.reduction = reduction or totals.reduction
            totals.add(value, weight)

    def values(self) -> dict[str, Value]:
        """Return the values of the row. A key that a rank logged wins over a result of that name."""
        values: dict[str, Value] = {key_of(self.track[0], _RANKS): len(self.ranks)}
        for key, totals in self.totals.items():
            results = dict(totals.values(key))
            values |= {name: result for name, result in results.items() if name == key or name not in self.totals}
        return {**values, **self.distributions}


class RankMerge:
    """Merges the rows of one run's ranks.

    Args:
        state: Key space ``ranks/``; counts in ``drop/``.
        options: The watermark.
        axes: Axes of the run.
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
        self._state, self._axes = state, axes
        self._watermark_ns = options.step_watermark_ns
        self._processes = processes
        self._receive_clock = receive_clock
        self._steps: dict[tuple[Track, int], RankStep] = {}
        for _, value in state.items(_STEPS):
            step = _restored(value)
            self._steps[step.track, step.number] = step
        pace = cast("list[tuple[str, int, int, int]]", state.get(_PACE) or [])
        self._pace: dict[Track, dict[int, int]] = {}
        """Last step of each rank, by track."""
        for role, attempt, rank, last in pace:
            self._pace.setdefault((role, attempt), {})[rank] = last
        self._forgotten = ForgottenSteps(state, _FORGOTTEN)
        self._changed: set[tuple[Track, int]] = set()
        self._checked_ns = 0

    def rows(self, rows: Iterable[Row], now_unix_ns: int) -> list[Record]:
        """Return *rows* with merged rows in the place of those that ranks sent."""
        shown: list[Record] = []
        for row in rows:
            process = self._processes.get(row.id.split(":", 2)[1])
            if process is not None and process.merge_world:
                shown += self.take(process, row, now_unix_ns)
            else:
                shown.append(row)
        return shown

    def take(self, process: Process, row: Row, now_unix_ns: int) -> list[Record]:
        """Add the row of a rank; return the rows of the steps that every rank has passed."""
        track = (row.role or "", row.attempt)
        number = row.step or 0
        if self._forgotten.has(track, number):
            count(self._state, LATE)
            return []
        pace = self._pace.setdefault(track, {})
        pace[process.rank] = max(number, pace.get(process.rank, number))
        step = self._steps.get((track, number))
        if step is None:
            step = self._steps[track, number] = RankStep(track, number)
        step.add(row, process, now_unix_ns)
        self._changed.add((track, number))
        rows = self._due(now_unix_ns)
        return rows + self._within_bound()

    def tick(self, now_unix_ns: int) -> list[Record]:
        """Return the rows of steps that have waited long enough, or whose missing ranks have ended."""
        if not self._steps or now_unix_ns - self._checked_ns < _CHECK_NS:
            return []
        self._checked_ns = now_unix_ns
        return self._due(now_unix_ns)

    def close(self) -> list[Record]:
        """Return the rows of all open steps, since no more rows will arrive."""
        return [self._row(step) for step in self._steps.values() if step.is_open]

    def flush(self) -> None:
        """Write what changed to the state."""
        for track, number in self._changed:
            step = self._steps.get((track, number))
            if step is not None:
                self._state.set(_state_key(track, number), _stored(step))
        if self._changed:
            pace = [[*track, rank, last] for track, ranks in self._pace.items() for rank, last in ranks.items()]
            self._state.set(_PACE, pace)
        self._changed.clear()

    def _due(self, now_unix_ns: int) -> list[Record]:
        open_steps = sorted((step for step in self._steps.values() if step.is_open), key=lambda step: step.number)
        rows: list[Record] = []
        for step in open_steps:
            waited = self._receive_clock.due(step.last_ns, self._watermark_ns) <= now_unix_ns
            if waited or self._is_passed(step):
                rows.append(self._row(step))
        return rows

    def _is_passed(self, step: RankStep) -> bool:
        """Return whether every rank of the world has logged a later step, or has logged one and ended."""
        pace = self._pace[step.track]
        passed = {rank for rank, last in pace.items() if last > step.number}
        if len(passed) < step.world:
            passed |= self._ended_ranks(step.track[0])
        return len(passed) >= step.world

    def _ended_ranks(self, role: str) -> set[int]:
        own = [process for process in self._processes.values() if process.merge_world and (process.role or "") == role]
        living = {process.rank for process in own if process.status is None}
        return {process.rank for process in own} - living

    def _row(self, step: RankStep) -> Row:
        role, attempt = step.track
        axis = axis_of(role or None)
        row_id = f"r:{role}:{step.number}:a{attempt}"
        values = step.values()
        if attempt > 1:
            values[key_of(role or None, ATTEMPT)] = attempt
        row = Row(
            id=f"{row_id}:{step.revision}" if step.revision else row_id,
            role=role or None,
            step=step.number,
            axis=axis,
            time_unix_ns=step.time_unix_ns,
            values=self._axes.admit(values, axis),
            steps=self._axes.beside(axis, step.number),
            attempt=attempt,
        )
        step.revision += 1
        step.is_open = False
        self._changed.add((step.track, step.number))
        return row

    def _within_bound(self) -> list[Record]:
        """Forget the earliest steps beyond the bound; return the rows of those that are open."""
        rows: list[Record] = []
        while len(self._steps) > _MAX_STEPS:
            track, number = min(self._steps, key=lambda key: self._steps[key].last_ns)
            step = self._steps.pop((track, number))
            if step.is_open:
                rows.append(self._row(step))
            self._forgotten.add(track, number)
            self._changed.discard((track, number))
            self._state.delete(_state_key(track, number))
        return rows


def _reductions(row: Row) -> Iterator[tuple[str, tuple[str, float]]]:
    """Yield each key with the reduction and weight that the row names for it."""
    for key, value in row.values.items():
        _, prefix, named = key.partition(REDUCE_PREFIX)
        reduction, _, name = named.partition("/")
        if prefix and not isinstance(value, Distribution):
            yield key_of(row.role, name), (reduction, value)


def _joined(first: Distribution, second: Distribution) -> Distribution:
    """Return both together. Of other edges than the first one's the counts go to the bucket of their middle."""
    low = min(first.min, second.min)
    high = max(first.max, second.max)
    edges = first.edges if len(first.edges) >= len(second.edges) else second.edges
    counts = [0] * max(len(edges) - 1, 0)
    for part in (first, second):
        for below, above, number in zip(part.edges, part.edges[1:], part.counts):  # noqa: B905  # edges has one more
            counts[_bucket(edges, (below + above) / 2)] += number
    return Distribution(first.count + second.count, first.sum + second.sum, low, high, edges, tuple(counts))


def _bucket(edges: tuple[float, ...], value: float) -> int:
    return min(max(sum(edge <= value for edge in edges) - 1, 0), len(edges) - 2)


_Totals: TypeAlias = tuple[str, int, float, float, float, float, float]
_Distribution: TypeAlias = tuple[int, float, float, float, list[float], list[int]]


def _state_key(track: Track, number: int) -> str:
    role, attempt = track
    return f"{_STEPS}{role}/{number}@{attempt}"


def _stored(step: RankStep) -> object:
    return {
        "step": [*step.track, step.number, step.world, step.last_ns, step.time_unix_ns, step.revision, step.is_open],
        "ranks": sorted(step.ranks),
        "totals": {key: [getattr(totals, name) for name in KeyTotals.__slots__] for key, totals in step.totals.items()},
        "distributions": {
            key: [value.count, value.sum, value.min, value.max, list(value.edges), list(value.counts)]
            for key, value in step.distributions.items()
        },
    }


def _restored(value: object) -> RankStep:
    stored = cast("dict[str, object]", value)
    facts = cast("tuple[str, int, int, int, int, int, int, bool]", stored["step"])
    role, attempt, number, world, last_ns, time_unix_ns, revision, is_open = facts
    step = RankStep((role, attempt), number, world, last_ns, time_unix_ns, revision=revision, is_open=is_open)
    step.ranks = set(cast("list[int]", stored["ranks"]))
    for key, totals in cast("dict[str, _Totals]", stored["totals"]).items():
        step.totals[key] = KeyTotals(*totals)
    for key, distribution in cast("dict[str, _Distribution]", stored["distributions"]).items():
        number_, total, low, high, edges, counts = distribution
        step.distributions[key] = Distribution(number_, total, low, high, tuple(edges), tuple(counts))
    return step
