"""Numbers -> one exponential histogram point: at most 160 buckets per sign, at the finest scale that fits.

Bucket ``i`` of scale ``s`` holds ``(base**i, base**(i + 1)]`` with ``base = 2 ** 2**-s``. Source:
OpenTelemetry metrics data model, "ExponentialHistogram"; opentelemetry-proto, metrics.proto,
``ExponentialHistogramDataPoint``. Pure.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from otel_bridge.emit.encode.protobuf import (
    DELTA,
    double,
    fixed64,
    message,
    varint,
    zigzag,
)

if TYPE_CHECKING:
    import numpy as np

    _Doubles: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
    _Numbers: TypeAlias = Sequence[float] | _Doubles

# Both are the defaults of OpenTelemetry's SDK specification for exponential histograms.
MAX_SCALE = 20
MAX_BUCKETS = 160


@dataclass(frozen=True, slots=True)
class Histogram:
    """Holds numbers to be logged as a distribution: ``run.log({"advantage": Histogram(values)})``.

    Give the numbers, or a histogram of them that is already counted. What cannot be used is counted
    when it is logged.

    Attributes:
        values: An array or any iterable of numbers; read once, when the histogram is logged.
        counts: Numbers in each bucket, shape (n,), n up to 4,096.
        edges: Edges of the buckets, shape (n + 1,), finite, not decreasing.
        np_histogram: Counts and edges together, as ``numpy.histogram`` returns them.
    """

    values: Iterable[object] | None = None
    counts: Iterable[object] | None = field(default=None, kw_only=True)
    edges: Iterable[object] | None = field(default=None, kw_only=True)
    np_histogram: tuple[Iterable[object], Iterable[object]] | None = field(
        default=None, kw_only=True
    )


@dataclass(frozen=True, slots=True)
class Buckets:
    """Holds the counts of consecutive buckets, the first of which has index *offset*."""

    offset: int
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HistogramPoint:
    """Holds the fields of an exponential histogram point, in the units of the numbers."""

    count: int
    sum: float
    min: float
    max: float
    scale: int
    zero_count: int
    positive: Buckets
    negative: Buckets


def distribution_of(numbers: Sequence[float]) -> HistogramPoint:
    """Count *numbers* (finite, at least one) into buckets."""
    positive = [number for number in numbers if number > 0]
    negative = [-number for number in numbers if number < 0]
    return _point(numbers, positive, negative, sum(numbers))


def distribution_of_array(numbers: _Doubles) -> HistogramPoint:
    """Count a flat numpy array (finite, at least one) into buckets.

    The sum is numpy's, in its own order. With numpy a million numbers take milliseconds, without it
    most of a second.
    """
    # A sum beyond a double is an infinity, no warning.
    with sys.modules["numpy"].errstate(all="ignore"):
        total = float(numbers.sum())
    return _point(numbers, numbers[numbers > 0], -numbers[numbers < 0], total)


def _point(
    numbers: _Numbers, positive: _Numbers, negative: _Numbers, total: float
) -> HistogramPoint:
    """Return the point of *numbers*, whose positive ones and negated negative ones are given too.

    Both signs have one scale, the coarser of the two, as the format has one field for it.
    """
    scale = MAX_SCALE
    for side in (positive, negative):
        if len(side):
            scale = min(scale, _scale_of(*_ends(side)))
    low, high = _ends(numbers)
    return HistogramPoint(
        count=len(numbers),
        sum=total,
        min=low,
        max=high,
        scale=scale,
        zero_count=len(numbers) - len(positive) - len(negative),
        positive=_buckets(positive, scale),
        negative=_buckets(negative, scale),
    )


def _ends(numbers: _Numbers) -> tuple[float, float]:
    if isinstance(numbers, Sequence):
        return min(numbers), max(numbers)
    return float(numbers.min()), float(numbers.max())


def bucket_index(number: float, scale: int) -> int:
    """Return the index of the bucket that holds *number* (above zero), within the exactness of a logarithm."""
    # log2 is exact for powers of two, which are the closed upper ends of their buckets.
    return math.ceil(math.ldexp(math.log2(number), scale)) - 1


def encode_point(point: HistogramPoint, time_unix_ns: int, attributes: bytes) -> bytes:
    """Encode the data part of a ``Metric``: field 10, ``ExponentialHistogram``, delta, one point.

    Scale and offset are left out when 0, as protobuf leaves out default values.

    Args:
        point: The point.
        time_unix_ns: Time of the point.
        attributes: Attributes of the point, already encoded as field 1.
    """
    # The numbers are those of ExponentialHistogramDataPoint. A point has no start (field 2): it is
    # of one moment.
    fields = (
        attributes,
        fixed64(3, time_unix_ns),
        fixed64(4, point.count),
        double(5, point.sum),
        # Field 6, a sint32.
        b"\x30" + zigzag(point.scale) if point.scale else b"",
        fixed64(7, point.zero_count),
        _encode_buckets(8, point.positive),
        _encode_buckets(9, point.negative),
        double(12, point.min),
        double(13, point.max),
    )
    return message(10, message(1, b"".join(fields)) + DELTA)


def _encode_buckets(field: int, buckets: Buckets) -> bytes:
    if not buckets.counts:
        return b""
    offset = b"\x08" + zigzag(buckets.offset) if buckets.offset else b""
    return message(field, offset + message(2, b"".join(map(varint, buckets.counts))))


def _scale_of(low: float, high: float) -> int:
    """Return the finest scale at which the buckets from *low* to *high*, both above 0, fit the limit.

    Buckets of one scale halve at the next finer one, so that the logarithm of the span gives it but
    for rounding.
    """
    span = math.log2(high) - math.log2(low)
    if span > 0:
        scale = min(MAX_SCALE, math.frexp(MAX_BUCKETS / span)[1])
    else:
        scale = MAX_SCALE
    # The estimate above is of rounded logarithms, and may be too fine by one.
    while bucket_index(high, scale) - bucket_index(low, scale) >= MAX_BUCKETS:
        scale -= 1
    return scale


def _buckets(numbers: _Numbers, scale: int) -> Buckets:
    """Return the counts of consecutive buckets at *scale*.

    None without numbers, which are all above 0. The index is that of `bucket_index`, written out: a
    call for each number of a list would take most of the time.
    """
    if not len(numbers):
        return Buckets(0, ())
    if not isinstance(numbers, Sequence):
        numpy = sys.modules["numpy"]
        indices = numpy.ceil(numpy.log2(numbers) * 2.0**scale).astype(numpy.int64)
        first = int(indices.min())
        return Buckets(first - 1, tuple(numpy.bincount(indices - first).tolist()))
    factor = 2.0**scale
    log2 = math.log2
    ceil = math.ceil
    counts_by_index = Counter([ceil(log2(number) * factor) for number in numbers])
    first = min(counts_by_index)
    last = max(counts_by_index)
    return Buckets(
        first - 1, tuple(counts_by_index[index] for index in range(first, last + 1))
    )
