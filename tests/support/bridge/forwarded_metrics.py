"""Helpers of the tests of forwarding."""

from __future__ import annotations

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import ScopeMetrics
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

RESOURCE = Resource(
    attributes=[KeyValue(key="rl.run.id", value=AnyValue(string_value="9f2c"))]
).SerializeToString()


def scope(*values: float) -> bytes:
    message = ScopeMetrics()
    for value in values:
        message.metrics.add(name="loss").gauge.data_points.add(as_double=value)
    return message.SerializeToString()


def values_of(bodies_: list[bytes]) -> list[float]:
    return [
        point.as_double
        for body in bodies_
        for part in ExportMetricsServiceRequest.FromString(body).resource_metrics
        for scoped in part.scope_metrics
        for metric in scoped.metrics
        for point in metric.gauge.data_points
    ]
