"""Prometheus endpoint of an inference engine -> an OTLP request, as a Collector's Prometheus receiver makes it.

Source: prometheus.io, "Exposition formats"; opentelemetry-collector-contrib,
receiver/prometheusreceiver.

Imported when a process first names an endpoint: the HTTP client and the parser behind it take
0.1 s, which the bridges of most runs need not spend.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from itertools import pairwise

import requests
from opentelemetry.proto.metrics.v1 import metrics_pb2 as pb
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from otel_bridge import semconv
from otel_bridge.bridge.http_session import HttpSession
from otel_bridge.bridge.ingest.bridge_segment import metrics_request, string_attributes
from otel_bridge.setting_parsers import engine_of_address
from otel_bridge.settings import SCRAPE

_TIMEOUT_S = (2.0, 5.0)
"""Seconds to connect, and to wait for the next bytes."""
_TOTAL_S = 10.0
"""Longest time of one answer."""
_MAX_BYTES = 16 << 20


def read_engine(address: str, resource: Resource) -> bytes:
    """Return the metrics of an engine as an export request.

    Args:
        address: Address of its endpoint.
        resource: Resource of the process that asked for the metrics.

    Raises:
        ValueError: There are none; the message names the engine and what to do.
    """
    engine = engine_of_address(address)
    try:
        text = _body(address).decode("utf-8", "replace")
    except requests.RequestException as exc:
        raise ValueError(
            f"{engine} cannot be read ({type(exc).__name__}); is the address in {SCRAPE.name} right?"
        ) from exc
    except ValueError as exc:
        raise ValueError(f"{engine}: {exc}") from exc
    try:
        request = engine_request(text, resource, engine, time.time_ns())
    except Exception as exc:
        # The parser raises more than it documents, and the endpoint must be read again.
        raise ValueError(
            f"{engine} answers in another format than Prometheus' ({type(exc).__name__})"
        ) from exc
    if request is None:
        raise ValueError(
            f"{engine} has no vllm:* or sglang:* metrics; SGLang needs --enable-metrics"
        )
    return request


def _body(address: str) -> bytes:
    """Return the answer of an endpoint.

    The time-out of a request holds for each read alone, so that a slow answer would have no end.

    Raises:
        requests.RequestException: The engine does not answer.
        ValueError: Its answer is an error, a redirect, too large or too slow.
    """
    deadline_s = time.monotonic() + _TOTAL_S
    body = bytearray()
    with HttpSession() as session:
        # Engines are near: neither a proxy nor netrc is meant for them.
        session.trust_env = False
        with session.get(
            address,
            headers={"Accept": "text/plain; version=0.0.4"},
            timeout=_TIMEOUT_S,
            allow_redirects=False,
            stream=True,
        ) as answer:
            if answer.status_code != 200:
                raise ValueError(
                    f"HTTP {answer.status_code}, expected 200 from {address}"
                )
            for chunk in answer.iter_content(1 << 16):
                body += chunk
                if len(body) > _MAX_BYTES:
                    raise ValueError(f"an answer of more than {_MAX_BYTES >> 20} MiB")
                if time.monotonic() > deadline_s:
                    raise ValueError(
                        f"an answer that takes longer than {_TOTAL_S:.0f} s"
                    )
    return bytes(body)


# --- the format -------------------------------------------------------------------------------------
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
        if sample.name != family.name:
            metric.sum.aggregation_temporality = _CUMULATIVE
            metric.sum.is_monotonic = True
            points = metric.sum.data_points
        points.add(
            attributes=string_attributes(sample.labels),
            time_unix_nano=time_ns,
            start_time_unix_nano=start_ns,
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
