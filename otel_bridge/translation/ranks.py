"""Rows of all ranks of a role -> one row a step, with ``OTEL_BRIDGE_RANKS=merge``. Pure.

Each key has a state that two rows add to in any order: number, sum, weighted sum, minimum and
maximum. A step closes when every rank of the world has logged a later one or has ended, or
`TranslationOptions.step_watermark_ns` after its last row. A row that arrives later gives a further
one, which replaces the values of the first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar

from otel_bridge.records import Distribution, Record, Row, Value, key_of
from otel_bridge.semconv import REDUCE_PREFIX
from otel_bridge.translation.metrics.keys import ATTEMPT
from otel_bridge.translation.processes.process import Process
from otel_bridge.translation.run_context import RunContext
from otel_bridge.translation.step_rows import CollectedStep, StepPipeline

_RANKS = "ranks"
"""Key of the number of ranks that a row holds."""


@dataclass(slots=True)
class KeyTotals:
    """Holds what rows of several ranks have under one key.

    Attributes:
        reduction: Value under the key itself: ``mean``, ``min``, ``max`` or ``sum``.
        weight: Sum of the weights of the values.
        weighted: Sum of the values times their weights.
        total: Sum of the values without weights.
    """

    reduction: str = "mean"
    weight: float = 0
    weighted: float = 0
    low: float = math.inf
    high: float = -math.inf
    total: float = 0

    def add(self, value: float, weight: float) -> None:
        """Add the value of one row."""
        # A rank without samples has weight 0, and often a mean of NaN, which times 0 stays NaN.
        if weight:
            self.weight += weight
            self.weighted += value * weight
        self.total += value
        # NaN is below nothing and above nothing, so it needs the explicit check to stick.
        if math.isnan(value) or value < self.low:
            self.low = value
        if math.isnan(value) or value > self.high:
            self.high = value

    def results(self) -> dict[str, float]:
        """Return the result of each reduction.

        The mean is NaN when all weights are 0, as it would be of no values. A value that is NaN
        makes every result NaN, as in numpy, but not the mean if its weight is 0.
        """
        return {
            "mean": self.weighted / self.weight if self.weight else math.nan,
            "min": self.low,
            "max": self.high,
            "sum": self.total,
        }


@dataclass(slots=True)
class RankStep(CollectedStep):
    """Holds the rows of one step.

    Attributes:
        world: Number of ranks of the job.
        ranks: Ranks that have sent a row.
        totals: Numbers by key.
        distributions: Distributions by key.
    """

    SPACE: ClassVar[str] = "ranks"
    ROW_ID: ClassVar[str] = "r:"
    ARE_STATISTICS: ClassVar[bool] = False

    world: int = 1
    ranks: set[int] = field(default_factory=set[int])
    totals: dict[str, KeyTotals] = field(default_factory=dict[str, KeyTotals])
    distributions: dict[str, Distribution] = field(
        default_factory=dict[str, Distribution]
    )

    def add(self, row: Row, process: Process, now_unix_ns: int) -> None:
        """Add a row of one rank; the values of all its rows of the step count.

        The last row decides on the size of the world, which a restart may have changed. A key keeps
        the reduction that a row named last.
        """
        self.world = max(process.merge_world, 1)
        self.arrive(now_unix_ns, row.time_unix_ns)
        self.ranks.add(process.rank)
        reductions = dict(_reductions(row))
        attempt_key = key_of(row.role, ATTEMPT)
        for key, value in row.values.items():
            # The attempt and the reductions are about the row: the row of the step has its own
            # attempt. A value of that name which the program logs is merged as any other.
            is_repeated = row.attempt > 1 and value == row.attempt
            if (is_repeated and key == attempt_key) or REDUCE_PREFIX in key:
                continue
            if isinstance(value, Distribution):
                total = self.distributions.get(key)
                self.distributions[key] = _joined(total, value) if total else value
                continue
            reduction, weight = reductions.get(key, ("", 1))
            totals = self.totals.setdefault(key, KeyTotals())
            totals.reduction = reduction or totals.reduction
            totals.add(value, weight)


class RankMerge(StepPipeline[RankStep]):
    """Merges the rows of one run's ranks.

    Args:
        run: The run; key space ``ranks/`` of its state.
    """

    def __init__(self, run: RunContext) -> None:
        super().__init__(run, RankStep)

    def merge(self, rows: Iterable[Row], now_unix_ns: int) -> list[Record]:
        """Return the merged rows that are due once *rows* are added to their steps, perhaps none.

        Rows of a process without ``OTEL_BRIDGE_RANKS=merge``, or that the run has forgotten, are
        returned as they are.
        """
        records: list[Record] = []
        for row in rows:
            # A row names its process nowhere but in its id, ``m:<instance>:<number>``.
            process = self._run.processes.get(row.id.split(":", 2)[1])
            if process is not None and process.merge_world:
                records += self.take(process, row, now_unix_ns)
            else:
                records.append(row)
        return records

    def take(self, process: Process, row: Row, now_unix_ns: int) -> list[Record]:
        """Add the row of a rank to its step; return the rows of the steps that are due.

        A row whose step is forgotten is dropped and counted as ``ranks/late``.
        """
        track = (row.role or "", row.attempt)
        number = row.step or 0
        step = self.find(track, number)
        # Counted by `find`: its row can no longer be made.
        if step is None:
            return []
        has_advanced = self._workers.sent(
            process.instance, row.role, "", number, now_unix_ns
        )
        step.add(row, process, now_unix_ns)
        records: list[Record] = []
        # Once a step, with the row of its last rank: each check looks at all processes. Where ranks
        # skip steps, or one has died, the next tick finds what is due.
        if has_advanced and len(step.ranks) >= step.world:
            records += self.due(now_unix_ns)
        return records + self.beyond_bound(now_unix_ns)

    def values(self, step: RankStep) -> dict[str, Value]:
        """Return the values of a row of *step*: of each key the chosen result, the others below it.

        A key that a rank logged wins over a result of that name.
        """
        values: dict[str, Value] = {key_of(step.role, _RANKS): len(step.ranks)}
        for key, totals in step.totals.items():
            for reduction, result in totals.results().items():
                name = f"{key}/{reduction}"
                if reduction == totals.reduction:
                    values[key] = result
                elif name not in step.totals:
                    values[name] = result
        return {**values, **step.distributions}

    def wait_ns(self, step: RankStep, now_unix_ns: int) -> int:
        """Return how long the row waits for the rows of further ranks; 0 once all have passed its step.

        A rank passes a step with a row of a later one, since it may log one step several times.
        """
        role = step.track[0]
        reach = self.reach(role, now_unix_ns)
        living = self._workers.living(role, now_unix_ns)
        ranks: set[int] = set()
        silent: set[int] = set()
        for process in self._run.processes.values():
            if process.merge_world and (process.role or "") == role:
                ranks.add(process.rank)
                # A rank that was restarted, or has not logged yet, is awaited.
                if process.status is None and process.instance not in living:
                    silent.add(process.rank)
        # Of a rank that has not started, only the size of the world is known.
        has_all = len(ranks - silent) >= step.world
        if has_all and step.number < reach.past_below:
            return 0
        return self._run.options.step_watermark_ns


def _reductions(row: Row) -> Iterator[tuple[str, tuple[str, float]]]:
    """Yield each key with the reduction and weight that the row names for it.

    They are values of the row, ``rl.reduce/<reduction>/<key>``: so they arrive with it, in one
    frame.
    """
    for key, value in row.values.items():
        _, prefix, suffix = key.partition(REDUCE_PREFIX)
        reduction, _, name = suffix.partition("/")
        if prefix and not isinstance(value, Distribution):
            yield key_of(row.role, name), (reduction, value)


def _joined(first: Distribution, second: Distribution) -> Distribution:
    """Return the sum of both, in the finer edges of the two; without buckets when neither has any.

    Counts of the other edges go to the bucket of their middle, those beyond the edges to the
    outermost bucket, since the place of a number within its bucket is unknown.
    """
    edges = max(first.edges, second.edges, key=len)
    counts: list[float] = []
    if edges:
        # Only merged histograms need it, and the start of every bridge would take 0.1 s longer.
        import numpy  # noqa: PLC0415

        buckets = [*pairwise(first.edges), *pairwise(second.edges)]
        middles = numpy.mean(buckets, axis=1).clip(edges[0], edges[-1])
        numbers = [*first.counts, *second.counts]
        counts = numpy.histogram(middles, edges, weights=numbers)[0].tolist()
    return Distribution(
        first.count + second.count,
        first.sum + second.sum,
        min(first.min, second.min),
        max(first.max, second.max),
        edges,
        tuple(map(int, counts)),
    )
