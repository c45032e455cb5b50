"""Tests of what stock SDKs export: whole requests whose resources say which run they are in."""

from __future__ import annotations

from typing import Any, cast

from opentelemetry._logs import LogRecord
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
)
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import (
    SimpleSpanProcessor,
    SpanExporter,
    SpanExportResult,
)
from opentelemetry.trace import Status, StatusCode

from otel_bridge.emit.sdk.appender import SdkAppender
from support.trainers.emit_rollout_doubles import MemoryRun, plain


class WholeRun(MemoryRun):
    """A run that takes whole requests."""

    project, name = "p", "n"

    def append(
        self,
        signal: int,
        payload: bytes,
        *,
        time_unix_ns: int | None = None,
        whole: bool = False,
    ) -> None:
        assert whole
        super().append(signal, payload)


class Appending(SpanExporter):
    def __init__(self, appender: SdkAppender) -> None:
        self._appender = appender

    def export(self, spans: Any) -> SpanExportResult:
        self._appender.spans(spans)
        return SpanExportResult.SUCCESS


def resource_of(run: MemoryRun, attributes: dict[str, Any]) -> dict[str, Any]:
    provider = TracerProvider(resource=Resource(attributes), shutdown_on_exit=False)
    provider.add_span_processor(
        SimpleSpanProcessor(Appending(SdkAppender(cast("Any", run))))
    )
    provider.get_tracer("app").start_span("work").end()
    [(signal, payload)] = run.records
    [entry] = ExportTraceServiceRequest.FromString(payload).resource_spans
    assert (signal, [span.name for span in entry.scope_spans[0].spans]) == (2, ["work"])
    return {pair.key: plain(pair.value) for pair in entry.resource.attributes}


def test_a_resource_is_reported_its_run_and_keeps_what_it_says() -> None:
    found = resource_of(
        WholeRun(role="trainer"), {"service.name": "svc", "host.name": "h"}
    )

    assert found == {
        "service.name": "svc", "host.name": "h", "rl.run.id": "run1", "rl.project": "p", "rl.run.name": "n",
        "rl.role": "trainer",
    }  # fmt: skip


def test_what_a_resource_says_of_its_run_goes_before() -> None:
    found = resource_of(WholeRun(role=None), {"rl.run.id": "other"})

    assert found == {"rl.run.id": "other", "rl.project": "p", "rl.run.name": "n"}


HALF = "a\ud83db"
"""A text with half a surrogate pair, which ends as ``a?b``."""


def test_half_a_surrogate_pair_costs_no_span_and_no_attribute() -> None:
    run = WholeRun()
    provider = TracerProvider(resource=Resource({"k": HALF}), shutdown_on_exit=False)
    provider.add_span_processor(
        SimpleSpanProcessor(Appending(SdkAppender(cast("Any", run))))
    )

    with provider.get_tracer(HALF).start_span(
        HALF, attributes={HALF: 1, "list": ["x", HALF]}
    ) as span:
        span.add_event(HALF, {"k": HALF})
        span.set_status(Status(StatusCode.ERROR, HALF))

    [(_, payload)] = run.records
    [entry] = ExportTraceServiceRequest.FromString(payload).resource_spans
    [scope] = entry.scope_spans
    [sent] = scope.spans
    assert run.drops == {}
    assert {pair.key: plain(pair.value) for pair in entry.resource.attributes}[
        "k"
    ] == "a?b"
    assert (scope.scope.name, sent.name, sent.status.message) == ("a?b", "a?b", "a?b")
    assert {pair.key: plain(pair.value) for pair in sent.attributes} == {
        "a?b": 1,
        "list": ["x", "a?b"],
    }
    [event] = sent.events
    assert (event.name, [plain(pair.value) for pair in event.attributes]) == (
        "a?b",
        ["a?b"],
    )


def test_half_a_surrogate_pair_costs_no_log_record_and_no_metric() -> None:
    run = WholeRun()
    appender = SdkAppender(cast("Any", run))
    reader = InMemoryMetricReader()
    meters = MeterProvider([reader], shutdown_on_exit=False)
    meters.get_meter("m").create_counter("c").add(1, {"k": HALF})

    appender.logs(
        [
            ReadableLogRecord(
                LogRecord(body={"k": [HALF]}, attributes={HALF: HALF}), Resource({})
            )
        ]
    )
    data = reader.get_metrics_data()
    assert data is not None
    appender.metrics(data)

    (_, log_payload), (_, metric_payload) = run.records
    [record] = (
        ExportLogsServiceRequest.FromString(log_payload)
        .resource_logs[0]
        .scope_logs[0]
        .log_records
    )
    [metric] = (
        ExportMetricsServiceRequest.FromString(metric_payload)
        .resource_metrics[0]
        .scope_metrics[0]
        .metrics
    )
    assert run.drops == {}
    assert plain(record.body) == {"k": ["a?b"]}
    assert [(pair.key, plain(pair.value)) for pair in record.attributes] == [
        ("a?b", "a?b")
    ]
    assert [plain(pair.value) for pair in metric.sum.data_points[0].attributes] == [
        "a?b"
    ]
