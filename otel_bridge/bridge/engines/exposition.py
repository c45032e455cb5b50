"""Prometheus text of an inference engine -> an OTLP request, as a Collector's Prometheus receiver makes it. Pure.

Source: prometheus.io, "Exposition formats"; opentelemetry-collector-contrib,
receiver/prometheusreceiver.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeAlias

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.common.v1.common_pb2 import (
    AnyValue,
    InstrumentationScope,
    KeyValue,
)
from opentelemetry.proto.metrics.v1 import metrics_pb2 as pb
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from otel_bridge import semconv

_FAMILIES = ("vllm:", "sglang:", "process_start_time_seconds")
_STARTED = "process_start_time_seconds"
_CUMULATIVE = pb.AGGREGATION_TEMPORALITY_CUMULATIVE
_COUNTING = frozenset({"counter", "histogram", "summary"})
_PART_LABELS = {"histogram": "le", "summary": "quantile"}
"""Type of a family to the label by which samples are parts of one series."""
_Labels: TypeAlias = tuple[tuple[str, str], ...]
_Point: TypeAlias = pb.NumberDataPoint | pb.HistogramDataPoint | pb.SummaryDataPoint


def engine_request(
    text: str, resource: Resource, engine: str, time_unix_ns: int
) -> bytes | None:
    """Return the families of an engine as an export request; ``None`` when there are none.

    Args:
        text: Answer of the endpoint.
        resource: Resource of the process that asked for the metrics.
        engine: Address of the engine.
        time_unix_ns: Time of the answer.

    Raises:
        ValueError: The text is not in Prometheus' format.
    """
    # Other families of the same endpoint are left out before anything is parsed: they may be many.
    # Only \n ends a line: labels may hold the other characters at which `splitlines` cuts.
    lines = [line for line in text.split("\n") if _name_in(line).startswith(_FAMILIES)]
    families = list(text_string_to_metric_families("\n".join(lines) + "\n"))
    start_ns = 0
    engine_families: list[Metric] = []
    for family in families:
        if family.name != _STARTED:
            engine_families.append(family)
        # A start in the future is of a wrong clock; 0 stands for unknown.
        elif family.samples and 0 < family.samples[0].value < time_unix_ns / 1e9:
            start_ns = int(family.samples[0].value * 1e9)
    if not engine_families:
        return None
    metrics = [_metric(family, time_unix_ns, start_ns) for family in engine_families]
    described = Resource.FromString(resource.SerializeToString())
    described.attributes.append(
        KeyValue(key=semconv.SYSTEM, value=AnyValue(bool_value=True))
    )
    described.attributes.append(
        KeyValue(key=semconv.ENGINE, value=AnyValue(string_value=engine))
    )
    scope = pb.ScopeMetrics(
        scope=InstrumentationScope(name=f"{semconv.SCOPE_NAME}.engines"),
        metrics=metrics,
    )
    part = pb.ResourceMetrics(resource=described, scope_metrics=[scope])
    return ExportMetricsServiceRequest(resource_metrics=[part]).SerializeToString()


def _name_in(line: str) -> str:
    """Return the part of a line that begins with the name of its family."""
    if not line.startswith("#"):
        return line
    words = line.split(maxsplit=2)
    if len(words) == 3 and words[1] in {"TYPE", "HELP"}:
        return words[2]
    return ""


def _metric(family: Metric, time_ns: int, start_ns: int) -> pb.Metric:
    # A gauge does not count from a start on.
    times_ns = time_ns, start_ns if family.type in _COUNTING else 0
    points: list[Any] = [
        _point(family.type, labels, samples, times_ns)
        for labels, samples in _by_labels(family).items()
    ]
    if family.type == "counter":
        counter = pb.Sum(
            data_points=points, aggregation_temporality=_CUMULATIVE, is_monotonic=True
        )
        return pb.Metric(name=f"{family.name}_total", sum=counter)
    if family.type == "histogram":
        histogram = pb.Histogram(
            data_points=points, aggregation_temporality=_CUMULATIVE
        )
        return pb.Metric(name=family.name, histogram=histogram)
    if family.type == "summary":
        return pb.Metric(name=family.name, summary=pb.Summary(data_points=points))
    return pb.Metric(name=family.name, gauge=pb.Gauge(data_points=points))


def _by_labels(family: Metric) -> dict[_Labels, list[Sample]]:
    """Return the samples of each series."""
    series: dict[_Labels, list[Sample]] = {}
    for sample in family.samples:
        labels = dict(sample.labels)
        labels.pop(_PART_LABELS.get(family.type, ""), None)
        series.setdefault(tuple(sorted(labels.items())), []).append(sample)
    return series


def _point(
    kind: str, labels: _Labels, samples: Sequence[Sample], times_ns: tuple[int, int]
) -> _Point:
    """Return the point of one series."""
    facts: dict[str, Any] = {
        "attributes": [
            KeyValue(key=name, value=AnyValue(string_value=value))
            for name, value in labels
        ],
        "time_unix_nano": times_ns[0],
        "start_time_unix_nano": times_ns[1],
    }
    if kind not in _PART_LABELS:
        return pb.NumberDataPoint(as_double=samples[0].value, **facts)
    totals = {sample.name.rpartition("_")[2]: sample.value for sample in samples}
    total = totals.get("sum", 0.0)
    if kind == "summary":
        count = int(totals.get("count", 0.0))
        return pb.SummaryDataPoint(count=count, sum=total, **facts)
    below = {
        float(sample.labels["le"]): sample.value
        for sample in samples
        if "le" in sample.labels
    }
    bounds = sorted(below)
    cumulative = [0.0, *(below[bound] for bound in bounds)]
    counts = [max(int(upper - lower), 0) for lower, upper in pairwise(cumulative)]
    # OTLP has a last bucket without a bound, also where the text leaves out ``+Inf``.
    if not bounds or math.isfinite(bounds[-1]):
        counts.append(0)
    return pb.HistogramDataPoint(
        count=sum(counts),
        sum=total,
        bucket_counts=counts,
        explicit_bounds=filter(math.isfinite, bounds),
        **facts,
    )
