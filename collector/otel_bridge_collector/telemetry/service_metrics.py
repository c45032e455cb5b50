"""Builds the service's own metrics from totals of the receiver and reports of runs, and their text for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

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
_Points: TypeAlias = Sequence[tuple[Sequence[str], float]]
"""Values of a metric, each with the values of its labels."""


def of_receiver(
    counters: Counters, *, open_runs: int, syncs: int | None
) -> list[Metric]:
    """Return the receiver's own metrics.

    Args:
        counters: Its totals.
        open_runs: Number of runs with an open segment.
        syncs: Syncs of the disk so far; ``None`` when requests do not wait for them.
    """
    by_signal = [
        ([signal], count) for signal, count in sorted(counters.requests.items())
    ]
    by_reason = [
        ([reason], count) for reason, count in sorted(counters.refused.items())
    ]
    metrics: list[Metric] = [
        _counter(
            "received_requests",
            "Requests appended and acknowledged.",
            by_signal,
            ["signal"],
        ),
        _counter(
            "refused_requests", "Requests refused, by reason.", by_reason, ["reason"]
        ),
        _counter(
            "rejected_items",
            "Points, spans and log records rejected in accepted requests.",
            _single(counters.rejected),
        ),
        _counter(
            "appended_bytes",
            "Bytes appended to segments.",
            _single(counters.appended_bytes),
        ),
        _gauge(
            "receiving_runs",
            "Runs for which the receiver has a segment open.",
            _single(open_runs),
        ),
    ]
    if syncs is not None:
        text = "Syncs of the disk; requests that arrive together share one."
        metrics.append(_counter("syncs", text, _single(syncs)))
    return metrics


def of_host(state: SupervisorState) -> list[Metric]:
    """Return the metrics of the thread that reads run folders."""
    return [
        _gauge("open_runs", "Active runs.", _single(state.runs_open)),
        _gauge(
            "waiting_runs",
            "Runs that wait because too many are active.",
            _single(state.runs_waiting),
        ),
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
    runs = sorted(recent.items())
    sizes = [
        ([run_id], size)
        for run_id, size in sorted(unread.items())
        if size or run_id in recent
    ]
    waiting = _by_run(runs, lambda report: report.waiting)
    drops = _by_run(runs, lambda report: report.drops)
    ages = [
        ([run_id], max(now_unix_ns - report.time_unix_ns, 0) / 1e9)
        for run_id, report in runs
        if not report.ended
    ]
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
            "Rows, traces, rollouts and steps that wait for what is late.",
            waiting,
            ["run", "what"],
        ),
        _gauge(
            "drops",
            "Dropped values, rows, rollouts and other data, by reason.",
            drops,
            ["run", "reason"],
        ),
        _gauge(
            "report_age_seconds",
            "Age of the report of a run that has not ended.",
            ages,
            ["run"],
        ),
        *_of_exporters(runs),
    ]


def _recent(reports: Mapping[str, Report], now_unix_ns: int) -> Mapping[str, Report]:
    """Return the reports to show: of runs that have not ended, then of those that ended last."""
    since_ns = now_unix_ns - _ENDED_SHOWN_NS
    recent = [
        (run_id, report)
        for run_id, report in reports.items()
        if not report.ended or report.time_unix_ns > since_ns
    ]
    recent.sort(key=lambda pair: (pair[1].ended, -pair[1].time_unix_ns))
    return dict(recent[:_MOST_RUNS])


def _by_run(
    runs: Iterable[tuple[str, Report]], counts_of: Callable[[Report], Mapping[str, int]]
) -> _Points:
    """Return the counts of each report by run id and by their own key."""
    points: list[tuple[Sequence[str], float]] = []
    for run_id, report in runs:
        points += [
            ([run_id, name], count) for name, count in sorted(counts_of(report).items())
        ]
    return points


def _of_exporters(runs: Iterable[tuple[str, Report]]) -> list[Metric]:
    """Return one value of each metric for each exporter of each run."""
    labels = ["run", "exporter"]
    metrics = [
        _gauge(
            "exporter_backlog",
            "Records that the exporter has not written yet.",
            [],
            labels,
        ),
        _gauge(
            "exporter_blocked",
            "1 if the exporter is blocked and a person must act, else 0.",
            [],
            labels,
        ),
        _gauge(
            "exporter_failing",
            "1 if the exporter is blocked or retrying, else 0.",
            [],
            labels,
        ),
        _gauge("exporter_rows", "Rows that the exporter has written.", [], labels),
        _gauge(
            "exporter_dead_letters",
            "Records that the tracker refused for good.",
            [],
            labels,
        ),
    ]
    backlog, blocked, failing, rows, dead_letters = metrics
    for run_id, report in runs:
        for name, exporter in sorted(report.exporters.items()):
            backlog.add_metric(
                [run_id, name], max(report.position - exporter.written, 0)
            )
            blocked.add_metric([run_id, name], exporter.state == "blocked")
            failing.add_metric(
                [run_id, name], exporter.state in {"blocked", "retrying"}
            )
            rows.add_metric([run_id, name], exporter.rows)
            dead_letters.add_metric([run_id, name], exporter.dead_letters)
    return list[Metric](metrics)


def _counter(
    name: str, text: str, points: _Points, labels: Sequence[str] = ()
) -> CounterMetricFamily:
    """Return a total that only grows while the service runs.

    Prometheus shows *name* with the suffix ``_total``.
    """
    counter = CounterMetricFamily(PREFIX + name, text, labels=labels)
    for label_values, value in points:
        counter.add_metric(label_values, value)
    return counter


def _gauge(
    name: str, text: str, points: _Points, labels: Sequence[str] = ()
) -> GaugeMetricFamily:
    gauge = GaugeMetricFamily(PREFIX + name, text, labels=labels)
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
