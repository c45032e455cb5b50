"""How many points, spans or records a request has: counted only for what is refused of one that is taken."""

from __future__ import annotations

from typing import Final

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric

from otel_bridge.journal.frames import Signal

_JSON_NAMES: Final = {
    Signal.METRICS: "rejectedDataPoints",
    Signal.TRACES: "rejectedSpans",
    Signal.LOGS: "rejectedLogRecords",
}


def items_in(request: ExportMetricsServiceRequest | ExportTraceServiceRequest | ExportLogsServiceRequest) -> int:
    """Return the number of points, spans or records."""
    if isinstance(request, ExportMetricsServiceRequest):
        metrics = (m for part in request.resource_metrics for scope in part.scope_metrics for m in scope.metrics)
        return sum(_points(metric) for metric in metrics)
    if isinstance(request, ExportTraceServiceRequest):
        return sum(len(scope.spans) for part in request.resource_spans for scope in part.scope_spans)
    return sum(len(scope.log_records) for part in request.resource_logs for scope in part.scope_logs)


def partial_success(signal: Signal, items: int, reason: str) -> bytes:
    """Return the response that says that *items* were left out."""
    if signal is Signal.METRICS:
        metrics = ExportMetricsServiceResponse()
        metrics.partial_success.rejected_data_points, metrics.partial_success.error_message = items, reason
        return metrics.SerializeToString()
    if signal is Signal.TRACES:
        traces = ExportTraceServiceResponse()
        traces.partial_success.rejected_spans, traces.partial_success.error_message = items, reason
        return traces.SerializeToString()
    logs = ExportLogsServiceResponse()
    logs.partial_success.rejected_log_records, logs.partial_success.error_message = items, reason
    return logs.SerializeToString()


def partial_success_json(signal: Signal, items: int, reason: str) -> dict[str, object]:
    """Return the same as JSON; 64-bit numbers are texts there."""
    return {"partialSuccess": {_JSON_NAMES[signal]: str(items), "errorMessage": reason}}


def _points(metric: Metric) -> int:
    kind = metric.WhichOneof("data")
    return 0 if kind is None else len(getattr(metric, kind).data_points)
