"""The rows of `benchmarks.trackers.three_trackers`: as dicts, as OTLP requests, and back from those the plain way."""

from __future__ import annotations

from collections.abc import Iterator

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.logs.v1.logs_pb2 import ResourceLogs, ScopeLogs
from opentelemetry.proto.metrics.v1.metrics_pb2 import ResourceMetrics, ScopeMetrics

from otel_bridge import semconv
from otel_bridge.records import Json
from support.conformance import messages
from support.encoded_rows import encode_row

ROWS_A_REQUEST = 100
_KEYS = [f"metric/{n}" for n in range(10)]
_T0 = 1_800_000_000_000_000_000
_STEP_NS = 1_000_000


def rows_of(rows: int) -> Iterator[dict[str, float]]:
    """Return *rows* rows of ten keys."""
    return (
        {key: n + (step % 100) / 7 for n, key in enumerate(_KEYS)}
        for step in range(rows)
    )


def requests(name: str, rows: int) -> list[bytes]:
    """Return the rows of the run *name* as a forwarding bridge sends them: a scope each, one resource a request."""
    resource = messages.resource(_who(name))
    made: list[bytes] = []
    scopes: list[bytes] = []
    for step, values in enumerate(rows_of(rows)):
        time_ns = _T0 + step * _STEP_NS
        scopes.append(encode_row(values, time_ns, step, None, step + 1))
        if len(scopes) == ROWS_A_REQUEST or step == rows - 1:
            parts = [ScopeMetrics.FromString(scope) for scope in scopes]
            whole = ExportMetricsServiceRequest(
                resource_metrics=[
                    ResourceMetrics(resource=resource, scope_metrics=parts)
                ]
            )
            made.append(whole.SerializeToString())
            scopes.clear()
    return made


def end_request(name: str, rows: int) -> bytes:
    """Return what says that the one process of the run *name* has finished."""
    said: dict[str, Json] = {
        semconv.RUN_STATUS: "finished",
        semconv.SEQ: rows,
        semconv.EVENT_SEQ: 1,
    }
    event = messages.event(semconv.EVENT_END, _T0 + rows * _STEP_NS, said)
    scope = ScopeLogs(scope=messages.OURS, log_records=[event])
    part = ResourceLogs(resource=messages.resource(_who(name)), scope_logs=[scope])
    return ExportLogsServiceRequest(resource_logs=[part]).SerializeToString()


def decode(data: bytes) -> list[tuple[int, int, dict[str, float]]]:
    """Return step, time and values of each row in a request, read with the stock classes."""
    rows: list[tuple[int, int, dict[str, float]]] = []
    for resource in ExportMetricsServiceRequest.FromString(data).resource_metrics:
        for scope in resource.scope_metrics:
            step = time_ns = 0
            values: dict[str, float] = {}
            for metric in scope.metrics:
                for point in metric.gauge.data_points:
                    named = {one.key: one.value.int_value for one in point.attributes}
                    step, time_ns = named[semconv.STEP], point.time_unix_nano
                    values[metric.name] = point.as_double
            rows.append((step, time_ns, values))
    return rows


def _who(name: str) -> dict[str, Json]:
    return {
        semconv.PROJECT: "bench", semconv.RUN_NAME: name, semconv.ROLE: "trainer", semconv.INSTANCE_ID: f"of-{name}",
    }  # fmt: skip
