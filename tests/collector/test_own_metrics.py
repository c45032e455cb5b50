"""The service's own metrics, as Prometheus text."""

from __future__ import annotations

from dataclasses import replace

from otel_bridge.journal.report import ExporterReport, Report
from otel_bridge_collector.telemetry.service_metrics import of_runs, text_of

NOW = 1_700_000_000_000_000_000


def report() -> Report:
    return Report(
        time_unix_ns=NOW - 2_500_000_000,
        position=100,
        rows=90,
        drops={"bad": 2},
        exporters={
            "wandb": ExporterReport(
                written=40, state="retrying", rows=40, dead_letters=1
            )
        },
    )


def test_prometheus_reads_what_a_run_waits_for_and_what_is_not_read_yet() -> None:
    text = text_of(of_runs({"r1": report()}, NOW, unread={"r1": 4096, "r2": 7}))

    values = [line for line in text.splitlines() if not line.startswith("#")]
    assert values == [
        "otel_bridge_runs 1.0",
        'otel_bridge_rows{run="r1"} 90.0',
        'otel_bridge_rollouts{run="r1"} 0.0',
        'otel_bridge_missing_rows{run="r1"} 0.0',
        'otel_bridge_unread_bytes{run="r1"} 4096.0',
        'otel_bridge_unread_bytes{run="r2"} 7.0',
        'otel_bridge_drops{reason="bad",run="r1"} 2.0',
        'otel_bridge_report_age_seconds{run="r1"} 2.5',
        'otel_bridge_exporter_backlog{exporter="wandb",run="r1"} 60.0',
        'otel_bridge_exporter_blocked{exporter="wandb",run="r1"} 0.0',
        'otel_bridge_exporter_failing{exporter="wandb",run="r1"} 1.0',
        'otel_bridge_exporter_rows{exporter="wandb",run="r1"} 40.0',
        'otel_bridge_exporter_dead_letters{exporter="wandb",run="r1"} 1.0',
    ]


def test_runs_that_ended_long_ago_make_no_series_and_those_at_work_go_before_the_others() -> (
    None
):
    hour_ns = 3600 * 10**9
    open_runs = {f"open-{number}": report() for number in range(700)}
    just = {f"just-{number}": replace(report(), ended=True) for number in range(700)}
    old = {
        f"old-{number}": replace(report(), ended=True, time_unix_ns=NOW - hour_ns)
        for number in range(700)
    }
    reports = {**old, **just, **open_runs}

    metrics = of_runs(reports, NOW, unread=dict.fromkeys(reports, 0))
    samples = {
        metric.name.removeprefix("otel_bridge_"): metric.samples for metric in metrics
    }

    shown = [sample.labels["run"] for sample in samples["rows"]]
    assert [(sample.labels, sample.value) for sample in samples["runs"]] == [({}, 2100)]
    assert (len(shown), set(open_runs) <= set(shown), set(old) & set(shown)) == (
        1000,
        True,
        set(),
    )
    assert [sample.labels["run"] for sample in samples["unread_bytes"]] == shown
