"""Counts what the receiver has done since its start, for metrics, and logs its refusals once a minute."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Final, TypeAlias

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, NumberDataPoint
from prometheus_client import Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from otel_bridge.bridge.forwarding.client import client_for
from otel_bridge.bridge.supervisor import SupervisorState
from otel_bridge.errors import OtelBridgeError
from otel_bridge.journal.report import Report
from otel_bridge.otlp.destination import endpoint_for
from otel_bridge_collector.error_table import ErrorResponse

_log = logging.getLogger("otel_bridge_collector")
_LOG_EVERY_S: Final = 60.0


@dataclass(slots=True)
class Counters:
    """Holds totals since the start. Written on the event loop only; read from any thread.

    Attributes:
        requests: Accepted requests, by signal.
        appended_bytes: Bytes appended to segments.
        refused: Refused requests, by reason.
        rejected: Rejected points, spans and records of accepted requests.
    """

    requests: Counter[str] = field(default_factory=Counter[str])
    appended_bytes: int = 0
    refused: Counter[str] = field(default_factory=Counter[str])
    rejected: int = 0
    _logged_s: dict[str, float] = field(default_factory=dict[str, float])
    _logged: Counter[str] = field(default_factory=Counter[str])

    def accept(self, signal: str, rejected: int) -> None:
        """Count an accepted request, *rejected* points, spans or records of which were not."""
        self.requests[signal] += 1
        self.rejected += rejected

    def append(self, size_bytes: int) -> None:
        """Count the bytes that were appended to a segment."""
        self.appended_bytes += size_bytes

    def refuse(self, answer: ErrorResponse, protocol: str, error: BaseException) -> None:
        """Count a refusal; each reason is logged at once and then once a minute, with the number of refusals."""
        reason = answer.reason
        self.refused[reason] += 1
        now_s = time.monotonic()
        if now_s - self._logged_s.get(reason, float("-inf")) < _LOG_EVERY_S:
            return
        self._logged_s[reason] = now_s
        since = self.refused[reason] - self._logged[reason]
        self._logged[reason] = self.refused[reason]
        unforeseen = error if reason == "internal" else None
        _log.warning(
            "%s request refused (%s, %d since last logged): %s", protocol, reason, since, error, exc_info=unforeseen
        )


# Sends the service's own metrics to where the exporter ``otlp`` delivers, once a minute.

EVERY_S: Final = 60.0


class OwnMetrics:
    """Sends the service's own metrics from a thread between `start` and `stop`.

    Metrics that cannot be sent are not kept, because the next ones contain newer totals.

    Args:
        read: Returns the metrics at this moment.
        env: Environment with the standard ``OTEL_EXPORTER_OTLP_*`` variables.
        every_s: Interval in seconds.

    Raises:
        ConfigError: A variable cannot be used.
    """

    def __init__(
        self, read: Callable[[], Sequence[Metric]], env: Mapping[str, str], *, every_s: float = EVERY_S
    ) -> None:
        self._read, self._every_s = read, every_s
        self._client = client_for(endpoint_for("metrics", env))
        self._began_ns = time.time_ns()
        self._resource = {
            "service.name": "otel-bridge",
            "service.version": version("otel-bridge"),
            "service.instance.id": os.urandom(8).hex(),
            "host.name": socket.gethostname(),
        }
        self._stopping = threading.Event()
        self._failed = False
        self._thread = threading.Thread(target=self._run, name="own-metrics", daemon=True)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def stop(self) -> None:
        """Stop sending, without waiting for a running request."""
        self._stopping.set()

    def send(self) -> None:
        """Send once; raise the client's error."""
        body = request_of(self._read(), self._resource, start_unix_ns=self._began_ns, now_unix_ns=time.time_ns())
        self._client.send(body, "")

    def _run(self) -> None:
        while not self._stopping.wait(self._every_s):
            self._try()
        self._client.close()

    def _try(self) -> None:
        try:
            self.send()
        except OtelBridgeError as exc:
            if not self._failed:  # logged when failures begin, not at each try
                _log.warning("the service's own metrics are not sent: %s", exc)
            self._failed = True
        else:
            self._failed = False


# Builds the service's own metrics, from totals of the receiver and reports of runs: Prometheus text 0.0.4, or OTLP.

_PREFIX: Final = "otel_bridge_"
_ENDED_SHOWN_NS: Final = 3600 * 10**9
_MOST_RUNS: Final = 1000
SERVICE_MARK: Final = "otel_bridge.service"
"""Resource attribute of a bridge's own metrics, which belong to no run; an otel-bridge receiver ignores them."""
_Points: TypeAlias = Sequence[tuple[Sequence[str], float]]
"""Values of a metric, each with the values of its labels."""


def of_receiver(counters: Counters, *, open_runs: int, syncs: int | None) -> list[Metric]:
    """Return the receiver's own metrics.

    Args:
        counters: Its totals.
        open_runs: Number of runs with an open segment.
        syncs: Syncs of the disk so far; ``None`` when requests do not wait for them.
    """
    by_signal = [([signal], count) for signal, count in sorted(counters.requests.items())]
    by_reason = [([reason], count) for reason, count in sorted(counters.refused.items())]
    metrics: list[Metric] = [
        _counter("received_requests", "Requests appended and acknowledged.", by_signal, ["signal"]),
        _counter("refused_requests", "Requests refused, by reason.", by_reason, ["reason"]),
        _counter(
            "rejected_items",
            "Points, spans and log records rejected in accepted requests.",
            _single(counters.rejected),
        ),
        _counter("appended_bytes", "Bytes appended to segments.", _single(counters.appended_bytes)),
        _gauge("receiving_runs", "Runs for which the receiver has a segment open.", _single(open_runs)),
    ]
    if syncs is not None:
        text = "Syncs of the disk; requests that arrive together share one."
        metrics.append(_counter("syncs", text, _single(syncs)))
    return metrics


def of_host(state: SupervisorState) -> list[Metric]:
    """Return the metrics of the thread that reads run folders."""
    return [
        _gauge("open_runs", "Active runs.", _single(state.runs_open)),
        _gauge("waiting_runs", "Runs that wait because too many are active.", _single(state.runs_waiting)),
        _gauge(
            "waiting_runs_seconds",
            "Seconds that the first of the waiting runs has waited.",
            _single(state.longest_wait_s),
        ),
        _gauge(
            "heartbeat_age_seconds",
            "Seconds since the thread that reads run folders served a run; grows while that thread is stalled.",
            _single(state.heartbeat_age_s),
        ),
        _counter(
            "bridge_failures",
            "Errors of the thread that reads run folders; what failed is tried again.",
            _single(state.failures),
        ),
    ]


def of_runs(reports: Mapping[str, Report], now_unix_ns: int, *, unread: Mapping[str, int]) -> list[Metric]:
    """Return metrics from the reports of runs that have not ended or ended within the hour, a thousand at most.

    Folders of ended runs stay, and each would add a dozen series forever.

    Args:
        reports: Reports by run id.
        now_unix_ns: The time now.
        unread: Bytes of segments that the bridge has not read, by run id; also of runs without a report.
    """
    recent = _recent(reports, now_unix_ns)
    runs = sorted(recent.items())
    sizes = [([run_id], size) for run_id, size in sorted(unread.items()) if size or run_id in recent]
    waiting = _by_run(runs, lambda report: report.waiting)
    drops = _by_run(runs, lambda report: report.drops)
    ages = [([run_id], max(now_unix_ns - report.time_unix_ns, 0) / 1e9) for run_id, report in runs if not report.ended]
    return [
        _gauge("runs", "Run folders with a report.", _single(len(reports))),
        _gauge(
            "rows",
            "Rows of the run so far, with the rows of rollout metrics.",
            [([run_id], report.rows) for run_id, report in runs],
            ["run"],
        ),
        _gauge(
            "rollouts",
            "Rollouts kept so far.",
            [([run_id], report.rollouts) for run_id, report in runs],
            ["run"],
        ),
        _gauge(
            "missing_rows",
            "Rows missing by their numbers.",
            [([run_id], report.missing_rows) for run_id, report in runs],
            ["run"],
        ),
        _gauge(
            "unread_bytes",
            "Bytes in segments that the bridge has not read; no backlog counts their records yet.",
            sizes[:_MOST_RUNS],
            ["run"],
        ),
        _gauge(
            "waiting",
            "Rows, traces and rollouts that are incomplete or wait for their step.",
            waiting,
            ["run", "what"],
        ),
        _gauge("drops", "Dropped values, rows, rollouts and other data, by reason.", drops, ["run", "reason"]),
        _gauge("report_age_seconds", "Age of the report of a run that has not ended.", ages, ["run"]),
        *_of_exporters(runs),
    ]


def _recent(reports: Mapping[str, Report], now_unix_ns: int) -> Mapping[str, Report]:
    """Return the reports to show: of runs that have not ended, then of those that ended last."""
    since_ns = now_unix_ns - _ENDED_SHOWN_NS
    recent = [
        (run_id, report) for run_id, report in reports.items() if not report.ended or report.time_unix_ns > since_ns
    ]
    recent.sort(key=lambda pair: (pair[1].ended, -pair[1].time_unix_ns))
    return dict(recent[:_MOST_RUNS])


def _by_run(runs: Iterable[tuple[str, Report]], counts_of: Callable[[Report], Mapping[str, int]]) -> _Points:
    """Return the counts of each report by run id and by their own key."""
    points: list[tuple[Sequence[str], float]] = []
    for run_id, report in runs:
        points += [([run_id, name], count) for name, count in sorted(counts_of(report).items())]
    return points


def _of_exporters(runs: Iterable[tuple[str, Report]]) -> list[Metric]:
    """Return one value of each metric for each exporter of each run."""
    labels = ["run", "exporter"]
    metrics = [
        _gauge("exporter_backlog", "Records that the exporter has not written yet.", [], labels),
        _gauge("exporter_blocked", "1 if the exporter is blocked and a person must act, else 0.", [], labels),
        _gauge("exporter_failing", "1 if the exporter is blocked or retrying, else 0.", [], labels),
        _gauge("exporter_rows", "Rows that the exporter has written.", [], labels),
        _gauge("exporter_dead_letters", "Records that the tracker refused for good.", [], labels),
    ]
    backlog, blocked, failing, rows, dead_letters = metrics
    for run_id, report in runs:
        for name, exporter in sorted(report.exporters.items()):
            backlog.add_metric([run_id, name], max(report.position - exporter.written, 0))
            blocked.add_metric([run_id, name], exporter.state == "blocked")
            failing.add_metric([run_id, name], exporter.state in {"blocked", "retrying"})
            rows.add_metric([run_id, name], exporter.rows)
            dead_letters.add_metric([run_id, name], exporter.dead_letters)
    return list[Metric](metrics)


def _counter(name: str, text: str, points: _Points, labels: Sequence[str] = ()) -> CounterMetricFamily:
    """Return a total that only grows while the service runs; Prometheus shows *name* with the suffix ``_total``."""
    counter = CounterMetricFamily(_PREFIX + name, text, labels=labels)
    for label_values, value in points:
        counter.add_metric(label_values, value)
    return counter


def _gauge(name: str, text: str, points: _Points, labels: Sequence[str] = ()) -> GaugeMetricFamily:
    gauge = GaugeMetricFamily(_PREFIX + name, text, labels=labels)
    for label_values, value in points:
        gauge.add_metric(label_values, value)
    return gauge


def _single(value: float) -> _Points:
    """Return the one value of a metric without labels."""
    return [((), value)]


class _Collected(Collector):
    """Holds the metrics of one text, in the form that ``generate_latest`` reads."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def text_of(metrics: Iterable[Metric]) -> str:
    """Return *metrics* in the text format of Prometheus."""
    return generate_latest(_Collected(metrics)).decode()


def request_of(
    metrics: Iterable[Metric], resource: Mapping[str, str], *, start_unix_ns: int, now_unix_ns: int
) -> bytes:
    """Return *metrics* as an OTLP export request of this service.

    Args:
        metrics: The metrics; the prefix of their names gets a dot, as in OpenTelemetry: ``otel_bridge.rows``.
        resource: The sender.
        start_unix_ns: Start time of the counters.
        now_unix_ns: Time of the values.
    """
    request = ExportMetricsServiceRequest()
    part = request.resource_metrics.add()
    part.resource.attributes.extend(_attributes(resource))
    part.resource.attributes.append(KeyValue(key=SERVICE_MARK, value=AnyValue(bool_value=True)))
    scope = part.scope_metrics.add()
    scope.scope.name = "otel_bridge.service"
    for metric in metrics:
        is_counter = metric.type == "counter"
        points = [
            NumberDataPoint(
                attributes=_attributes(sample.labels),
                start_time_unix_nano=start_unix_ns if is_counter else 0,
                time_unix_nano=now_unix_ns,
                as_double=float(sample.value),
            )
            for sample in metric.samples
        ]
        if not points:
            continue
        name = f"otel_bridge.{metric.name.removeprefix(_PREFIX)}"
        exported = scope.metrics.add(name=name, description=metric.documentation)
        if is_counter:
            exported.sum.is_monotonic = True
            exported.sum.aggregation_temporality = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
            exported.sum.data_points.extend(points)
        else:
            exported.gauge.data_points.extend(points)
    return request.SerializeToString()


def _attributes(values: Mapping[str, str]) -> list[KeyValue]:
    return [KeyValue(key=key, value=AnyValue(string_value=value)) for key, value in values.items()]
