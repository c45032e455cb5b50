"""Readings of one series of an engine -> what it added between two rows, and the values of a row. Pure.

Rates and quantiles are computed as Prometheus does, from the differences of successive readings.
Source: prometheus, promql/quantile.go, ``bucketQuantile``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

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
        if reading.kind == GAUGE:
            self._add(reading.numbers, 1)
            return False
        if _has_restarted(reading, previous):
            return True
        differences = [
            now - then
            for now, then in zip(reading.numbers, previous.numbers, strict=True)
        ]
        self._add(differences, reading.time_ns - previous.time_ns)
        return False

    def begin_row(self) -> None:
        """Forget what was added, because a row has it."""
        self.added = []
        self.covered = 0

    def _add(self, numbers: Sequence[float], covered: int) -> None:
        # Buckets of another number begin anew: they cannot be added to those before.
        if self.covered and len(self.added) == len(numbers):
            numbers = [
                total + number
                for total, number in zip(self.added, numbers, strict=True)
            ]
            covered += self.covered
        self.added = list(numbers)
        self.covered = covered


def _has_restarted(reading: Reading, previous: Reading) -> bool:
    """Return whether *reading* does not continue *previous*: smaller, of another form, or begun later.

    Two engines behind one address look so too.
    """
    is_another_form = (reading.kind, reading.bounds) != (previous.kind, previous.bounds)
    # The start time shows a restart even if the new counts are already higher.
    if is_another_form or reading.start_ns > previous.start_ns > 0:
        return True
    return any(
        now < then for now, then in zip(reading.numbers, previous.numbers, strict=True)
    )


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
    forms = Counter(member.last.bounds for member in series)
    bounds, _ = forms.most_common(1)[0]
    if not bounds:
        return
    members = [member.added for member in series if member.last.bounds == bounds]
    counts = tuple(int(sum(bucket)) for bucket in zip(*members, strict=True))
    # The first bucket begins at 0, as in Prometheus. How far the last one goes is unknown: it has
    # no width.
    edges = (min(0.0, bounds[0]), *bounds, bounds[-1])
    distribution = Distribution(
        sum(counts), math.nan, math.nan, math.nan, edges, counts
    )
    for ending, share in _QUANTILES.items():
        value = distribution.quantile(share)
        if not math.isnan(value):
            yield ending, value


_VALUES = {
    GAUGE: _gauge,
    COUNTER: _counter,
    HISTOGRAM: _histogram,
}
