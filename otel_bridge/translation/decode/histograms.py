"""OTLP histogram points -> `Distribution` with closed edges. Pure; units pass through.

Source: opentelemetry-proto, metrics.proto, ``HistogramDataPoint``,
``ExponentialHistogramDataPoint``.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from itertools import pairwise

from opentelemetry.proto.metrics.v1 import metrics_pb2 as pb

from otel_bridge.records import NARROW, Distribution

_MAX_BUCKETS = 4_096
"""Most buckets of a point; SDKs send 160 by default. A larger point keeps count, sum, minimum and
maximum only."""


def explicit(point: pb.HistogramDataPoint) -> Distribution:
    """Convert an explicit histogram; buckets that do not fit their bounds are left out.

    NaN stands for a sum, minimum or maximum that the point lacks. Buckets beyond `_MAX_BUCKETS` are
    left out too. What is left of such a point is right all the same.
    """
    total, low, high = _summary(point)
    bounds = list(point.explicit_bounds)
    counts = list(point.bucket_counts)
    usable = (
        0 < len(counts) <= _MAX_BUCKETS
        and len(counts) == len(bounds) + 1
        and _increasing(bounds)
    )
    if not usable:
        return Distribution(point.count, total, low, high)
    edges, closed_counts = closed(
        [-math.inf, *bounds, math.inf], counts, low=low, high=high
    )
    return Distribution(point.count, total, low, high, edges, closed_counts)


def exponential(point: pb.ExponentialHistogramDataPoint) -> Distribution:
    """Convert an exponential histogram: negative buckets, the zero bucket, positive buckets.

    Of more than `_MAX_BUCKETS` buckets only the summary is kept.
    """
    total, low, high = _summary(point)
    negative = list(point.negative.bucket_counts)
    positive = list(point.positive.bucket_counts)
    if len(negative) + len(positive) > _MAX_BUCKETS:
        return Distribution(point.count, total, low, high)
    edges: list[float] = []
    counts: list[int] = []
    # Between the zero bucket and the nearest power is a bucket too, without numbers.
    if any(negative):
        powers = _powers(point.scale, point.negative.offset, len(negative))
        # Not `-power`, nor `-threshold` below, which may be -0.0: it would be shown.
        edges += [0.0 - power for power in reversed(powers)]
        counts += [*reversed(negative), 0]
    # Finite, as every edge: a producer may send any float.
    threshold = min(abs(point.zero_threshold), sys.float_info.max)
    edges += [0.0 - threshold, threshold]
    counts.append(point.zero_count)
    if any(positive):
        edges += _powers(point.scale, point.positive.offset, len(positive))
        counts += [0, *positive]
    edges_closed, closed_counts = closed(edges, counts, low=low, high=high)
    return Distribution(point.count, total, low, high, edges_closed, closed_counts)


def _summary(
    point: pb.HistogramDataPoint | pb.ExponentialHistogramDataPoint,
) -> tuple[float, float, float]:
    """Return sum, minimum and maximum; NaN where the point has none."""
    total = point.sum if point.HasField("sum") else math.nan
    low = point.min if point.HasField("min") else math.nan
    high = point.max if point.HasField("max") else math.nan
    return total, low, high


def closed(
    edges: Sequence[float], counts: Sequence[int], *, low: float, high: float
) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Leave out the empty buckets at both ends and close the outer edges, so that a tracker can draw them.

    Args:
        edges: Bucket edges, shape (n + 1,); the outer ones may be infinite. A bucket whose end is
            not above the one before adds its numbers to that: a zero bucket may be wider than
            powers.
        counts: Numbers in each bucket, shape (n,).
        low: The smallest number, ``nan`` when unknown.
        high: The largest number, ``nan`` when unknown.

    Returns:
        Strictly increasing finite edges, shape (m + 1,), and counts, shape (m,); both empty when
        all counts are 0.
    """
    used = [index for index, count in enumerate(counts) if count]
    if not used:
        return (), ()
    first = used[0]
    last = used[-1]
    kept_edges = list(edges[first : last + 2])
    kept_counts = list(counts[first : last + 1])
    kept_edges[0] = _outer_low(kept_edges, low)
    kept_edges[-1] = _outer_high(kept_edges, high)
    out_edges = [kept_edges[0]]
    out_counts = list[int]()
    for edge, count in zip(kept_edges[1:], kept_counts, strict=True):
        if edge > out_edges[-1]:
            out_edges.append(edge)
            out_counts.append(count)
        elif out_counts:
            out_counts[-1] += count
        else:
            out_edges[:] = _around(out_edges[-1])
            out_counts.append(count)
    return tuple(out_edges), tuple(out_counts)


def _outer_low(edges: Sequence[float], low: float) -> float:
    """Return the lower end of the first bucket: the smallest number when inside the bucket, else a finite edge.

    An infinite bucket without a smallest number gets the width of the next one, or 1: any picture
    of it is a guess.
    """
    bottom = edges[0]
    top = edges[1]
    if math.isfinite(low) and bottom <= low < top:
        return low
    if math.isfinite(bottom):
        return bottom
    if not math.isfinite(top):  # one bucket from -inf to inf
        if math.isfinite(low):
            return low
        return 0.0
    width = 1.0
    if len(edges) > 2 and math.isfinite(edges[2]):
        width = edges[2] - top
    return top - width


def _outer_high(edges: Sequence[float], high: float) -> float:
    """Return the upper end of the last bucket, as `_outer_low` does of the mirrored buckets."""
    mirrored = [-edge for edge in reversed(edges)]
    return -_outer_low(mirrored, -high)


def _around(edge: float) -> tuple[float, float]:
    """Return the edges of a bucket whose numbers all equal *edge*.

    Drawing a bucket needs some width.

    Upwards, or downwards where the largest float ends.
    """
    above = edge + max(abs(edge), 1.0) * NARROW
    if math.isfinite(above):
        return (edge, above)
    return (math.nextafter(edge, 0.0), edge)


def _powers(scale: int, offset: int, buckets: int) -> list[float]:
    """Return the ``buckets + 1`` edges ``base ** index`` with ``base = 2 ** 2 ** -scale``, kept finite."""
    return [_power(scale, offset + index) for index in range(buckets + 1)]


def _power(scale: int, index: int) -> float:
    try:
        return min(math.pow(2.0, index * math.pow(2.0, -scale)), sys.float_info.max)
    except OverflowError:
        # A scale from outside can give powers beyond all floats; the bucket stays at the edge.
        if index > 0:
            return sys.float_info.max
        return 0.0 if index else 1.0


def _increasing(bounds: Sequence[float]) -> bool:
    are_finite = all(map(math.isfinite, bounds))
    return are_finite and all(low < high for low, high in pairwise(bounds))
