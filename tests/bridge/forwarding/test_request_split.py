"""Requests that are too large are cut into smaller ones that hold the same."""

from __future__ import annotations

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_bridge.bridge.forwarding.requests import halves, under
from otel_bridge.journal.frames import Signal


def who(name: str) -> Resource:
    return Resource(
        attributes=[KeyValue(key="service.name", value=AnyValue(string_value=name))]
    )


def metrics(**processes: list[list[Metric]]) -> ExportMetricsServiceRequest:
    request = ExportMetricsServiceRequest()
    for name, scopes in processes.items():
        part = request.resource_metrics.add(
            resource=who(name), schema_url="of the resource"
        )
        for number, found in enumerate(scopes):
            scoped = part.scope_metrics.add(metrics=found, schema_url="of the scope")
            scoped.scope.name = f"scope {number}"
    return request


def metric(name: str, points: int) -> Metric:
    made = Metric(name=name, unit="s")
    made.sum.is_monotonic = True
    for number in range(points):
        made.sum.data_points.add(as_int=number)
    return made


def values_of(requests: list[bytes]) -> list[tuple[str, str, str, str, str, bool, int]]:
    return [
        (part.resource.attributes[0].value.string_value, part.schema_url, scoped.scope.name, scoped.schema_url,
         one.name, one.sum.is_monotonic, point.as_int)
        for request in requests
        for part in ExportMetricsServiceRequest.FromString(request).resource_metrics
        for scoped in part.scope_metrics
        for one in scoped.metrics
        for point in one.sum.data_points
    ]  # fmt: skip


def test_each_part_is_under_the_limit_and_together_they_hold_all_in_order() -> None:
    scopes = [[metric(f"m{n}", 3) for n in range(50)], [metric("many points", 500)]]
    request = metrics(a=scopes, b=[[metric("one", 1)]], c=scopes).SerializeToString()

    parts = list(under(300, Signal.METRICS, request))

    assert (len(parts) > 10, max(map(len, parts)) <= 300) == (True, True)
    assert values_of(parts) == values_of([request])


def test_a_request_under_the_limit_is_that_request() -> None:
    request = metrics(a=[[metric("m", 3)]]).SerializeToString()

    assert list(under(len(request), Signal.METRICS, request)) == [request]


def test_spans_and_records_are_cut_one_from_the_other() -> None:
    spans, logs = ExportTraceServiceRequest(), ExportLogsServiceRequest()
    of_spans, of_logs = (
        spans.resource_spans.add(resource=who("a")),
        logs.resource_logs.add(resource=who("a")),
    )
    of_spans.scope_spans.add(spans=[Span(name=f"s{n}") for n in range(5)])
    of_logs.scope_logs.add(
        log_records=[LogRecord(event_name=f"e{n}") for n in range(5)]
    )

    parts = list(under(1, Signal.TRACES, spans.SerializeToString()))
    records = list(under(1, Signal.LOGS, logs.SerializeToString()))

    joined = [
        ExportTraceServiceRequest.FromString(part).resource_spans[0] for part in parts
    ]
    assert [span.name for part in joined for span in part.scope_spans[0].spans] == [
        f"s{n}" for n in range(5)
    ]
    assert (len(parts), {part.resource.SerializeToString() for part in joined}) == (
        5,
        {who("a").SerializeToString()},
    )
    given = [
        ExportLogsServiceRequest.FromString(part).resource_logs[0] for part in records
    ]
    assert [part.scope_logs[0].log_records[0].event_name for part in given] == [
        f"e{n}" for n in range(5)
    ]


def test_what_cannot_be_cut_stays_as_it_is() -> None:
    single = metrics(a=[[metric("one", 1)]]).SerializeToString()
    strange = metrics(a=[[Metric(name="of no kind")]]).SerializeToString()

    for request in (single, strange, metrics(a=[[]]).SerializeToString(), b"", b"\xff"):
        assert halves(Signal.METRICS, request) == []
        assert list(under(0, Signal.METRICS, request)) == [request]
