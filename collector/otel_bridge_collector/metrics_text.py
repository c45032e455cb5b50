"""Our own metrics: totals of the receiver, of runs by their reports -> the text of Prometheus 0.0.4, or OTLP."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, NumberDataPoint

from otel_bridge.journal.report import Report
from otel_bridge_collector.counters import Counters

_PREFIX: Final = "otel_bridge_"
_ENDED_SHOWN_NS: Final = 3600 * 10**9
_MOST_RUNS: Final = 1000
SERVICE_MARK: Final = "otel_bridge.service"
"""Resource attribute of a bridge's own metrics: they belong to no run; a receiver of ours passes over them."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric and its values.

    Attributes:
        name: Without our prefix.
        kind: A counter only grows while the service lives.
        text: What it is.
        samples: Labels and value.
    """

    name: str
    kind: Literal["counter", "gauge"]
    text: str
    samples: Sequence[tuple[Mapping[str, str], float]]


def of_receiver(counters: Counters, *, open_runs: int, syncs: int | None) -> list[Metric]:
    """Return the receiver's own metrics.

    Args:
        counters: What it counted.
        open_runs: Runs whose segment is open.
        syncs: Syncs of the disk so far; ``None`` where nobody waits for them.
    """
    by_signal = [({"signal": name}, count) for name, count in sorted(counters.requests.items())]
    by_reason = [({"reason": name}, count) for name, count in sorted(counters.refused.items())]
    found = [
        Metric("received_requests_total", "counter", "Requests appended and acknowledged.", by_signal),
        Metric("refused_requests_total", "counter", "Requests refused, by reason.", by_reason),
        Metric("rejected_items_total", "counter", "Points, spans, records left out.", [({}, counters.rejected)]),
        Metric("appended_bytes_total", "counter", "Bytes appended to segments.", [({}, counters.appended_bytes)]),
        Metric("receiving_runs", "gauge", "Runs whose segment is open.", [({}, open_runs)]),
    ]
    if syncs is not None:
        found.append(Metric("syncs_total", "counter", "Group syncs of the disk.", [({}, syncs)]))
    return found


def of_runs(reports: Mapping[str, Report], now_unix_ns: int, *, unread: Mapping[str, int]) -> list[Metric]:
    """Return what the reports of runs say: of those at work and those that ended within the hour, a thousand at most.

    Folders of ended runs stay, and each would be a dozen series for ever.

    Args:
        reports: By run id.
        now_unix_ns: The time now.
        unread: Bytes of segments that the bridge has not read, by run id; also of runs without a report.
    """
    shown = _worth_showing(reports, now_unix_ns)
    runs = [({"run": run_id}, report) for run_id, report in sorted(shown.items())]
    pairs = [
        ({**run, "exporter": name}, report, exporter)
        for run, report in runs
        for name, exporter in sorted(report.exporters.items())
    ]
    drops = [({**run, "reason": name}, count) for run, report in runs for name, count in sorted(report.drops.items())]
    waiting = [({**run, "what": name}, count) for run, report in runs for name, count in sorted(report.waiting.items())]
    return [
        Metric("runs", "gauge", "Run folders with a report.", [({}, len(reports))]),
        Metric("rows", "gauge", "Rows read.", [(run, report.rows) for run, report in runs]),
        Metric("rollouts", "gauge", "Rollouts chosen.", [(run, report.rollouts) for run, report in runs]),
        Metric("missing_rows", "gauge", "Rows never received.", [(run, report.missing_rows) for run, report in runs]),
        Metric(
            "unread_bytes",
            "gauge",
            "Bytes taken and not read yet: what they hold is in no backlog so far.",
            [({"run": run_id}, size) for run_id, size in sorted(unread.items()) if size or run_id in shown][
                :_MOST_RUNS
            ],
        ),
        Metric("waiting", "gauge", "Rows, traces and rollouts that wait for their rest.", waiting),
        Metric("drops", "gauge", "What was left out, by reason.", drops),
        Metric(
            "report_age_seconds",
            "gauge",
            "Age of the report of a run that has not ended.",
            [(run, max(now_unix_ns - one.time_unix_ns, 0) / 1e9) for run, one in runs if not one.ended],
        ),
        Metric(
            "exporter_backlog",
            "gauge",
            "Records that the exporter has not written.",
            [(labels, max(report.position - one.written, 0)) for labels, report, one in pairs],
        ),
        Metric(
            "exporter_blocked",
            "gauge",
            "1: a person must act.",
            [(labels, one.state == "blocked") for labels, _, one in pairs],
        ),
        Metric(
            "exporter_failing",
            "gauge",
            "1: it is blocked or tries again.",
            [(labels, one.state in {"blocked", "retrying"}) for labels, _, one in pairs],
        ),
        Metric("exporter_rows", "gauge", "Rows written.", [(labels, one.rows) for labels, _, one in pairs]),
        Metric(
            "exporter_dead_letters",
            "gauge",
            "Records refused for good.",
            [(labels, one.dead_letters) for labels, _, one in pairs],
        ),
    ]


def _worth_showing(reports: Mapping[str, Report], now_unix_ns: int) -> Mapping[str, Report]:
    since_ns = now_unix_ns - _ENDED_SHOWN_NS
    found = [(name, one) for name, one in reports.items() if not one.ended or one.time_unix_ns > since_ns]
    found.sort(key=lambda pair: (pair[1].ended, -pair[1].time_unix_ns))
    return dict(found[:_MOST_RUNS])


def text_of(metrics: Iterable[Metric]) -> str:
    """Return *metrics* as Prometheus reads them."""
    lines: list[str] = []
    for metric in metrics:
        full = _PREFIX + metric.name
        lines += [f"# HELP {full} {metric.text}", f"# TYPE {full} {metric.kind}"]
        for labels, value in metric.samples:
            shown = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
            lines.append(f"{full}{{{shown}}} {_number(value)}" if shown else f"{full} {_number(value)}")
    return "\n".join((*lines, ""))


def request_of(
    metrics: Iterable[Metric], resource: Mapping[str, str], *, start_unix_ns: int, now_unix_ns: int
) -> bytes:
    """Return *metrics* as an OTLP export request of this service.

    Args:
        metrics: Names get dots for the prefix, as OpenTelemetry has them: ``otel_bridge.rows``.
        resource: Who speaks.
        start_unix_ns: Since when counters count.
        now_unix_ns: When this was read.
    """
    request = ExportMetricsServiceRequest()
    part = request.resource_metrics.add()
    part.resource.attributes.extend(_attributes(resource))
    part.resource.attributes.append(KeyValue(key=SERVICE_MARK, value=AnyValue(bool_value=True)))
    scope = part.scope_metrics.add()
    scope.scope.name = "otel_bridge.service"
    for metric in metrics:
        points = [
            NumberDataPoint(
                attributes=_attributes(labels),
                start_time_unix_nano=start_unix_ns if metric.kind == "counter" else 0,
                time_unix_nano=now_unix_ns,
                as_double=float(value),
            )
            for labels, value in metric.samples
        ]
        if not points:
            continue
        added = scope.metrics.add(name=f"otel_bridge.{metric.name.removesuffix('_total')}", description=metric.text)
        if metric.kind == "counter":
            added.sum.is_monotonic = True
            added.sum.aggregation_temporality = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
            added.sum.data_points.extend(points)
        else:
            added.gauge.data_points.extend(points)
    return request.SerializeToString()


def _attributes(values: Mapping[str, str]) -> list[KeyValue]:
    return [KeyValue(key=key, value=AnyValue(string_value=value)) for key, value in values.items()]


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
