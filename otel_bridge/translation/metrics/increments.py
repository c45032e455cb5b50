"""Cumulative histogram points -> increments since the previous point. Pure.

A stock SDK sends cumulative histograms: each point holds everything recorded since the program
began. The last point of each series is kept under ``hist/<process>/<start>/<key>``, a line break
and the name of its scope.
Source: opentelemetry-proto, metrics.proto, ``AggregationTemporality``; data-model.md, "Exponential
Histogram".
"""

from __future__ import annotations

from copy import deepcopy
from typing import TypeAlias, cast

from opentelemetry.proto.metrics.v1 import metrics_pb2 as pb

from otel_bridge.translation.state import TranslationState, named

_HIST = "hist/"
_EXPLICIT = b"e"
_EXPONENTIAL = b"x"
HistogramPoint: TypeAlias = pb.HistogramDataPoint | pb.ExponentialHistogramDataPoint


class Increments:
    """Holds the last cumulative point of each series of one run.

    Args:
        state: Key space ``hist/``.
        max_series: Most series kept; beyond it the series that was silent for longest is forgotten.
    """

    def __init__(self, state: TranslationState, max_series: int) -> None:
        self._state = state
        self._max_series = max_series
        points = [(key, _loaded(value)) for key, value in named(state, _HIST).items()]
        # The state is ordered by key; the first of the dict must be the one silent for longest.
        self._last = dict(sorted(points, key=lambda pair: pair[1].time_unix_nano))

    def of(
        self, process: str, key: str, point: HistogramPoint, scope: str = ""
    ) -> HistogramPoint | None:
        """Return the increment of *point* over the last point of its series.

        ``None``: no increment, or an older point.

        The first point of a series, and the first point after a restart of the producer, is
        returned whole.

        The count shows a restart: it never falls while a producer runs.

        Args:
            process: Process that sent the point; processes that share an identity differ in their
                start time.
            key: Key of the point's values.
            point: A cumulative point.
            scope: Name of its instrumentation scope; several may have a histogram of one key.
        """
        series = f"{process}/{point.start_time_unix_nano}/{key}\n{scope}"
        last_point = self._last.get(series)
        # Redelivered or overtaken: its part is in a later increment already.
        if last_point is not None and point.time_unix_nano <= last_point.time_unix_nano:
            return None
        self._keep(series, point)
        if (
            last_point is None
            or type(last_point) is not type(point)
            or point.count < last_point.count
        ):
            return point
        if point.count == last_point.count:
            return None
        if isinstance(point, pb.HistogramDataPoint):
            return _explicit(point, cast("pb.HistogramDataPoint", last_point))
        return _exponential(point, cast("pb.ExponentialHistogramDataPoint", last_point))

    def _keep(self, series: str, point: HistogramPoint) -> None:
        """Keep *point* as the last of its series, without attributes and exemplars, which no difference needs.

        The series that was silent for longest is forgotten beyond the limit; its next point is
        shown whole.
        """
        last_point = deepcopy(point)
        # Not needed for a difference, and a series may have many.
        del last_point.attributes[:]
        del last_point.exemplars[:]
        # Popped and set again, so that the dict is ordered by the last point.
        self._last.pop(series, None)
        self._last[series] = last_point
        kind = _EXPONENTIAL
        if isinstance(point, pb.HistogramDataPoint):
            kind = _EXPLICIT
        self._state.set(f"{_HIST}{series}", kind + last_point.SerializeToString())
        if len(self._last) > self._max_series:
            oldest = next(iter(self._last))
            del self._last[oldest]
            self._state.delete(f"{_HIST}{oldest}")


def _explicit(
    point: pb.HistogramDataPoint, last_point: pb.HistogramDataPoint
) -> pb.HistogramDataPoint:
    """Return *point* less *last_point*, whose count is lower; without buckets if these have changed or fallen.

    Count and sum have a difference all the same.
    """
    added = pb.HistogramDataPoint(
        count=point.count - last_point.count, explicit_bounds=point.explicit_bounds
    )
    counts = [
        count - last_count
        for count, last_count in zip(
            point.bucket_counts, last_point.bucket_counts, strict=False
        )
    ]
    same_bounds = list(point.explicit_bounds) == list(last_point.explicit_bounds)
    if (
        same_bounds
        and len(point.bucket_counts) == len(last_point.bucket_counts)
        and min(counts, default=0) >= 0
    ):
        added.bucket_counts.extend(counts)
    else:
        # Other buckets than before have no difference; count and sum have one.
        del added.explicit_bounds[:]
    _totals(added, point, last_point)
    return added


def _exponential(
    point: pb.ExponentialHistogramDataPoint,
    last_point: pb.ExponentialHistogramDataPoint,
) -> pb.ExponentialHistogramDataPoint:
    """Return *point* less *last_point*, whose count is lower; buckets that have fallen are left out.

    So are all of one side that lie beyond 32 bits; nothing raises. A producer lowers its scale when
    values spread, so that its old buckets are merged to the new ones first. Without a sum if either
    point has none (`_totals`).
    """
    added = pb.ExponentialHistogramDataPoint(
        count=point.count - last_point.count,
        scale=point.scale,
        zero_count=max(point.zero_count - last_point.zero_count, 0),
        zero_threshold=point.zero_threshold,
    )
    # A producer lowers its scale when values spread; the old buckets are merged to the new ones.
    down = last_point.scale - point.scale
    for side in ("positive", "negative"):
        counts = _by_index(getattr(point, side), 0)
        last_counts = _by_index(getattr(last_point, side), max(down, 0))
        new_counts: dict[int, int] = {}
        for index, count in counts.items():
            new_count = count - last_counts.get(index, 0)
            if new_count > 0:
                new_counts[index] = new_count
        # Buckets from beyond 32 bits on, which no offset of OTLP can name, are left out.
        if new_counts and min(new_counts) < 1 << 31:
            buckets = getattr(added, side)
            buckets.offset = min(new_counts)
            buckets.bucket_counts.extend(
                new_counts.get(index, 0)
                for index in range(min(new_counts), max(new_counts) + 1)
            )
    _totals(added, point, last_point)
    return added


def _by_index(
    buckets: pb.ExponentialHistogramDataPoint.Buckets, down: int
) -> dict[int, int]:
    """Return the counts by index, for a scale that is lower by *down*: each step halves the indexes.

    Indexes are 32 bits wide, so that nothing is left to halve beyond 64 steps, which a producer may
    claim.
    """
    counts: dict[int, int] = {}
    for number, count in enumerate(buckets.bucket_counts):
        index = (buckets.offset + number) >> min(down, 64)
        counts[index] = counts.get(index, 0) + count
    return counts


def _totals(
    added: HistogramPoint, point: HistogramPoint, last_point: HistogramPoint
) -> None:
    """Set the sum, and minimum and maximum when *point* has a new extreme.

    The other extremes are unknown: a cumulative point has those since the start.
    """
    if point.HasField("sum") and last_point.HasField("sum"):
        added.sum = point.sum - last_point.sum
    if (
        point.HasField("min")
        and last_point.HasField("min")
        and point.min < last_point.min
    ):
        added.min = point.min
    if (
        point.HasField("max")
        and last_point.HasField("max")
        and point.max > last_point.max
    ):
        added.max = point.max


def _loaded(data: bytes) -> HistogramPoint:
    if data[:1] == _EXPLICIT:
        return pb.HistogramDataPoint.FromString(data[1:])
    return pb.ExponentialHistogramDataPoint.FromString(data[1:])


def is_cumulative(metric: pb.Metric) -> bool:
    """Return whether *metric* is a cumulative histogram.

    Each point of one holds everything since the program began, so that only its increment is new.
    """
    kind = metric.WhichOneof("data")
    if kind == "histogram":
        return (
            metric.histogram.aggregation_temporality
            == pb.AGGREGATION_TEMPORALITY_CUMULATIVE
        )
    temporality = metric.exponential_histogram.aggregation_temporality
    return (
        kind == "exponential_histogram"
        and temporality == pb.AGGREGATION_TEMPORALITY_CUMULATIVE
    )
