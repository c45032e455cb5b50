"""Tests of what stock SDKs export: whole requests whose resources say which run they are in."""

from __future__ import annotations

from typing import Any, cast

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from otel_bridge.emit.sdk.appender import SdkAppender
from support.trainers.emit_rollout_doubles import MemoryRun, plain


class WholeRun(MemoryRun):
    """A run that takes whole requests."""

    project, name = "p", "n"

    def append(
        self, signal: int, payload: bytes, *, time_unix_ns: int | None = None, whole: bool = False
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
    provider.add_span_processor(SimpleSpanProcessor(Appending(SdkAppender(cast("Any", run)))))
    provider.get_tracer("app").start_span("work").end()
    [(signal, payload)] = run.records
    [entry] = ExportTraceServiceRequest.FromString(payload).resource_spans
    assert (signal, [span.name for span in entry.scope_spans[0].spans]) == (2, ["work"])
    return {pair.key: plain(pair.value) for pair in entry.resource.attributes}


def test_a_resource_is_reported_its_run_and_keeps_what_it_says() -> None:
    found = resource_of(WholeRun(role="trainer"), {"service.name": "svc", "host.name": "h"})

    assert found == {
        "service.name": "svc", "host.name": "h", "rl.run.id": "run1", "rl.project": "p", "rl.run.name": "n",
        "rl.role": "trainer",
    }  # fmt: skip


def test_what_a_resource_says_of_its_run_goes_before() -> None:
    found = resource_of(WholeRun(role=None), {"rl.run.id": "other"})

    assert found == {"rl.run.id": "other", "rl.project": "p", "rl.run.name": "n"}
