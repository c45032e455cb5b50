"""Points of foreign producers -> rows: every metric type of OTLP, each point once. Pure.

* A gauge and a cumulative sum are shown as sent. A delta sum without a step is added up, so that a counter rises in a
  tracker whatever its producer's temporality; one with a step belongs to that step and is shown as sent.
* Histograms of both kinds become distributions, as sent. A summary becomes ``…/count``, ``…/sum``, ``…/min``,
  ``…/p50`` …, ``…/max``.
* The step is ``rl.step``, ``dl.iteration`` or ``step``, else none: then the row is placed by time.
* What remains of a point's attributes becomes part of the key (`keys.attribute_suffix`).
* A point that comes again (same role, key, step and value; the time counts only without a step) is dropped.
* The points of one request with the same role, step and time make one row.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from opentelemetry.proto.metrics.v1 import metrics_pb2 as pb

from otel_bridge import semconv
from otel_bridge.records import Row, Value, axis_of
from otel_bridge.translation.attributes import integer, value_of
from otel_bridge.translation.histograms import explicit, exponential
from otel_bridge.translation.identity import Speaker
from otel_bridge.translation.keys import Axes, attribute_suffix, full_key
from otel_bridge.translation.own_rows import number
from otel_bridge.translation.process import Process
from otel_bridge.translation.seen import Seen, identity
from otel_bridge.translation.state import State

_STEPS = (semconv.STEP, *semconv.FOREIGN_STEPS)
_NOT_IN_KEYS = frozenset({semconv.ROLE, semconv.SEQ})
_TOTALS = "sum/"
_MAX_STEP = (1 << 63) - 1
_DELTA = pb.AGGREGATION_TEMPORALITY_DELTA
_NO_VALUE = pb.DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK

AnyPoint: TypeAlias = (
    pb.NumberDataPoint | pb.HistogramDataPoint | pb.ExponentialHistogramDataPoint | pb.SummaryDataPoint
)


Found: TypeAlias = tuple[Speaker, Process, Iterable[pb.Metric]]
"""Who sent which metrics."""


@dataclass(slots=True)
class Point:
    """One value for one key."""

    role: str | None
    key: str
    step: int | None
    time_ns: int
    value: Value
    delta: bool = False


@dataclass(slots=True)
class _Group:
    process: Process
    role: str | None
    step: int | None
    time_ns: int
    values: dict[str, Value] = field(default_factory=dict[str, Value])
    hashes: list[bytes] = field(default_factory=list[bytes])


class Points:
    """The points of all foreign producers of one run."""

    def __init__(self, state: State, axes: Axes, seen: Seen, max_keys: int) -> None:
        self._state, self._axes, self._seen, self._max_keys = state, axes, seen, max_keys
        self._totals = {
            key.removeprefix(_TOTALS): value
            for key, value in state.items(_TOTALS)
            if isinstance(value, int | float) and not isinstance(value, bool)
        }
        self._changed: set[str] = set()

    def rows(self, found: Sequence[Found], now_unix_ns: int) -> list[Row]:
        """Return the rows of one request; points without a time get *now_unix_ns*."""
        groups: list[_Group] = []
        newest: dict[tuple[str | None, int | None, int], _Group] = {}
        for speaker, process, metrics in found:
            for metric in metrics:
                for point in points_of(metric, speaker.foreign_role, speaker.rank):
                    hash_ = _identity(point)
                    if not self._seen.add(hash_):
                        continue
                    place = (point.role, point.step, point.time_ns or now_unix_ns)
                    group = newest.get(place)
                    if group is None or point.key in group.values:
                        group = newest[place] = _Group(process, *place)
                        groups.append(group)
                    group.values[point.key] = self._total(point)
                    group.hashes.append(hash_)
        return [self._row(group) for group in groups]

    def flush(self) -> None:
        """Write the totals that changed to the state."""
        for key in self._changed:
            self._state.set(f"{_TOTALS}{key}", self._totals[key])
        self._changed.clear()

    def _total(self, point: Point) -> Value:
        """Return what is shown of a point: the running total of a delta sum without a step."""
        value = point.value
        if not point.delta or point.step is not None or not isinstance(value, int | float):
            return value
        if point.key not in self._totals and len(self._totals) >= self._max_keys:
            return value
        total = self._totals.get(point.key, 0) + value
        self._totals[point.key] = total
        self._changed.add(point.key)
        return total

    def _row(self, group: _Group) -> Row:
        digest = hashlib.blake2b(b"".join(sorted(group.hashes)), digest_size=8).hexdigest()
        if group.step is None:
            steps = self._axes.steps()
            return Row(f"f:{digest}", group.role, None, None, group.time_ns, group.values, steps)
        axis = axis_of(group.role)
        attempt = group.process.attempts.get(axis) or self._axes.attempt(group.process, axis, group.step)
        values: Mapping[str, Value] = group.values
        if attempt > 1:
            values = self._axes.with_attempt(values, group.process, group.role, attempt)
        self._axes.register(values, axis)
        steps = self._axes.advance(axis, group.step)
        return Row(f"f:{digest}", group.role, group.step, axis, group.time_ns, values, steps, attempt)


def _identity(point: Point) -> bytes:
    time_ns = point.time_ns if point.step is None else None
    return identity(point.role, point.key, point.step, point.value, time_ns)


def points_of(metric: pb.Metric, role: str | None, rank: int) -> Iterator[Point]:
    """Yield the points of a metric that have a value."""
    kind = metric.WhichOneof("data")
    if kind is None:
        return
    delta = kind == "sum" and metric.sum.aggregation_temporality == _DELTA
    points: Iterable[AnyPoint] = getattr(metric, kind).data_points
    for point in points:
        if point.flags & _NO_VALUE:
            continue
        spoken, step, suffix = _read_attributes(point, role)
        for ending, value in _values(point):
            key = full_key(spoken, metric.name + ending, rank=rank, suffix=suffix)
            yield Point(spoken, key, step, point.time_unix_nano, value, delta)


def _read_attributes(point: AnyPoint, role: str | None) -> tuple[str | None, int | None, str]:
    """Return role, step and the rest of the attributes as a part of the key."""
    attributes = {pair.key: value_of(pair.value) for pair in point.attributes}
    step: int | None = None
    for name in _STEPS:
        candidate = integer(attributes.get(name))
        if candidate is not None and abs(candidate) <= _MAX_STEP:
            step = candidate
            del attributes[name]
            break
    given = attributes.get(semconv.ROLE)
    spoken = given if isinstance(given, str) and given else role
    rest = {name: value for name, value in attributes.items() if name not in _NOT_IN_KEYS}
    return spoken, step, attribute_suffix(rest)


def _values(point: AnyPoint) -> Iterator[tuple[str, Value]]:
    """Yield what is appended to the metric's name, and the value."""
    if isinstance(point, pb.NumberDataPoint):
        value = number(point)
        if value is not None:
            yield "", value
    elif isinstance(point, pb.HistogramDataPoint):
        yield "", explicit(point)
    elif isinstance(point, pb.ExponentialHistogramDataPoint):
        yield "", exponential(point)
    else:
        yield "/count", point.count
        yield "/sum", point.sum
        for quantile in point.quantile_values:
            yield f"/{_quantile_name(quantile.quantile)}", quantile.value


def _quantile_name(quantile: float) -> str:
    """Return ``min``, ``p50``, ``p99.9`` or ``max``."""
    if quantile <= 0:
        return "min"
    return "max" if quantile >= 1 else f"p{quantile * 100:.6g}"
