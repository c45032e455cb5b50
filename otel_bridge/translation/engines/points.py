"""OTLP metrics of vLLM and SGLang -> readings of series by engine, and the values of a row. Pure.

The metrics are those of their Prometheus endpoints, by the bridge's own requests or by a Collector.
No family is named here. Labels that say which part of an engine counted are left out of keys, and
its parts are added up. Source: vllm/v1/metrics/loggers.py, sglang/srt/metrics/collector.py;
opentelemetry-collector-contrib, receiver/prometheusreceiver.

Rates and quantiles are computed as Prometheus does, from the differences of successive readings.
Source: prometheus, promql/quantile.go, ``bucketQuantile``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from opentelemetry.proto.metrics.v1 import metrics_pb2 as pb

from otel_bridge import semconv
from otel_bridge.records import Distribution, Json
from otel_bridge.text.secret_patterns import redact_text
from otel_bridge.translation.decode.attributes import mapping_of, text_in
from otel_bridge.translation.decode.rows import number
from otel_bridge.translation.metrics.keys import attribute_suffix
from otel_bridge.translation.options import SECOND_NS

_PREFIXES = ("vllm:", "sglang:")
_CREATED = "_created"
"""Ending of the times at which prometheus_client began each series; they are not measurements."""
_INFO = "_info"
"""Ending of gauges whose labels are facts about the engine."""
_TOTAL = "_total"
_PARTS = frozenset(
    {"engine", "engine_type", "instance", "job", "model", "model_name", "pid"}
)
_RANK = "rank"
_CUMULATIVE = pb.AGGREGATION_TEMPORALITY_CUMULATIVE
_NO_VALUE = pb.DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK

_QUANTILES = {"/p50": 0.5, "/p90": 0.9, "/p99": 0.99}

_GAUGE = "gauge"
COUNTER = "counter"
_HISTOGRAM = "histogram"

_Point: TypeAlias = pb.NumberDataPoint | pb.HistogramDataPoint


@dataclass(frozen=True, slots=True)
class SeriesName:
    """Identifies a series of an engine.

    Attributes:
        key: Key that rows show, without engine and ending: family, and the labels that distinguish
            its series.
        family: Name of the family.
        part: The other labels.
    """

    key: str
    family: str
    part: str


def is_of_engine(metric: pb.Metric) -> bool:
    """Return whether *metric* is a family of an engine, as Prometheus has it.

    Others of that name, such as a delta sum, are shown as points of any third party.
    """
    return metric.name.startswith(_PREFIXES) and bool(_points(metric)[0])


def engine_of(resource: Mapping[str, object]) -> str:
    """Return the address of the engine that a resource describes; empty when nothing names it.

    The bridge names it itself. A Collector's Prometheus receiver puts the scraped address into
    ``service.instance.id``, and its parts into ``server.*``.
    """
    address = text_in(resource, semconv.ENGINE) or text_in(
        resource, semconv.SERVICE_INSTANCE_ID
    )
    if address:
        return address
    host = text_in(resource, "server.address") or text_in(resource, semconv.HOST_NAME)
    port = text_in(resource, "server.port")
    return f"{host}:{port}" if port else host


def readings(metrics: Iterable[pb.Metric]) -> Iterator[tuple[SeriesName, Series]]:
    """Yield the series of an engine's metrics, of one reading each.

    Points without a finite number, and histograms without their last bucket, are left out
    uncounted; the other series arrive.
    """
    for metric in metrics:
        if metric.name.endswith((_CREATED, _INFO)):
            continue
        kind, points = _points(metric)
        family = metric.name
        # Whether a Collector keeps the ending of counters depends on its settings.
        if kind == COUNTER:
            family = metric.name.removesuffix(_TOTAL)
        for point in points:
            reading = _reading(kind, point)
            if reading is None:
                continue
            # Labels of parts are not in the key, and keep readings apart.
            parts: dict[str, object] = {}
            key_labels: dict[str, object] = {}
            for name, value in mapping_of(point.attributes).items():
                # A label with an empty value is the same as none: prometheus.io, "Data model".
                if value != "":
                    (parts if _is_part(name) else key_labels)[name] = value
            key = family + attribute_suffix(key_labels)
            yield SeriesName(key, family, attribute_suffix(parts)), reading


def info_labels(metrics: Iterable[pb.Metric]) -> dict[str, Json]:
    """Return the families of facts, each with the labels of its first series, redacted, without those of parts.

    An engine has a series for each of its parts, all with the same facts.
    """
    families: dict[str, Json] = {}
    for metric in metrics:
        # The value of a fact is 1. vllm:lora_requests_info has the time of the last request.
        points = [point for point in metric.gauge.data_points if number(point) == 1]
        if metric.name.endswith(_INFO) and points:
            labels: dict[str, Json] = {}
            for name, label in mapping_of(points[0].attributes).items():
                if not _is_part(name):
                    labels[name] = redact_text(str(label))
            families[metric.name] = labels
    return families


def _is_part(label: str) -> bool:
    return label in _PARTS or label.endswith(_RANK)


def _points(metric: pb.Metric) -> tuple[str, Iterable[_Point]]:
    """Return the kind of the points of a metric, and these.

    Empty for a kind that Prometheus has not.
    """
    data = metric.WhichOneof("data")
    if data == "gauge":
        return _GAUGE, metric.gauge.data_points
    if data == "sum" and metric.sum.aggregation_temporality == _CUMULATIVE:
        kind = COUNTER if metric.sum.is_monotonic else _GAUGE
        return kind, metric.sum.data_points
    if data == "histogram" and metric.histogram.aggregation_temporality == _CUMULATIVE:
        return _HISTOGRAM, metric.histogram.data_points
    return "", ()


def _reading(kind: str, point: _Point) -> Series | None:
    """Return the reading of a point.

    ``None`` without a finite number, or when a histogram has no bucket above its last bound.
    """
    bounds: tuple[float, ...] = ()
    numbers: tuple[float, ...]
    if isinstance(point, pb.NumberDataPoint):
        numbers = (float(number(point) or 0.0),)
    else:
        numbers = tuple(map(float, point.bucket_counts))
        bounds = tuple(point.explicit_bounds)
    # Of a histogram, the numbers could not be placed.
    if kind == _HISTOGRAM and len(numbers) != len(bounds) + 1:
        return None
    if point.flags & _NO_VALUE or not all(map(math.isfinite, numbers)):
        return None
    return Series(
        kind, point.time_unix_nano, point.start_time_unix_nano, numbers, bounds
    )


# --- what was added between two rows ---------------------------------------------------------------
@dataclass(slots=True)
class Series:
    """Holds the last reading of one series, and what was added since the last row.

    Attributes:
        kind: Type of the family, as Prometheus names it.
        time_ns: Unix ns of the scrape.
        start_ns: Unix ns at which the engine began to count; 0: unknown.
        numbers: The value; for a histogram the numbers in each bucket, shape (n + 1,).
        bounds: Upper bounds of a histogram, shape (n,).
        added: Sum of the differences of readings; for a gauge, of its values.
        covered: Nanoseconds between the readings of these differences; for a gauge, the number of
            its values.
    """

    kind: str
    time_ns: int
    start_ns: int
    numbers: tuple[float, ...]
    bounds: tuple[float, ...] = ()
    added: list[float] = field(default_factory=list[float])
    covered: int = 0

    def follow(self, previous: Series | None) -> bool:
        """Take over what *previous* has added, and add what this newer reading has more.

        Return whether the engine began to count again. Then nothing is added, since what was
        counted meanwhile is unknown. The first reading of a series has no difference, only a gauge
        a value.
        """
        is_same_form = previous is not None and (self.kind, self.bounds) == (
            previous.kind,
            previous.bounds,
        )
        # Numbers of other buckets cannot be added to those before.
        if previous is not None and is_same_form:
            self.added = previous.added
            self.covered = previous.covered
        if self.kind == _GAUGE:
            self._add(self.numbers, 1)
            return False
        if previous is None:
            return False
        # The start time shows a restart even if the new counts are already higher. Two engines
        # behind one address look so too.
        if not is_same_form or self.start_ns > previous.start_ns > 0:
            return True
        pairs = zip(self.numbers, previous.numbers, strict=True)
        differences = [later - earlier for later, earlier in pairs]
        if min(differences, default=0.0) < 0:
            return True
        self._add(differences, self.time_ns - previous.time_ns)
        return False

    def begin_row(self) -> None:
        """Forget what was added, because a row has it."""
        self.added = []
        self.covered = 0

    def _add(self, numbers: Sequence[float], covered: int) -> None:
        totals = self.added or [0.0] * len(numbers)
        self.added = [
            total + number for total, number in zip(totals, numbers, strict=True)
        ]
        self.covered += covered


def row_values(series: Sequence[Series]) -> Iterator[tuple[str, float]]:
    """Yield what a row shows of the series of one key together: each ending of the key, with its value.

    Nothing is yielded for series without two readings that follow each other. Of a gauge these are
    the mean, and the sum of several: a share is read by the one, a queue by the other. Of a counter
    it is the sum of the rates, each over the time that its own readings cover.
    """
    by_kind: dict[str, list[Series]] = {}
    for member in series:
        if member.covered:
            by_kind.setdefault(member.kind, []).append(member)
    for kind, members in by_kind.items():
        if kind == _HISTOGRAM:
            yield from _quantiles(members)
            continue
        means = [member.added[0] / member.covered for member in members]
        if kind == COUNTER:
            yield "/per_s", sum(means) * SECOND_NS
            continue
        # Not `fmean`, which raises where numbers of a producer are beyond a double together.
        yield "", sum(means) / len(means)
        if len(means) > 1:
            yield "/sum", sum(means)


def _quantiles(series: Sequence[Series]) -> Iterator[tuple[str, float]]:
    """Yield the quantiles of the buckets that most of the series have: engines of two versions may differ.

    Nothing without bounds, or when nothing was observed.
    """
    added: dict[tuple[float, ...], list[list[float]]] = {}
    for member in series:
        added.setdefault(member.bounds, []).append(member.added)
    bounds, members = max(added.items(), key=lambda form: len(form[1]))
    counts = tuple(int(sum(bucket)) for bucket in zip(*members, strict=True))
    if not bounds or not sum(counts):
        return
    # The first bucket begins at 0, as in Prometheus. How far the last one goes is unknown: it has
    # no width.
    edges = (min(0.0, bounds[0]), *bounds, bounds[-1])
    distribution = Distribution(
        sum(counts), math.nan, math.nan, math.nan, edges, counts
    )
    for ending, share in _QUANTILES.items():
        yield ending, distribution.quantile(share)
