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
from typing import Final, Literal

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, NumberDataPoint

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


@dataclass(frozen=True, slots=True)
class Metric:
    """Holds one metric and its values.

    Attributes:
        name: Name without the prefix.
        kind: A counter only grows while the service runs.
        text: Description.
        samples: Labels and value.
    """

    name: str
    kind: Literal["counter", "gauge"]
    text: str
    samples: Sequence[tuple[Mapping[str, str], float]]


def of_receiver(counters: Counters, *, open_runs: int, syncs: int | None) -> list[Metric]:
    """Return the receiver's own metrics.

    Args:
        counters: Its totals.
        open_runs: Number of runs with an open segment.
        syncs: Syncs of the disk so far; ``None`` when requests do not wait for them.
    """
    by_signal = [({"signal": name}, count) for name, count in sorted(counters.requests.items())]
    by_reason = [({"reason": name}, count) for name, count in sorted(counters.refused.items())]
    found = [
        Metric("received_requests_total", "counter", "Requests appended and acknowledged.", by_signal),
        Metric("refused_requests_total", "counter", "Requests refused, by reason.", by_reason),
        Metric(
            "rejected_items_total",
            "counter",
            "Points, spans and log records rejected in accepted requests.",
            [({}, counters.rejected)],
        ),
        Metric("appended_bytes_total", "counter", "Bytes appended to segments.", [({}, counters.appended_bytes)]),
        Metric("receiving_runs", "gauge", "Runs for which the receiver has a segment open.", [({}, open_runs)]),
    ]
    if syncs is not None:
        found.append(
            Metric(
                "syncs_total", "counter", "Syncs of the disk; requests that arrive together share one.", [({}, syncs)]
            )
        )
    return found


def of_host(state: SupervisorState) -> list[Metric]:
    """Return the metrics of the thread that reads run folders."""
    return [
        Metric("open_runs", "gauge", "Active runs.", [({}, state.runs_open)]),
        Metric("waiting_runs", "gauge", "Runs that wait because too many are active.", [({}, state.runs_waiting)]),
        Metric(
            "waiting_runs_seconds",
            "gauge",
            "Seconds that the first of the waiting runs has waited.",
            [({}, state.longest_wait_s)],
        ),
        Metric(
            "heartbeat_age_seconds",
            "gauge",
            "Seconds since the thread that reads run folders served a run; grows while that thread is stalled.",
            [({}, state.heartbeat_age_s)],
        ),
        Metric(
            "bridge_failures_total",
            "counter",
            "Errors of the thread that reads run folders; what failed is tried again.",
            [({}, state.failures)],
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
    shown = _worth_showing(reports, now_unix_ns)
    runs = [({"run": run_id}, report) for run_id, report in sorted(shown.items())]
    drops = [({**run, "reason": name}, count) for run, report in runs for name, count in sorted(report.drops.items())]
    waiting = [({**run, "what": name}, count) for run, report in runs for name, count in sorted(report.waiting.items())]
    return [
        Metric("runs", "gauge", "Run folders with a report.", [({}, len(reports))]),
        Metric(
            "rows",
            "gauge",
            "Rows of the run so far, with the rows of rollout metrics.",
            [(run, report.rows) for run, report in runs],
        ),
        Metric("rollouts", "gauge", "Rollouts kept so far.", [(run, report.rollouts) for run, report in runs]),
        Metric(
            "missing_rows",
            "gauge",
            "Rows missing by their numbers.",
            [(run, report.missing_rows) for run, report in runs],
        ),
        Metric(
            "unread_bytes",
            "gauge",
            "Bytes in segments that the bridge has not read; no backlog counts their records yet.",
            [({"run": run_id}, size) for run_id, size in sorted(unread.items()) if size or run_id in shown][
                :_MOST_RUNS
            ],
        ),
        Metric("waiting", "gauge", "Rows, traces and rollouts that are incomplete or wait for their step.", waiting),
        Metric("drops", "gauge", "Dropped values, rows, rollouts and other data, by reason.", drops),
        Metric(
            "report_age_seconds",
            "gauge",
            "Age of the report of a run that has not ended.",
            [(run, max(now_unix_ns - one.time_unix_ns, 0) / 1e9) for run, one in runs if not one.ended],
        ),
        *_of_exporters(runs),
    ]


def _of_exporters(runs: Sequence[tuple[Mapping[str, str], Report]]) -> list[Metric]:
    pairs = [
        ({**run, "exporter": name}, report, exporter)
        for run, report in runs
        for name, exporter in sorted(report.exporters.items())
    ]
    return [
        Metric(
            "exporter_backlog",
            "gauge",
            "Records that the exporter has not written yet.",
            [(labels, max(report.position - one.written, 0)) for labels, report, one in pairs],
        ),
        Metric(
            "exporter_blocked",
            "gauge",
            "1 if the exporter is blocked and a person must act, else 0.",
            [(labels, one.state == "blocked") for labels, _, one in pairs],
        ),
        Metric(
            "exporter_failing",
            "gauge",
            "1 if the exporter is blocked or retrying, else 0.",
            [(labels, one.state in {"blocked", "retrying"}) for labels, _, one in pairs],
        ),
        Metric(
            "exporter_rows",
            "gauge",
            "Rows that the exporter has written.",
            [(labels, one.rows) for labels, _, one in pairs],
        ),
        Metric(
            "exporter_dead_letters",
            "gauge",
            "Records that the tracker refused for good.",
            [(labels, one.dead_letters) for labels, _, one in pairs],
        ),
    ]


def _worth_showing(reports: Mapping[str, Report], now_unix_ns: int) -> Mapping[str, Report]:
    since_ns = now_unix_ns - _ENDED_SHOWN_NS
    found = [(name, one) for name, one in reports.items() if not one.ended or one.time_unix_ns > since_ns]
    found.sort(key=lambda pair: (pair[1].ended, -pair[1].time_unix_ns))
    return dict(found[:_MOST_RUNS])


def text_of(metrics: Iterable[Metric]) -> str:
    """Return *metrics* in the text format of Prometheus."""
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
