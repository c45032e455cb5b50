"""Counts and edges of a histogram that is already counted -> one explicit-bucket histogram point.

Pure.

``numpy.histogram``, ``wandb.Histogram`` and ``trackio.Histogram`` have one more edge than counts.
In OTLP the outer buckets are open: the outer edges travel as minimum and maximum, from which the
reader closes these buckets again. Source: opentelemetry-proto, metrics.proto,
``HistogramDataPoint``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

from otel_bridge.emit.encode.protobuf import (
    DELTA,
    double,
    fixed64,
    message,
    pack_double,
    pack_fixed64,
)

MAX_EDGES = 4_097
"""Most edges; the bridge shows no buckets of a point that has more than 4,096."""
_MAX_COUNT = 1 << 63


@dataclass(frozen=True, slots=True)
class BucketPoint:
    """Holds the fields of an explicit-bucket histogram point.

    Attributes:
        count: Sum of the counts.
        sum: Estimate: each number counts as the middle of its bucket.
        min: Lower edge of the first bucket that is not empty.
        max: Upper edge of the last bucket that is not empty.
        bounds: Inner edges, shape (n - 1,), increasing.
        counts: Numbers in each bucket, shape (n,).
    """

    count: int
    sum: float
    min: float
    max: float
    bounds: tuple[float, ...]
    counts: tuple[int, ...]


def point_of_buckets(
    counts: object, edges: object, drop: Callable[[str, int], None]
) -> BucketPoint | None:
    """Return the point of *counts* and *edges*; ``None`` when they are not a histogram.

    They are counted as ``bad_histogram``; without a number in any bucket as ``empty_distribution``,
    as an empty list of numbers is. Other errors of the program's own iterators are raised;
    `to_value` counts these as ``unreadable_value``.

    Args:
        counts: Numbers in each bucket, shape (n,): integers, not negative.
        edges: Bucket edges, shape (n + 1,): finite, not decreasing. A bucket of no width is joined
            to a neighbour.
        drop: Callable that counts a histogram that is left out, by reason.
    """
    try:
        numbers = list(map(_whole, _listed(counts)))
        ends = list(map(_finite, _listed(edges)))
    except (TypeError, ValueError, OverflowError):
        drop("bad_histogram", 1)
        return None
    if not any(numbers) and len(ends) in {0, len(numbers) + 1}:
        drop("empty_distribution", 1)
        return None
    fits = len(ends) == len(numbers) + 1 and sum(numbers) < _MAX_COUNT
    if not fits or ends != sorted(ends) or ends[0] == ends[-1]:
        drop("bad_histogram", 1)
        return None
    return _point(*_joined(numbers, ends))


def _listed(values: object) -> list[object]:
    """Return *values* as a list of at most `MAX_EDGES`.

    What their iterator raises is raised.

    Raises:
        ValueError: They have more than one dimension, or are too many.
    """
    shape = getattr(values, "shape", None)
    if shape is not None and len(shape) != 1:
        raise ValueError
    as_list = getattr(values, "tolist", None)
    listed: list[object] = []
    for value in cast("Iterable[object]", values if as_list is None else as_list()):
        listed.append(value)
        # Within the loop: an iterable of the program need not end.
        if len(listed) > MAX_EDGES:
            raise ValueError
    return listed


def _whole(value: object) -> int:
    """Return a number of a bucket.

    Raises for a negative one, a fraction, and what is not a number.
    """
    # Texts are refused below: float() would read them.
    number = value if isinstance(value, int) else float(cast("float", value))
    if isinstance(value, str) or number < 0 or int(number) != number:
        raise ValueError
    return int(number)


def _finite(value: object) -> float:
    """Return an edge; raises for what is not a finite number."""
    number = float(cast("float", value))
    if isinstance(value, str) or not math.isfinite(number):
        raise ValueError
    return number


def _joined(counts: list[int], edges: list[float]) -> tuple[list[int], list[float]]:
    """Return counts and increasing edges: numbers of a bucket without width go to its neighbour.

    Bounds in OTLP must increase, while edges that programs give may repeat.
    """
    joined_edges = [edges[0]]
    joined_counts = list[int]()
    pending = 0
    for edge, count in zip(edges[1:], counts, strict=True):
        if edge > joined_edges[-1]:
            joined_edges.append(edge)
            joined_counts.append(count + pending)
            pending = 0
        elif joined_counts:
            joined_counts[-1] += count
        else:
            pending += count
    return joined_counts, joined_edges


def _point(counts: list[int], edges: list[float]) -> BucketPoint:
    """Return the point of counts, one of which is above 0, and increasing edges.

    The middles are halved first, against overflow.
    """
    total = 0.0
    used: list[float] = []
    for (low, high), count in zip(pairwise(edges), counts, strict=True):
        total += (low / 2 + high / 2) * count
        if count:
            used += (low, high)
    return BucketPoint(
        count=sum(counts),
        sum=total,
        min=used[0],
        max=used[-1],
        bounds=tuple(edges[1:-1]),
        counts=tuple(counts),
    )


def encode_buckets(point: BucketPoint, time_unix_ns: int, attributes: bytes) -> bytes:
    """Encode the data part of a ``Metric``: field 9, ``Histogram``, delta, one point.

    Without inner edges the field of bounds is left out, as protobuf leaves out empty fields.

    Args:
        point: The point.
        time_unix_ns: Time of the point.
        attributes: Attributes of the point, already encoded as field 9.
    """
    # The numbers are those of HistogramDataPoint. A point has no start (field 2): it is of one
    # moment.
    fields = (
        fixed64(3, time_unix_ns),
        fixed64(4, point.count),
        double(5, point.sum),
        message(6, b"".join(map(pack_fixed64, point.counts))),
        message(7, b"".join(map(pack_double, point.bounds))) if point.bounds else b"",
        attributes,
        double(11, point.min),
        double(12, point.max),
    )
    return message(9, message(1, b"".join(fields)) + DELTA)
