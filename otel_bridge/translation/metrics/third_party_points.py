"""Points of third-party producers -> rows: every metric type of OTLP, each point once. Pure.

* A gauge and a cumulative sum are shown as sent. A delta sum without a step is added up, so that a
  counter rises in a tracker whatever its producer's temporality; one with a step belongs to that
  step and is shown as sent.
* Histograms of both kinds become distributions. A cumulative histogram without a step becomes the
  increment since the previous point (`increments.py`), unless
  `TranslationOptions.cumulative_histograms` is set. A summary becomes ``…/count``, ``…/sum``,
  ``…/min``, ``…/p50`` …, ``…/max``.
* The step is ``rl.step``, ``dl.iteration`` or ``step``. Without any of these the row is placed by
  time.
* What remains of a point's attributes becomes part of the key (`keys.attribute_suffix`).
* A span that names an iteration (``dl.iteration``) makes a row of its numbers.
* A redelivered point (same role, key, step and value; the time counts only without a step) is
  dropped. One without a time gets that of its arrival, so that it counts again. Another value at
  the same step makes a further row, so that the newest wins; an older one that comes late is
  counted (`point/late`). A step that returns to a former value (A, B, A, each newer) shows that
  value once more; further alternation is counted (`point/alternating`).
* The points of one request with the same role, step and time make one row.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from opentelemetry.proto.metrics.v1 import metrics_pb2 as pb
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span

from otel_bridge import semconv
from otel_bridge.content.otlp import hash_texts
from otel_bridge.records import Distribution, Row, Value
from otel_bridge.translation.decode.attributes import as_int, int_in, mapping_of
from otel_bridge.translation.decode.histograms import explicit, exponential
from otel_bridge.translation.decode.resources import Producer
from otel_bridge.translation.decode.rows import ScopedMetric, full_key, number
from otel_bridge.translation.decode.spans import is_rollout
from otel_bridge.translation.metrics.dedup import Deduplicator
from otel_bridge.translation.metrics.increments import (
    HistogramPoint,
    Increments,
    is_cumulative,
)
from otel_bridge.translation.metrics.keys import StepAxes, attribute_suffix
from otel_bridge.translation.options import TranslationOptions
from otel_bridge.translation.processes.process import Process
from otel_bridge.translation.state import TranslationState, count, identity, named

_STEPS = (semconv.STEP, *semconv.THIRD_PARTY_STEPS)
_MAX_HISTOGRAMS = 10_000
"""Most series of cumulative histograms, whose last points are stored with all their buckets."""
_TOTALS = "sum/"
_MAX_INT = 1 << 63
_DELTA = pb.AGGREGATION_TEMPORALITY_DELTA
_NO_VALUE = pb.DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK

AnyPoint: TypeAlias = (
    pb.NumberDataPoint
    | pb.HistogramDataPoint
    | pb.ExponentialHistogramDataPoint
    | pb.SummaryDataPoint
)


_HISTOGRAMS = (pb.HistogramDataPoint, pb.ExponentialHistogramDataPoint)
ReceivedMetrics: TypeAlias = tuple[Producer, Process, Iterable[ScopedMetric]]
"""Producer, process, and the metrics that they sent."""


@dataclass(slots=True)
class MetricPoint:
    """Holds one value for one key.

    Attributes:
        scope: Name of the instrumentation scope. Two scopes may have a metric of one name, such as
            ``http.client.duration``: what one adds is not what the other adds.
    """

    role: str | None
    key: str
    step: int | None
    time_ns: int
    value: Value
    delta: bool = False
    cumulative: HistogramPoint | None = None
    scope: str = ""


@dataclass(frozen=True, slots=True)
class _Latest:
    """Identifies the value that a key showed last at a step, with the newest time at which it was sent."""

    step: int | None
    time_ns: int
    hash: bytes


@dataclass(slots=True)
class _Group:
    process: Process
    role: str | None
    step: int | None
    time_ns: int
    values: dict[str, Value] = field(default_factory=dict[str, Value])
    hashes: list[bytes] = field(default_factory=list[bytes])


class ThirdPartyPoints:
    """Turns points of all third-party producers of one run into rows.

    Nothing raises: what does not fit a histogram or is not a number is left out of its point.
    """

    def __init__(
        self,
        state: TranslationState,
        axes: StepAxes,
        deduplicator: Deduplicator,
        options: TranslationOptions,
    ) -> None:
        self._state = state
        self._axes = axes
        self._seen = deduplicator
        self._max_keys = options.max_keys
        self._less_text = options.hash_metric_texts or options.content.limit is not None
        self._increments = Increments(state, min(options.max_keys, _MAX_HISTOGRAMS))
        self._increments_only = not options.cumulative_histograms
        self._totals: dict[str, float] = named(state, _TOTALS)
        self._changed: set[str] = set()
        self._latest: dict[str, _Latest] = {}

    def rows(self, received: Sequence[ReceivedMetrics], now_unix_ns: int) -> list[Row]:
        """Return the rows of one request; points without a time get *now_unix_ns*.

        Nothing for redelivered points, points without a value, and histograms to which nothing was
        added.
        """
        groups: list[_Group] = []
        newest: dict[tuple[str | None, int | None, int], _Group] = {}
        for producer, process, metrics in received:
            for point in self._points(producer, metrics):
                # First, since a point's time shows whether it came before.
                point.time_ns = point.time_ns or now_unix_ns
                hash_ = _identity(point)
                if not self._is_new(process, point, hash_):
                    continue
                value = self._shown(process, point)
                if value is None:
                    continue
                group_key = (point.role, point.step, point.time_ns)
                group = newest.get(group_key)
                # A further value of a key, as of another process, makes a further row.
                if group is None or point.key in group.values:
                    group = _Group(process, *group_key)
                    newest[group_key] = group
                    groups.append(group)
                group.values[point.key] = value
                group.hashes.append(hash_)
        return [self._row(group) for group in groups]

    def _points(
        self, producer: Producer, metrics: Iterable[ScopedMetric]
    ) -> Iterator[MetricPoint]:
        """Yield the points of *metrics*, whose texts are hashed where the run is not to have them.

        Here and not for one exporter: texts become parts of keys, which all exporters share.
        """
        for scope, metric in metrics:
            hashed_texts = 0
            if self._less_text:
                hashed_texts = hash_texts(metric)
            if hashed_texts:
                count(self._state, "unknown_text", hashed_texts)
            for point in points_of(metric, producer.third_party_role, producer.rank):
                point.scope = scope
                yield point

    def of_spans(
        self, producer: Producer, process: Process, scope_spans: ScopeSpans
    ) -> list[Row]:
        """Return a row for each span that names an iteration and has numbers, once.

        Spans that come again are recognised by trace and span id.

        NeMo Lens has the iteration on spans alone, so that its metrics could not be placed on
        steps.
        """
        rows: list[Row] = []
        role = producer.third_party_role
        for span in scope_spans.spans:
            step_and_numbers = numbers_of(span)
            if step_and_numbers is None:
                continue
            hash_ = identity("span", span.trace_id, span.span_id)
            if not self._seen.add(hash_):
                continue
            step, numbers = step_and_numbers
            values = {
                full_key(role, key, rank=producer.rank): value
                for key, value in numbers.items()
            }
            time_ns = span.end_time_unix_nano or span.start_time_unix_nano
            rows.append(
                self._row(_Group(process, role, step, time_ns, values, [hash_]))
            )
        return rows

    def flush(self) -> None:
        """Write the totals that changed to the state, and the identities of the points."""
        self._seen.flush()
        for key in self._changed:
            self._state.set(f"{_TOTALS}{key}", self._totals[key])
        self._changed.clear()

    def _is_new(self, process: Process, point: MetricPoint, hash_: bytes) -> bool:
        """Return whether to show a point: a new one, or a former value that its step returns to.

        ``False`` for a point that is redelivered or resent, as SDKs do at each export, for one older
        than the value of its step, and for a value between which its step alternates. The latter two
        are counted (``point/late``, ``point/alternating``).
        """
        key = f"{process.instance}/{point.key}"
        # In every case, so that the hash is remembered even if the point is not shown.
        added = self._seen.add(hash_)
        latest = self._latest.get(key)
        # Without a step the time is part of the identity, so nothing returns to a former value.
        if point.step is None:
            return added
        if latest is None or latest.step != point.step:
            if added:
                self._note_latest(key, point, hash_)
            return added
        # Late: a tracker shows the row that comes last, and the step's value is newer.
        if point.time_ns < latest.time_ns:
            if added:
                count(self._state, "point/late")
            return False
        if point.time_ns == latest.time_ns:
            return added
        if not added and hash_ != latest.hash:
            # Only once: two producers with one name and without ids would alternate at each export.
            added = self._seen.add(identity("again", hash_.hex()))
            if not added:
                count(self._state, "point/alternating")
        self._note_latest(key, point, hash_)
        return added

    def _note_latest(self, key: str, point: MetricPoint, hash_: bytes) -> None:
        """Note the current value of a step; only the last step of each key is kept.

        In memory only: after a restart a step that returns to a former value may show it once less.
        Of too many keys the one that was noted longest ago is forgotten.
        """
        self._latest.pop(key, None)
        self._latest[key] = _Latest(point.step, point.time_ns, hash_)
        if len(self._latest) > self._max_keys:
            del self._latest[next(iter(self._latest))]

    def _shown(self, process: Process, point: MetricPoint) -> Value | None:
        """Return the value to show for a point; ``None``: nothing was added to its histogram."""
        if point.cumulative is None or not self._increments_only:
            return self._total(point)
        added = self._increments.of(
            process.instance, point.key, point.cumulative, point.scope
        )
        if added is None:
            return None
        # A histogram has one value, whatever it lacks.
        return next(_values(added))[1]

    def _total(self, point: MetricPoint) -> Value:
        """Return the value of a point; for a delta sum without a step, the running total.

        A total is kept for `max_keys` series; deltas of further ones are shown as sent. A total of
        over 64 bits becomes a double.
        """
        value = point.value
        if (
            not point.delta
            or point.step is not None
            or not isinstance(value, int | float)
        ):
            return value
        # Shown as sent, since its total cannot be kept.
        if point.key not in self._totals and len(self._totals) >= self._max_keys:
            return value
        total = self._totals.get(point.key, 0) + value
        # No tracker takes a larger integer: each would refuse the whole row.
        if not -_MAX_INT <= total < _MAX_INT:
            total = float(total)
        self._totals[point.key] = total
        self._changed.add(point.key)
        return total

    def _row(self, group: _Group) -> Row:
        """Return the row of a group, with an id made of its points, in whatever order they were sent.

        Keys beyond the limit of the run are counted and left out (`StepAxes.row`).
        """
        # Sorted: a redelivered request may hold its points in another order.
        digest = hashlib.blake2b(
            b"".join(sorted(group.hashes)), digest_size=8
        ).hexdigest()
        return self._axes.row(
            f"f:{digest}",
            group.process,
            role=group.role,
            step=group.step,
            time_unix_ns=group.time_ns,
            values=group.values,
        )


def _identity(point: MetricPoint) -> bytes:
    """Return the identity of a point. That of an increment has the scope: equal ones of two scopes both count."""
    time_ns = point.time_ns if point.step is None else None
    parts = (point.role, point.key, point.step, point.value, time_ns)
    if point.delta or isinstance(point.value, Distribution):
        return identity(*parts, point.scope)
    return identity(*parts)


def points_of(
    metric: pb.Metric,
    role: str | None,
    rank: int,
) -> Iterator[MetricPoint]:
    """Yield the points of a metric that have a value.

    None of a metric without data. A point with the flag "no recorded value", which a producer sends
    when a series ends, is left out.

    The step becomes the row's and the role the key's beginning; all other attributes distinguish
    series.
    """
    kind = metric.WhichOneof("data")
    if kind is None:
        return
    delta = kind == "sum" and metric.sum.aggregation_temporality == _DELTA
    cumulative = is_cumulative(metric)
    points: Iterable[AnyPoint] = getattr(metric, kind).data_points
    for point in points:
        if point.flags & _NO_VALUE:
            continue
        point_role, step, attributes = _read_attributes(point, role)
        suffix = attribute_suffix(attributes)
        for ending, value in _values(point):
            key = full_key(point_role, metric.name + ending, rank=rank, suffix=suffix)
            whole = None
            if cumulative and step is None and isinstance(point, _HISTOGRAMS):
                whole = point
            yield MetricPoint(
                point_role, key, step, point.time_unix_nano, value, delta, whole
            )


def _read_attributes(
    point: AnyPoint, role: str | None
) -> tuple[str | None, int | None, Mapping[str, object]]:
    """Return role, step and the remaining attributes of a point.

    The step is ``None`` when no attribute names a whole number of 64 bits; such an attribute stays
    part of the key. The role is *role*, that of the resource, unless the point names its own.
    """
    attributes = mapping_of(point.attributes)
    step: int | None = None
    for name in _STEPS:
        step = int_in(attributes, name)
        if step is not None:
            # The step becomes the row's, or each step would be a series of its own.
            del attributes[name]
            break
    # These two distinguish no series either.
    attributes.pop(semconv.SEQ, None)
    if isinstance(point_role := attributes.get(semconv.ROLE), str):
        del attributes[semconv.ROLE]
        role = point_role or role
    return role, step, attributes


def _values(point: AnyPoint) -> Iterator[tuple[str, Value]]:
    """Yield each suffix of the metric's name, with its value.

    Nothing for a number point without a number. A summary gives several keys, because trackers have
    no such type.
    """
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
    """Return the name of *quantile*: ``min``, ``p50``, ``p99.9`` or ``max``.

    Six digits hide what a float makes of 0.999.
    """
    if quantile <= 0:
        return "min"
    if quantile >= 1:
        return "max"
    return f"p{quantile * 100:.6g}"


# Spans of third-party producers that name an iteration -> step and numbers of a row. Pure.
#
# NVIDIA NeMo Lens names the iteration on spans (``dl.iteration``), beside loss, learning rate and
# throughput. Its metrics carry no iteration. Source: nemo-lens 0.1.0, ``nemo/lens/semconv.py``,
# ``helpers.py``.

_PLACES = frozenset({"rank", "local_rank", "world_size"})
"""Last parts of attribute names that state the origin of a span, not a measurement."""
_NOT_MEASURED = ("thread.", "process.", "code.")
_MAX_NUMBERS = 1_000


def numbers_of(span: Span) -> tuple[int, dict[str, Value]] | None:
    """Return the iteration of *span* and its numbers.

    ``None`` without an iteration or without numbers.

    Spans of rollouts and of model calls are excluded: their numbers belong to the rollout.

    Names of origins (ranks, threads) do not measure anything, and of very many numbers the first
    thousand count.

    A Boolean is not a number here, because Python counts it as an integer.
    """
    attributes = mapping_of(span.attributes)
    step = as_int(attributes.pop(semconv.DL_ITERATION, None))
    if step is None or is_rollout(span):
        return None
    numbers: dict[str, Value] = {}
    for key, value in list(attributes.items())[:_MAX_NUMBERS]:
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if _is_measured(key):
            numbers[key] = value
    if numbers:
        return (step, numbers)
    return None


def _is_measured(key: str) -> bool:
    if not key or key.startswith(_NOT_MEASURED) or key.rpartition(".")[2] in _PLACES:
        return False
    return not (key.startswith("dl.") and "_parallel." in key)
