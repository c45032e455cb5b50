"""Native row frames -> rows as received. Pure.

One frame is a ``ScopeMetrics`` with one gauge (or histogram) point per value. Its gauge ``rl.row``
holds the number of values. A Collector may cut rows anywhere and put many into one message. Points
of one row share their time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.metrics.v1 import metrics_pb2 as pb

from otel_bridge import semconv
from otel_bridge.records import Value, axis_of, key_of
from otel_bridge.translation.decode.attributes import as_int, value_of
from otel_bridge.translation.decode.histograms import explicit, exponential

_Attributes: TypeAlias = Mapping[str, AnyValue]
_Point: TypeAlias = tuple[int, int, _Attributes, Value | None]
"""Time, step, attributes and value of a point; ``None``: it has no value."""


def full_key(role: str | None, key: str, *, rank: int = 0, suffix: str = "") -> str:
    """Return the key that trackers show.

    A user's key with the name of the role's own step axis becomes ``…_value``, so that the axis is
    never overwritten.

    Args:
        role: Role of the sender.
        key: Key as the producer named it.
        rank: Ranks above 0 are distinguished by ``/rank<k>``.
        suffix: Result of `metrics.keys.attribute_suffix` for further attributes.
    """
    full = key_of(role, key) + suffix
    if rank > 0:
        return f"{full}/rank{rank}"
    if full == axis_of(role):
        return f"{full}_value"
    return full


@dataclass(slots=True)
class RowFragment:
    """Holds one row, or the part of a row that one message has.

    Attributes:
        seq: Number of the row, 0 when another fragment holds ``rl.row``.
        value_count: Number of values of the row, -1 when unknown.
        values: Full key to value; of two values with one full key the last wins.
        same: Number of values left out because another value of the row has the same full key.
        own_ns: The row's own wall time, 0 when that is *time_ns*.
    """

    role: str | None
    step: int
    time_ns: int
    seq: int = 0
    value_count: int = -1
    values: dict[str, Value] = field(default_factory=dict[str, Value])
    same: int = 0
    own_ns: int = 0

    @property
    def whole(self) -> bool:
        """Return whether all values of the row are present."""
        return self.seq > 0 and 0 <= self.value_count <= len(self.values) + self.same


ScopedMetric: TypeAlias = tuple[str, pb.Metric]
"""Name of the instrumentation scope, and a metric of it."""


def scoped(name: str, metrics: Iterable[pb.Metric]) -> list[ScopedMetric]:
    """Return *metrics*, each with the *name* of their instrumentation scope."""
    return [(name, metric) for metric in metrics]


def fragments_of(
    scope_metrics: pb.ScopeMetrics, role: str | None, rank: int
) -> tuple[list[RowFragment], Sequence[pb.Metric]]:
    """Return the rows of a message, in order of time, and the metrics that are not values of rows.

    A metric of which any point lacks a step or a time is not one of rows as a whole: third-party
    points are read by other rules.
    """
    # An instrument of the program's own SDK, which has no rows.
    if scope_metrics.scope.name != semconv.SCOPE_NAME:
        return [], scope_metrics.metrics
    fragments: dict[tuple[int, str | None], RowFragment] = {}
    other_metrics: list[pb.Metric] = []
    for metric in scope_metrics.metrics:
        points = _row_points(metric)
        if not points:
            other_metrics.append(metric)
            continue
        name = metric.name
        for time_ns, step, attributes, value in points:
            # A point without a value begins no row: it would be shown with nothing in it.
            if value is None:
                continue
            point_role = role
            if semconv.ROLE in attributes:
                point_role = attributes[semconv.ROLE].string_value or None
            fragment = fragments.get((time_ns, point_role))
            if fragment is None:
                fragment = RowFragment(point_role, step, time_ns)
                fragments[time_ns, point_role] = fragment
            # A producer in JavaScript, which has no integers, may send the number as a double.
            value_count = as_int(value) if name == semconv.ROW else None
            if value_count is not None:
                fragment.value_count = value_count
                fragment.seq = _positive(attributes, semconv.SEQ)
                fragment.own_ns = _positive(attributes, semconv.ROW_TIME)
            else:
                key = full_key(point_role, name, rank=rank)
                fragment.same += key in fragment.values
                fragment.values[key] = value
    return sorted(
        fragments.values(), key=lambda fragment: fragment.time_ns
    ), other_metrics


def _row_points(metric: pb.Metric) -> list[_Point]:
    """Return the points of a metric; none unless all of them are values of rows.

    A summary never is: our emitter sends none.
    """
    kind = metric.WhichOneof("data")
    value_reader = _VALUE_READERS.get(kind or "")
    if kind is None or value_reader is None:
        return []
    points: list[_Point] = []
    for point in getattr(metric, kind).data_points:
        attributes = {pair.key: pair.value for pair in point.attributes}
        step = _integer(attributes, semconv.STEP)
        time_ns = point.time_unix_nano
        # One point without a step: the metric as a whole is read as third-party ones are.
        if step is None or not time_ns:
            return []
        points.append((time_ns, step, attributes, value_reader(point)))
    return points


def _positive(attributes: _Attributes, key: str) -> int:
    """Return the integer under *key*, 0 without one or for a negative one."""
    return max(_integer(attributes, key) or 0, 0)


def _integer(attributes: _Attributes, key: str) -> int | None:
    """Return the integer under *key*, ``None`` without one; whole doubles and digits count."""
    value = attributes.get(key)
    if value is None:
        return None
    # A value that is not an integer reads as 0, which is falsy: only such values take the longer
    # way.
    return value.int_value or as_int(value_of(value))


def number(point: pb.NumberDataPoint) -> int | float | None:
    """Return the value of a point; ``None`` when the point has no value."""
    kind = point.WhichOneof("value")
    if kind == "as_double":
        return point.as_double
    if kind == "as_int":
        return point.as_int
    return None


_VALUE_READERS: Mapping[str, Callable[[Any], Value | None]] = {
    "gauge": number,
    "histogram": explicit,
    "exponential_histogram": exponential,
}
"""Kinds of metrics that rows may hold, each with the function that reads the value of a point."""
