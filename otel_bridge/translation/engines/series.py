"""Readings of one series of an engine -> what it added between two rows, and the values of a row. Pure.

Rates and quantiles are computed as Prometheus does, from the differences of successive readings.
Source: prometheus, promql/quantile.go, ``bucketQuantile``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from operator import add, lt, sub

from otel_bridge.records import Distribution
from otel_bridge.translation.options import SECOND_NS

_QUANTILES = {"/p50": 0.5, "/p90": 0.9, "/p99": 0.99}


GAUGE = "gauge"
COUNTER = "counter"
HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Reading:
    """Holds the numbers of one series at one time.

    Attributes:
        kind: Type of the family, as Prometheus names it.
        time_ns: Unix ns of the scrape.
        start_ns: Unix ns at which the engine began to count; 0: unknown.
        numbers: The value; for a histogram the numbers in each bucket, shape (n + 1,).
        bounds: Upper bounds of a histogram, shape (n,).
    """

    kind: str
    time_ns: int
    start_ns: int
    numbers: tuple[float, ...]
    bounds: tuple[float, ...] = ()


@dataclass(slots=True)
class Series:
    """Holds the last reading of a series, and what was added since the last row.

    Attributes:
        last: The last reading.
        added: Sum of the differences of readings; for a gauge, of its values.
        covered: Nanoseconds between the readings of these differences; for a gauge, the number of
            its values.
    """

    last: Reading
    added: list[float] = field(default_factory=list[float])
    covered: int = 0

    @classmethod
    def begun(cls, reading: Reading) -> Series:
        """Return a series of one reading: a gauge has its first value, everything else no difference yet."""
        series = cls(reading)
        if reading.kind == GAUGE:
            series._add(reading.numbers, 1)
        return series

    def take(self, reading: Reading) -> bool:
        """Add what *reading* has more than the last one.

        Return whether the engine began to count again.

        After a restart of the engine nothing is added, since what was counted meanwhile is unknown.
        A reading that is not newer was redelivered.
        """
        previous = self.last
        if reading.time_ns <= previous.time_ns:
            return False
        self.last = reading
        is_same_form = (reading.kind, reading.bounds) == (
            previous.kind,
            previous.bounds,
        )
        # Numbers of other buckets cannot be added to those before.
        if not is_same_form:
            self.begin_row()
        if reading.kind == GAUGE:
            self._add(reading.numbers, 1)
            return False
        # The start time shows a restart even if the new counts are already higher. Two engines
        # behind one address look so too.
        if (
            not is_same_form
            or reading.start_ns > previous.start_ns > 0
            or any(map(lt, reading.numbers, previous.numbers))
        ):
            return True
        self._add(
            map(sub, reading.numbers, previous.numbers),
            reading.time_ns - previous.time_ns,
        )
        return False

    def begin_row(self) -> None:
        """Forget what was added, because a row has it."""
        self.added = []
        self.covered = 0

    def _add(self, numbers: Iterable[float], covered: int) -> None:
        self.added = list(map(add, numbers, self.added or repeat(0.0)))
        self.covered += covered


def row_values(series: Sequence[Series]) -> Iterator[tuple[str, float]]:
    """Yield what a row shows of the series of one key together: each ending of the key, with its value.

    Nothing is yielded for series without two readings that follow each other.
    """
    by_kind: dict[str, list[Series]] = {}
    for member in series:
        if member.covered:
            by_kind.setdefault(member.last.kind, []).append(member)
    for kind, members in by_kind.items():
        yield from _VALUES[kind](members)


def _gauge(series: Sequence[Series]) -> Iterator[tuple[str, float]]:
    """Yield the mean, and the sum of several: a share is read by the one, a queue by the other."""
    means = [member.added[0] / member.covered for member in series]
    yield "", sum(means) / len(means)
    if len(means) > 1:
        yield "/sum", sum(means)


def _counter(series: Sequence[Series]) -> Iterator[tuple[str, float]]:
    """Yield the sum of the rates, each over the time that its own readings cover."""
    yield (
        "/per_s",
        sum(member.added[0] * SECOND_NS / member.covered for member in series),
    )


def _histogram(series: Sequence[Series]) -> Iterator[tuple[str, float]]:
    """Yield the quantiles of the buckets that most of the series have: engines of two versions may differ.

    Nothing without bounds, or when nothing was observed.
    """
    added: dict[tuple[float, ...], list[list[float]]] = {}
    for member in series:
        added.setdefault(member.last.bounds, []).append(member.added)
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


_VALUES = {
    GAUGE: _gauge,
    COUNTER: _counter,
    HISTOGRAM: _histogram,
}
