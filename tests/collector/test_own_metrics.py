"""The service's own metrics: as Prometheus text, and as OTLP to where the exporter ``otlp`` delivers."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)

from otel_bridge.journal.folder import run_folders
from otel_bridge.journal.report import ExporterReport, Report
from otel_bridge_collector import Receiver, ReceiverSettings
from otel_bridge_collector.telemetry.sending import OwnMetrics
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


class Endpoint:
    """An OTLP endpoint of somebody else, over HTTP: keeps what it is sent."""

    def __init__(self) -> None:
        self.requests: list[ExportMetricsServiceRequest] = []
        self.came = threading.Event()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body: Any = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    import gzip

                    body = gzip.decompress(body)
                endpoint.requests.append(ExportMetricsServiceRequest.FromString(body))
                endpoint.came.set()
                self.send_response(200)
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(
            target=self._server.serve_forever,
            kwargs={"poll_interval": 0.02},
            daemon=True,
        ).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    found = Endpoint()
    yield found
    found.close()


def to(url: str) -> dict[str, str]:
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": url,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
    }


def test_they_go_out_as_otlp_under_the_service_s_own_name(endpoint: Endpoint) -> None:
    own = OwnMetrics(
        lambda: of_runs({"r1": report()}, NOW, unread={"r1": 4096}),
        to(endpoint.url),
        every_s=0.01,
    )
    own.start()
    try:
        assert endpoint.came.wait(10)
    finally:
        own.stop()

    (part,) = endpoint.requests[0].resource_metrics
    who = {pair.key: pair.value.string_value for pair in part.resource.attributes}
    assert who["service.name"] == "otel-bridge"
    found = {
        metric.name: [point.as_double for point in metric.gauge.data_points]
        for scope in part.scope_metrics
        for metric in scope.metrics
    }
    assert (
        found["otel_bridge.unread_bytes"],
        found["otel_bridge.exporter_backlog"],
    ) == (
        [4096.0],
        [60.0],
    )


def test_an_otel_bridge_that_is_sent_them_takes_them_for_no_run_and_a_counter_is_a_sum(
    tmp_path: Path, endpoint: Endpoint
) -> None:
    receiver = Receiver(ReceiverSettings.from_environment({}, tmp_path))
    try:
        for url in (receiver.http_endpoint, endpoint.url):
            OwnMetrics(receiver.metrics, to(url)).send()
        text = text_of(receiver.metrics())
    finally:
        receiver.stop()

    assert run_folders(tmp_path) == []
    assert re.search(
        r'^otel_bridge_received_requests_total\{signal="metrics"\} 1\.0$',
        text,
        re.MULTILINE,
    )
    (scope,) = endpoint.requests[0].resource_metrics[0].scope_metrics
    (taken,) = [
        metric
        for metric in scope.metrics
        if metric.name == "otel_bridge.received_requests"
    ]
    assert (
        taken.sum.is_monotonic,
        [point.as_double for point in taken.sum.data_points],
    ) == (
        True,
        [1.0],
    )
