"""OTLP metrics of vLLM and SGLang -> readings of series, by engine. Pure.

The metrics are those of their Prometheus endpoints, by the bridge's own requests or by a Collector.
No family is named here. Labels that say which part of an engine counted are left out of keys, and
its parts are added up. Source: vllm/v1/metrics/loggers.py, sglang/srt/metrics/collector.py;
opentelemetry-collector-contrib, receiver/prometheusreceiver.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from opentelemetry.proto.metrics.v1 import metrics_pb2 as pb

from otel_bridge import semconv
from otel_bridge.records import Json
from otel_bridge.text.secret_patterns import redact_text
from otel_bridge.translation.decode.attributes import mapping_of, text_in
from otel_bridge.translation.decode.rows import number
from otel_bridge.translation.engines.series import COUNTER, GAUGE, HISTOGRAM, Series
from otel_bridge.translation.metrics.keys import attribute_suffix

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
    ``service.instance.id``.
    """
    return text_in(resource, semconv.ENGINE) or text_in(
        resource, semconv.SERVICE_INSTANCE_ID
    )


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
            if reading is not None:
                yield _series_name(family, mapping_of(point.attributes)), reading


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
        return GAUGE, metric.gauge.data_points
    if data == "sum" and metric.sum.aggregation_temporality == _CUMULATIVE:
        kind = COUNTER if metric.sum.is_monotonic else GAUGE
        return kind, metric.sum.data_points
    if data == "histogram" and metric.histogram.aggregation_temporality == _CUMULATIVE:
        return HISTOGRAM, metric.histogram.data_points
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
    if kind == HISTOGRAM and len(numbers) != len(bounds) + 1:
        return None
    if point.flags & _NO_VALUE or not all(map(math.isfinite, numbers)):
        return None
    return Series(
        kind, point.time_unix_nano, point.start_time_unix_nano, numbers, bounds
    )


def _series_name(family: str, labels: Mapping[str, object]) -> SeriesName:
    """Return the name of a series: labels of parts are not in its key, and keep its readings apart."""
    parts: dict[str, object] = {}
    key_labels: dict[str, object] = {}
    for name, value in labels.items():
        # A label with an empty value is the same as none: prometheus.io, "Data model".
        if value != "":
            (parts if _is_part(name) else key_labels)[name] = value
    return SeriesName(
        family + attribute_suffix(key_labels), family, attribute_suffix(parts)
    )
