"""Readings of one series of an engine -> what it added between two rows, and the values of a row. Pure.

Rates and quantiles are computed as Prometheus does, from the differences of successive readings.
Source: prometheus, promql/quantile.go, ``bucketQuantile``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from otel_bridge.records import Distribution
from otel_bridge.translation.options import SECOND_NS

_QUANTILES = {"/p50": 0.5, "/p90": 0.9, "/p99": 0.99}


GAUGE = "gauge"
COUNTER = "counter"
HISTOGRAM = "histogram"


@dataclass(slots=True)
class Series:
    """Holds the last reading of one series, and what was added since the last row.

    Attributes:
        kind: Type of the family, as Prometheus names it.
        time_ns: Unix ns of the scrape.
        start_ns: Unix ns at which the engine began to count; 0: unknown.
        numbers: The value; for a histogram the numbers in each bucket, shape (n + 1,).
        bounds: Upper bounds of a histogram, shape (n,).
        added: Sum of the differences of readings; for a gauge, of its values.
        covered: Nanoseconds between the readings of these differences; for a gauge, the number of
            its values.
    """

    kind: str
    time_ns: int
    start_ns: int
    numbers: tuple[float, ...]
    bounds: tuple[float, ...] = ()
    added: list[float] = field(default_factory=list[float])
    covered: int = 0

    def follow(self, previous: Series | None) -> bool:
        """Take over what *previous* has added, and add what this newer reading has more.

        Return whether the engine began to count again. Then nothing is added, since what was
        counted meanwhile is unknown. The first reading of a series has no difference, only a gauge
        a value.
        """
        is_same_form = previous is not None and (self.kind, self.bounds) == (
            previous.kind,
            previous.bounds,
        )
        # Numbers of other buckets cannot be added to those before.
        if previous is not None and is_same_form:
            self.added = previous.added
            self.covered = previous.covered
        if self.kind == GAUGE:
            self._add(self.numbers, 1)
            return False
        if previous is None:
            return False
        # The start time shows a restart even if the new counts are already higher. Two engines
        # behind one address look so too.
        if not is_same_form or self.start_ns > previous.start_ns > 0:
            return True
        pairs = zip(self.numbers, previous.numbers, strict=True)
        differences = [later - earlier for later, earlier in pairs]
        if min(differences, default=0.0) < 0:
            return True
        self._add(differences, self.time_ns - previous.time_ns)
        return False

    def begin_row(self) -> None:
        """Forget what was added, because a row has it."""
        self.added = []
        self.covered = 0

    def _add(self, numbers: Sequence[float], covered: int) -> None:
        totals = self.added or [0.0] * len(numbers)
        self.added = [
            total + number for total, number in zip(totals, numbers, strict=True)
        ]
        self.covered += covered


def row_values(series: Sequence[Series]) -> Iterator[tuple[str, float]]:
    """Yield what a row shows of the series of one key together: each ending of the key, with its value.

    Nothing is yielded for series without two readings that follow each other. Of a gauge these are
    the mean, and the sum of several: a share is read by the one, a queue by the other. Of a counter
    it is the sum of the rates, each over the time that its own readings cover.
    """
    by_kind: dict[str, list[Series]] = {}
    for member in series:
        if member.covered:
            by_kind.setdefault(member.kind, []).append(member)
    for kind, members in by_kind.items():
        if kind == HISTOGRAM:
            yield from _quantiles(members)
            continue
        means = [member.added[0] / member.covered for member in members]
        if kind == COUNTER:
            yield "/per_s", sum(means) * SECOND_NS
            continue
        yield "", fmean(means)
        if len(means) > 1:
            yield "/sum", sum(means)


def _quantiles(series: Sequence[Series]) -> Iterator[tuple[str, float]]:
    """Yield the quantiles of the buckets that most of the series have: engines of two versions may differ.

    Nothing without bounds, or when nothing was observed.
    """
    added: dict[tuple[float, ...], list[list[float]]] = {}
    for member in series:
        added.setdefault(member.bounds, []).append(member.added)
    bounds, members = max(added.items(), key=lambda form: len(form[1]))
    counts = tuple(int(sum(bucket)) for bucket in zip(*members, strict=True))
    if not bounds or not sum(counts):
        return
    # The first bucket begins at 0, as in Prometheus. How far the last one goes is unknown: it has
    # no width.
    edges = (min(0.0, bounds[0]), *bounds, bounds[-1])
    distribution = Distribution(
        sum(counts), math.nan, math.nan, math.nan, edges, counts
    )
    for ending, share in _QUANTILES.items():
        yield ending, distribution.quantile(share)
