"""Numbers -> one exponential histogram point, at most 160 buckets a sign, finest scale that fits.

Bucket ``i`` of scale ``s`` holds ``(base**i, base**(i + 1)]`` with ``base = 2 ** 2**-s``.
Source: OpenTelemetry metrics data model, "ExponentialHistogram"; opentelemetry-proto, metrics.proto,
``ExponentialHistogramDataPoint``. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from otel_bridge.emit.wire import double, fixed64, message, varint, zigzag

MAX_SCALE: Final = 20
MAX_BUCKETS: Final = 160


@dataclass(frozen=True, slots=True)
class Histogram:
    """Marks numbers as a distribution: ``run.log({"advantage": Histogram(values)})``.

    Attributes:
        values: An array or any iterable of numbers; read once, when it is logged.
    """

    values: Iterable[object]


@dataclass(frozen=True, slots=True)
class Buckets:
    """Counts of consecutive buckets, the first of which has index *offset*."""

    offset: int
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Distribution:
    """The fields of an exponential histogram point; units are those of the numbers."""

    count: int
    sum: float
    min: float
    max: float
    scale: int
    zero_count: int
    positive: Buckets
    negative: Buckets


def distribution_of(numbers: Sequence[float]) -> Distribution:
    """Count *numbers* (finite, at least one) into buckets."""
    positive = [number for number in numbers if number > 0]
    negative = [-number for number in numbers if number < 0]
    scale = min(_scale_of(positive), _scale_of(negative))
    return Distribution(
        count=len(numbers),
        sum=sum(numbers),
        min=min(numbers),
        max=max(numbers),
        scale=scale,
        zero_count=len(numbers) - len(positive) - len(negative),
        positive=_buckets(positive, scale),
        negative=_buckets(negative, scale),
    )


def bucket_index(number: float, scale: int) -> int:
    """Return the index of the bucket that holds *number* (above zero)."""
    mantissa, exponent = math.frexp(number)
    if mantissa == 0.5:  # a power of two is the closed upper end of its bucket
        exponent -= 1
        return (exponent << scale) - 1 if scale > 0 else (exponent - 1) >> -scale
    if scale <= 0:
        return (exponent - 1) >> -scale
    low, high = (exponent - 1) << scale, (exponent << scale) - 1
    # log2 is not exact next to a boundary: stay within the buckets of this power of two.
    return min(max(math.ceil((exponent - 1 + math.log2(2 * mantissa)) * (1 << scale)) - 1, low), high)


def encode_point(point: Distribution, time_unix_ns: int, attributes: bytes) -> bytes:
    """Encode the data part of a ``Metric``: field 10, ``ExponentialHistogram``, delta, one point.

    Args:
        point: What to encode.
        time_unix_ns: Time of the point.
        attributes: Its attributes, already encoded as field 1.
    """
    fields = (
        attributes,
        fixed64(3, time_unix_ns),
        fixed64(4, point.count),
        double(5, point.sum),
        b"\x30" + zigzag(point.scale) if point.scale else b"",
        fixed64(7, point.zero_count),
        _encode_buckets(8, point.positive),
        _encode_buckets(9, point.negative),
        double(12, point.min),
        double(13, point.max),
    )
    return message(10, message(1, b"".join(fields)) + b"\x10\x01")


def _encode_buckets(field: int, buckets: Buckets) -> bytes:
    if not buckets.counts:
        return b""
    offset = b"\x08" + zigzag(buckets.offset) if buckets.offset else b""
    return message(field, offset + message(2, b"".join(map(varint, buckets.counts))))


def _scale_of(numbers: Sequence[float]) -> int:
    if not numbers:
        return MAX_SCALE
    low, high = min(numbers), max(numbers)
    scale = MAX_SCALE
    while bucket_index(high, scale) - bucket_index(low, scale) >= MAX_BUCKETS:
        scale -= 1
    return scale


def _buckets(numbers: Sequence[float], scale: int) -> Buckets:
    if not numbers:
        return Buckets(0, ())
    offset = bucket_index(min(numbers), scale)
    counts = [0] * (bucket_index(max(numbers), scale) - offset + 1)
    for number in numbers:
        counts[bucket_index(number, scale) - offset] += 1
    return Buckets(offset, tuple(counts))
