"""Prometheus text of an inference engine -> an OTLP request, as a Collector's Prometheus receiver makes it. Pure.

Source: prometheus.io, "Exposition formats"; opentelemetry-collector-contrib,
receiver/prometheusreceiver.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import pairwise

from opentelemetry.proto.metrics.v1 import metrics_pb2 as pb
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from otel_bridge import semconv
from otel_bridge.bridge.ingest.bridge_segment import metrics_request, string_attributes

_FAMILIES = ("vllm:", "sglang:", "process_start_time_seconds")
_STARTED = "process_start_time_seconds"
_LINES = (*_FAMILIES, *(f"# TYPE {family}" for family in _FAMILIES))
"""Beginnings of the lines that are read."""
_CUMULATIVE = pb.AGGREGATION_TEMPORALITY_CUMULATIVE
_BOUND = "le"
"""Label by which samples are buckets of one series."""


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
    lines = [line for line in text.split("\n") if line.startswith(_LINES)]
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
    metrics: list[pb.Metric] = []
    for family in engine_families:
        make = _histogram if family.type == "histogram" else _numbers
        metrics += make(family, time_unix_ns, start_ns)
    return metrics_request(resource, metrics, "engines", {semconv.ENGINE: engine})


def _numbers(family: Metric, time_ns: int, start_ns: int) -> Iterable[pb.Metric]:
    """Return a metric for each name of samples: a summary has a counter of its count and one of its sum."""
    metrics: dict[str, pb.Metric] = {}
    for sample in family.samples:
        metric = metrics.setdefault(sample.name, pb.Metric(name=sample.name))
        points = metric.gauge.data_points
        # The parser gives every counter the ending ``_total``, also where the engine does not.
        is_counter = sample.name != family.name
        if is_counter:
            metric.sum.aggregation_temporality = _CUMULATIVE
            metric.sum.is_monotonic = True
            points = metric.sum.data_points
        points.add(
            attributes=string_attributes(sample.labels),
            time_unix_nano=time_ns,
            # A gauge does not count from a start on.
            start_time_unix_nano=start_ns if is_counter else 0,
            as_double=sample.value,
        )
    return metrics.values()


def _histogram(family: Metric, time_ns: int, start_ns: int) -> Iterator[pb.Metric]:
    """Yield the metric of a histogram: its samples are the buckets, sum and count of each series.

    Raises:
        ValueError: A sample is none of these.
    """
    metric = pb.Metric(name=family.name)
    metric.histogram.aggregation_temporality = _CUMULATIVE
    series: dict[tuple[tuple[str, str], ...], dict[str, float]] = {}
    for sample in family.samples:
        labels = dict(sample.labels)
        part = labels.pop(_BOUND, sample.name)
        series.setdefault(tuple(labels.items()), {})[part] = sample.value
    for key, parts in series.items():
        total = parts.pop(f"{family.name}_sum", 0.0)
        parts.pop(f"{family.name}_count", None)
        below = {float(bound): number for bound, number in parts.items()}
        bounds = sorted(below)
        cumulative = [0.0, *(below[bound] for bound in bounds)]
        counts = [max(int(upper - lower), 0) for lower, upper in pairwise(cumulative)]
        metric.histogram.data_points.add(
            attributes=string_attributes(dict(key)),
            time_unix_nano=time_ns,
            start_time_unix_nano=start_ns,
            count=sum(counts),
            sum=total,
            bucket_counts=counts,
            explicit_bounds=filter(math.isfinite, bounds),
        )
    yield metric
