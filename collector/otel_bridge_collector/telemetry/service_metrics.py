"""Builds the service's own metrics from totals of the receiver and reports of runs, and their text for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client import Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from otel_bridge.bridge.supervisor import SupervisorState
from otel_bridge.journal.report import Report
from otel_bridge_collector.telemetry.counters import Counters

PREFIX = "otel_bridge_"
_ENDED_SHOWN_NS = 3600 * 10**9
# About a dozen series each.
_MOST_RUNS = 1000
_EXPORTER = ("run", "exporter")
"""Labels of the metrics of an exporter."""


def of_receiver(
    counters: Counters, *, open_runs: int, syncs: int | None
) -> list[Metric]:
    """Return the receiver's own metrics.

    Args:
        counters: Its totals.
        open_runs: Number of runs with an open segment.
        syncs: Syncs of the disk so far; ``None`` when requests do not wait for them.
    """
    requests = _counter(
        "received_requests", "Requests appended and acknowledged.", "signal"
    )
    for signal, count in sorted(counters.requests.items()):
        requests.add_metric([signal], count)
    refusals = _counter("refused_requests", "Requests refused, by reason.", "reason")
    for reason, count in sorted(counters.refused.items()):
        refusals.add_metric([reason], count)
    metrics: list[Metric] = [
        requests,
        refusals,
        CounterMetricFamily(
            f"{PREFIX}rejected_items",
            "Points, spans and log records rejected in accepted requests.",
            counters.rejected,
        ),
        CounterMetricFamily(
            f"{PREFIX}appended_bytes",
            "Bytes appended to segments.",
            counters.appended_bytes,
        ),
        GaugeMetricFamily(
            f"{PREFIX}receiving_runs",
            "Runs for which the receiver has a segment open.",
            open_runs,
        ),
    ]
    if syncs is not None:
        text = "Syncs of the disk; requests that arrive together share one."
        metrics.append(CounterMetricFamily(f"{PREFIX}syncs", text, syncs))
    return metrics


def of_host(state: SupervisorState) -> list[Metric]:
    """Return the metrics of the thread that reads run folders."""
    return [
        GaugeMetricFamily(f"{PREFIX}open_runs", "Active runs.", state.runs_open),
        GaugeMetricFamily(
            f"{PREFIX}waiting_runs",
            "Runs that wait because too many are active.",
            state.runs_waiting,
        ),
        GaugeMetricFamily(
            f"{PREFIX}waiting_runs_seconds",
            "Seconds that the first of the waiting runs has waited.",
            state.longest_wait_s,
        ),
        GaugeMetricFamily(
            f"{PREFIX}heartbeat_age_seconds",
            "Seconds since the thread that reads run folders served a run; grows while that thread is stalled.",
            state.heartbeat_age_s,
        ),
        CounterMetricFamily(
            f"{PREFIX}bridge_failures",
            "Errors of the thread that reads run folders; what failed is tried again.",
            state.failures,
        ),
    ]


def of_runs(
    reports: Mapping[str, Report], now_unix_ns: int, *, unread: Mapping[str, int]
) -> list[Metric]:
    """Return metrics from the reports of runs that have not ended or ended within the hour, a thousand at most.

    Folders of ended runs stay, and each would add a dozen series forever.

    Args:
        reports: Reports by run id.
        now_unix_ns: The time now.
        unread: Bytes of segments that the bridge has not read, by run id; also of runs without a
            report.
    """
    recent = _recent(reports, now_unix_ns)
    rows = _gauge(
        "rows", "Rows of the run so far, with the rows of rollout metrics.", "run"
    )
    rollouts = _gauge("rollouts", "Rollouts kept so far.", "run")
    missing_rows = _gauge("missing_rows", "Rows missing by their numbers.", "run")
    unread_bytes = _gauge(
        "unread_bytes",
        "Bytes in segments that the bridge has not read; no backlog counts their records yet.",
        "run",
    )
    waiting = _gauge(
        "waiting",
        "Rows, traces, rollouts and steps that wait for what is late.",
        "run",
        "what",
    )
    drops = _gauge(
        "drops",
        "Dropped values, rows, rollouts and other data, by reason.",
        "run",
        "reason",
    )
    age = _gauge(
        "report_age_seconds", "Age of the report of a run that has not ended.", "run"
    )
    for run_id, report in sorted(recent.items()):
        rows.add_metric([run_id], report.rows)
        rollouts.add_metric([run_id], report.rollouts)
        missing_rows.add_metric([run_id], report.missing_rows)
        for kind, count in sorted(report.waiting.items()):
            waiting.add_metric([run_id, kind], count)
        for reason, count in sorted(report.drops.items()):
            drops.add_metric([run_id, reason], count)
        if not report.ended:
            age_ns = max(now_unix_ns - report.time_unix_ns, 0)
            age.add_metric([run_id], age_ns / 1e9)
    for run_id, size in sorted(unread.items()):
        if (size or run_id in recent) and len(unread_bytes.samples) < _MOST_RUNS:
            unread_bytes.add_metric([run_id], size)
    return [
        GaugeMetricFamily(f"{PREFIX}runs", "Run folders with a report.", len(reports)),
        rows,
        rollouts,
        missing_rows,
        unread_bytes,
        waiting,
        drops,
        age,
        *_of_exporters(sorted(recent.items())),
    ]


def _recent(reports: Mapping[str, Report], now_unix_ns: int) -> Mapping[str, Report]:
    """Return the reports to show: of runs that have not ended, then of those that ended last."""
    since_ns = now_unix_ns - _ENDED_SHOWN_NS
    recent: list[tuple[str, Report]] = []
    for run_id, report in reports.items():
        if not report.ended or report.time_unix_ns > since_ns:
            recent.append((run_id, report))
    recent.sort(key=lambda pair: (pair[1].ended, -pair[1].time_unix_ns))
    return dict(recent[:_MOST_RUNS])


def _of_exporters(runs: Iterable[tuple[str, Report]]) -> list[Metric]:
    """Return one value of each metric for each exporter of each run."""
    backlog = _gauge(
        "exporter_backlog",
        "Records that the exporter has not written yet.",
        *_EXPORTER,
    )
    blocked = _gauge(
        "exporter_blocked",
        "1 if the exporter is blocked and a person must act, else 0.",
        *_EXPORTER,
    )
    failing = _gauge(
        "exporter_failing",
        "1 if the exporter is blocked or retrying, else 0.",
        *_EXPORTER,
    )
    rows = _gauge("exporter_rows", "Rows that the exporter has written.", *_EXPORTER)
    dead_letters = _gauge(
        "exporter_dead_letters",
        "Records that the tracker refused for good.",
        *_EXPORTER,
    )
    for run_id, report in runs:
        for name, exporter in sorted(report.exporters.items()):
            labels = [run_id, name]
            backlog.add_metric(labels, max(report.position - exporter.written, 0))
            blocked.add_metric(labels, exporter.state == "blocked")
            failing.add_metric(labels, exporter.state in {"blocked", "retrying"})
            rows.add_metric(labels, exporter.rows)
            dead_letters.add_metric(labels, exporter.dead_letters)
    return [backlog, blocked, failing, rows, dead_letters]


def _counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
    """Return a total that only grows while the service runs.

    Prometheus shows *name* with the suffix ``_total``.
    """
    return CounterMetricFamily(PREFIX + name, text, labels=labels)


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(PREFIX + name, text, labels=labels)


class _Collected(Collector):
    """Holds the metrics of one text, in the form that ``generate_latest`` reads."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def text_of(metrics: Iterable[Metric]) -> str:
    """Return *metrics* in the text format of Prometheus."""
    return generate_latest(_Collected(metrics)).decode()
