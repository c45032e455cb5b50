"""Native row frames -> rows as received, read in the slow, exact way or in the learned, fast way. Pure.

One frame is a ``ScopeMetrics`` with one gauge (or histogram) point per value. Its gauge ``rl.row``
holds the number of values. A Collector may cut rows anywhere and put many into one message. Points
of one row share their time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from opentelemetry.proto.metrics.v1 import metrics_pb2 as pb

from otel_bridge import semconv
from otel_bridge.records import Value, axis_of, key_of
from otel_bridge.translation.decode.histograms import explicit, exponential
from otel_bridge.translation.decode.row_template import (
    DecodedRow,
    RowTemplate,
    infer_layout,
)

_PREFIX_BYTES = 25
"""Bytes that never vary: scope (15), headers of the first metric (4), up to 6 of its name
(row_template.py)."""
_CHAIN = 8
"""Most shapes that are kept for one length and prefix."""
_LEARN_COST = 20
_CREDIT_START = 4_000
_CREDIT_MAX = 20_000
"""Budget for learning, in fast reads. It stops endless learning of shapes that never recur."""


_Point: TypeAlias = (
    pb.NumberDataPoint | pb.ExponentialHistogramDataPoint | pb.HistogramDataPoint
)
_Header: TypeAlias = tuple[int, str | None, int, int, int]


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
        want: Number of values of the row, -1 when unknown.
        values: Full key to value.
        same: Number of values left out because another value of the row has the same full key.
        own_ns: The row's own wall time, 0 when that is *time_ns*.
    """

    role: str | None
    step: int
    time_ns: int
    seq: int = 0
    want: int = -1
    values: dict[str, Value] = field(default_factory=dict[str, Value])
    same: int = 0
    own_ns: int = 0

    def add(self, key: str, value: Value) -> None:
        """Add a value; of two values with one full key the last wins."""
        self.same += key in self.values
        self.values[key] = value


def fragments_of(
    scope_metrics: pb.ScopeMetrics, role: str | None, rank: int
) -> tuple[list[RowFragment], list[pb.Metric]]:
    """Return the rows of an otel-bridge message, in order of time, and the metrics that are not values of rows."""
    fragments: dict[tuple[int, str | None], RowFragment] = {}
    other_metrics: list[pb.Metric] = []
    for metric in scope_metrics.metrics:
        points = _points(metric)
        headers = [_header(point, role) for point in points]
        # One point without a step: the metric as a whole is read as third-party ones are.
        if not headers or None in headers:
            other_metrics.append(metric)
            continue
        name = metric.name
        for point, header in zip(points, headers, strict=True):
            if header is not None:
                _add_point(point, name, header, fragments, rank)
    return sorted(
        fragments.values(), key=lambda fragment: fragment.time_ns
    ), other_metrics


def _points(metric: pb.Metric) -> Sequence[_Point]:
    """Return the points of a metric, when rows may hold metrics of its kind."""
    kind = metric.WhichOneof("data")
    if kind == "gauge":
        return metric.gauge.data_points
    if kind == "histogram":
        return metric.histogram.data_points
    if kind == "exponential_histogram":
        return metric.exponential_histogram.data_points
    return ()


def _header(point: _Point, role: str | None) -> _Header | None:
    """Return time, role, step, number and own time.

    ``None`` when the point is not a value of a row.
    """
    time_ns = point.time_unix_nano
    step = None
    seq = 0
    own_ns = 0
    for pair in point.attributes:
        key = pair.key
        if key == semconv.STEP:
            step = pair.value.int_value
        elif key == semconv.ROLE:
            role = pair.value.string_value or None
        elif key == semconv.SEQ:
            seq = max(pair.value.int_value, 0)
        elif key == semconv.ROW_TIME:
            own_ns = max(pair.value.int_value, 0)
    if step is None or not time_ns:
        return None
    return (time_ns, role, step, seq, own_ns)


def _add_point(
    point: _Point,
    name: str,
    header: _Header,
    fragments: dict[tuple[int, str | None], RowFragment],
    rank: int,
) -> None:
    time_ns, role, step, seq, own_ns = header
    fragment = fragments.get((time_ns, role))
    if fragment is None:
        fragment = RowFragment(role, step, time_ns)
        fragments[time_ns, role] = fragment
    if isinstance(point, pb.ExponentialHistogramDataPoint):
        fragment.add(full_key(role, name, rank=rank), exponential(point))
    elif isinstance(point, pb.HistogramDataPoint):
        fragment.add(full_key(role, name, rank=rank), explicit(point))
    elif name == semconv.ROW:
        fragment.seq = seq
        fragment.want = point.as_int
        fragment.own_ns = own_ns
    else:
        value = number(point)
        if value is not None:
            fragment.add(full_key(role, name, rank=rank), value)


def number(point: pb.NumberDataPoint) -> int | float | None:
    """Return the value of a point; ``None`` when the point has no value."""
    kind = point.WhichOneof("value")
    if kind == "as_double":
        return point.as_double
    if kind == "as_int":
        return point.as_int
    return None


@dataclass(slots=True)
class RowSchema:
    """Holds a template of rows, with the role and rank of their sender."""

    template: RowTemplate
    role: str | None
    axis: str


class RowDecoder:
    """Decodes the row frames of all processes of one role and rank.

    The decoder learns the shapes of frames; their bytes and number are bounded.
    """

    def __init__(
        self,
        role: str | None,
        rank: int,
        max_bytes: int = 4 << 20,
        max_shapes: int = 256,
    ) -> None:
        self._role = role
        self._rank = rank
        self._max_bytes = max_bytes
        self._max_shapes = max_shapes
        self._shapes: dict[tuple[int, bytes], list[RowSchema]] = {}
        self._size_bytes = 0
        self._number = 0
        self._credit = _CREDIT_START

    def fast(self, payload: bytes) -> tuple[RowSchema, DecodedRow] | None:
        """Read a frame of a learned shape.

        Return ``None`` when the frame must be read the slow way.
        """
        chain = self._shapes.get((len(payload), payload[:_PREFIX_BYTES]))
        if chain is None:
            return None
        for schema in chain:
            row = schema.template.decode(payload)
            if row is not None:
                if self._credit < _CREDIT_MAX:
                    # A fast read pays for learning: shapes that recur earn what further ones cost.
                    self._credit += 1
                return schema, row
        return None

    def slow(self, payload: bytes) -> tuple[list[RowFragment], Sequence[pb.Metric]]:
        """Read any frame with protobuf and learn its shape.

        Returns:
            The rows, and the metrics that are not values of rows.

        Raises:
            google.protobuf.message.DecodeError: The bytes are not ``ScopeMetrics``.
        """
        message = pb.ScopeMetrics.FromString(payload)
        # An instrument of the program's own SDK, which has no rows.
        if message.scope.name != semconv.SCOPE_NAME:
            return [], message.metrics
        fragments, other_metrics = fragments_of(message, self._role, self._rank)
        if len(fragments) == 1 and not other_metrics:
            self._infer(payload, fragments[0])
        return fragments, other_metrics

    def _infer(self, payload: bytes, fragment: RowFragment) -> None:
        # A template takes five times the bytes of its frame.
        if (
            self._credit < _LEARN_COST
            or len(payload) * 5 > self._max_bytes
            or not fragment.seq
        ):
            return
        self._credit -= _LEARN_COST
        offsets = infer_layout(payload)
        if offsets is None or not fragment.want == len(fragment.values) == len(
            offsets.keys
        ):
            return
        keys = [full_key(fragment.role, key, rank=self._rank) for key in offsets.keys]
        schema = RowSchema(
            RowTemplate(payload, offsets, keys), fragment.role, axis_of(fragment.role)
        )
        # A template is used only if it reads the frame that it was learned from as protobuf does.
        header = (fragment.time_ns, fragment.step, fragment.seq)
        row = schema.template.decode(payload)
        if (
            row is not None
            and row[:3] == header
            and list(row[3]) == list(fragment.values)
        ):
            self._keep(payload, schema)

    def _keep(self, payload: bytes, schema: RowSchema) -> None:
        chain = self._shapes.setdefault((len(payload), payload[:_PREFIX_BYTES]), [])
        if len(chain) >= _CHAIN:
            # The first one learned: more shapes of one length would make each miss slower.
            self._forget(chain.pop(0))
        chain.append(schema)
        self._size_bytes += schema.template.size_bytes
        self._number += 1
        while self._size_bytes > self._max_bytes or self._number > self._max_shapes:
            oldest = next(iter(self._shapes))
            for forgotten in self._shapes.pop(oldest):
                self._forget(forgotten)

    def _forget(self, schema: RowSchema) -> None:
        self._size_bytes -= schema.template.size_bytes
        self._number -= 1
