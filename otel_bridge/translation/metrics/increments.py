"""Cumulative histogram points -> increments since the previous point. Pure.

A stock SDK sends cumulative histograms: each point holds everything recorded since the program began. The last point of
each series is kept under ``hist/<process>/<start>/<key>`` of the state.
Source: opentelemetry-proto, metrics.proto, ``AggregationTemporality``; data-model.md, "Exponential Histogram".
"""

from __future__ import annotations

from typing import Final, TypeAlias

from opentelemetry.proto.metrics.v1 import metrics_pb2 as pb

from otel_bridge.translation.state import TranslationState

_HIST: Final = "hist/"
_EXPLICIT, _EXPONENTIAL = b"e", b"x"
HistogramPoint: TypeAlias = pb.HistogramDataPoint | pb.ExponentialHistogramDataPoint


class Increments:
    """Holds the last cumulative point of each series of one run.

    Args:
        state: Key space ``hist/``.
        max_series: Most series kept; beyond it the series that was silent for longest is forgotten.
    """

    def __init__(self, state: TranslationState, max_series: int) -> None:
        self._state, self._max_series = state, max_series
        found = [(key.removeprefix(_HIST), _loaded(value)) for key, value in state.items(_HIST)]
        self._last = dict(sorted(found, key=lambda pair: pair[1].time_unix_nano))

    def of(self, process: str, key: str, point: HistogramPoint) -> HistogramPoint | None:
        """Return the increment of *point* over the last point of its series; ``None``: no increment, or an older point.

        The first point of a series, and the first point after a restart of the producer, is returned whole.

        Args:
            process: Process that sent the point; processes that share an identity differ in their start time.
            key: Key of the point's values.
            point: A cumulative point.
        """
        series = f"{process}/{point.start_time_unix_nano}/{key}"
        before = self._last.get(series)
        if before is not None and point.time_unix_nano <= before.time_unix_nano:
            return None
        self._keep(series, point)
        if before is None or type(before) is not type(point) or point.count < before.count:
            return point
        if point.count == before.count:
            return None
        if isinstance(point, pb.HistogramDataPoint) and isinstance(before, pb.HistogramDataPoint):
            return _explicit(point, before)
        if isinstance(point, pb.ExponentialHistogramDataPoint) and isinstance(before, pb.ExponentialHistogramDataPoint):
            return _exponential(point, before)
        return point

    def _keep(self, series: str, point: HistogramPoint) -> None:
        kept = _copy(point)
        del kept.attributes[:]
        del kept.exemplars[:]
        self._last.pop(series, None)
        self._last[series] = kept
        kind = _EXPLICIT if isinstance(point, pb.HistogramDataPoint) else _EXPONENTIAL
        self._state.set(f"{_HIST}{series}", kind + kept.SerializeToString())
        if len(self._last) > self._max_series:
            oldest = next(iter(self._last))
            del self._last[oldest]
            self._state.delete(f"{_HIST}{oldest}")


def _copy(point: HistogramPoint) -> HistogramPoint:
    data = point.SerializeToString()
    if isinstance(point, pb.HistogramDataPoint):
        return pb.HistogramDataPoint.FromString(data)
    return pb.ExponentialHistogramDataPoint.FromString(data)


def _explicit(point: pb.HistogramDataPoint, before: pb.HistogramDataPoint) -> pb.HistogramDataPoint:
    added = pb.HistogramDataPoint(count=point.count - before.count, explicit_bounds=point.explicit_bounds)
    counts = [now - then for now, then in zip(point.bucket_counts, before.bucket_counts, strict=False)]
    same = list(point.explicit_bounds) == list(before.explicit_bounds)
    if same and len(point.bucket_counts) == len(before.bucket_counts) and min(counts, default=0) >= 0:
        added.bucket_counts.extend(counts)
    else:
        del added.explicit_bounds[:]
    _totals(added, point, before)
    return added


def _exponential(
    point: pb.ExponentialHistogramDataPoint, before: pb.ExponentialHistogramDataPoint
) -> pb.ExponentialHistogramDataPoint:
    added = pb.ExponentialHistogramDataPoint(
        count=point.count - before.count,
        scale=point.scale,
        zero_count=max(point.zero_count - before.zero_count, 0),
        zero_threshold=point.zero_threshold,
    )
    down = before.scale - point.scale
    for side in ("positive", "negative"):
        now, then = _by_index(getattr(point, side), 0), _by_index(getattr(before, side), max(down, 0))
        left = {index: count - then.get(index, 0) for index, count in now.items() if count > then.get(index, 0)}
        if left:
            buckets = getattr(added, side)
            buckets.offset = min(left)
            buckets.bucket_counts.extend(left.get(index, 0) for index in range(min(left), max(left) + 1))
    _totals(added, point, before)
    return added


def _by_index(buckets: pb.ExponentialHistogramDataPoint.Buckets, down: int) -> dict[int, int]:
    """Return the counts by index, for a scale that is lower by *down*."""
    found: dict[int, int] = {}
    for number, count in enumerate(buckets.bucket_counts):
        index = (buckets.offset + number) >> min(down, 64)
        found[index] = found.get(index, 0) + count
    return found


def _totals(added: HistogramPoint, point: HistogramPoint, before: HistogramPoint) -> None:
    """Set the sum, and minimum and maximum when *point* has a new extreme."""
    if point.HasField("sum") and before.HasField("sum"):
        added.sum = point.sum - before.sum
    if point.HasField("min") and before.HasField("min") and point.min < before.min:
        added.min = point.min
    if point.HasField("max") and before.HasField("max") and point.max > before.max:
        added.max = point.max


def _loaded(value: object) -> HistogramPoint:
    data = value if isinstance(value, bytes) else b""
    if data[:1] == _EXPLICIT:
        return pb.HistogramDataPoint.FromString(data[1:])
    return pb.ExponentialHistogramDataPoint.FromString(data[1:])


def is_cumulative(metric: pb.Metric) -> bool:
    """Return whether *metric* is a cumulative histogram."""
    kind = metric.WhichOneof("data")
    if kind == "histogram":
        return metric.histogram.aggregation_temporality == pb.AGGREGATION_TEMPORALITY_CUMULATIVE
    temporality = metric.exponential_histogram.aggregation_temporality
    return kind == "exponential_histogram" and temporality == pb.AGGREGATION_TEMPORALITY_CUMULATIVE
