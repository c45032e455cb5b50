"""Sends the service's own metrics by OTLP to where the exporter ``otlp`` delivers, once a minute."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AggregationTemporality,
    NumberDataPoint,
)
from prometheus_client import Metric

from otel_bridge.bridge.forwarding.client import client_for
from otel_bridge.errors import OtelBridgeError
from otel_bridge.otlp.destination import endpoint_for
from otel_bridge_collector.telemetry.service_metrics import PREFIX

_log = logging.getLogger("otel_bridge_collector")
SERVICE_MARK = "otel_bridge.service"
"""Resource attribute of a bridge's own metrics, which belong to no run; an otel-bridge receiver
ignores them."""
EVERY_S = 60.0


class OwnMetrics:
    """Sends the service's own metrics from a thread between `start` and `stop`.

    Metrics that cannot be sent are not kept, because the next ones contain newer totals.

    Args:
        read: Returns the metrics at this moment.
        env: Environment with the standard ``OTEL_EXPORTER_OTLP_*`` variables.
        every_s: Interval in seconds.

    Raises:
        ConfigError: A variable cannot be used.
    """

    def __init__(
        self,
        read: Callable[[], Sequence[Metric]],
        env: Mapping[str, str],
        *,
        every_s: float = EVERY_S,
    ) -> None:
        self._read = read
        self._every_s = every_s
        self._client = client_for(endpoint_for("metrics", env))
        self._began_ns = time.time_ns()
        self._resource = {
            "service.name": "otel-bridge",
            "service.version": version("otel-bridge"),
            "service.instance.id": os.urandom(8).hex(),
            "host.name": socket.gethostname(),
        }
        self._stopping = threading.Event()
        self._failed = False
        # A daemon: a request that hangs must not keep the service from ending.
        self._thread = threading.Thread(
            target=self._run, name="own-metrics", daemon=True
        )

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def stop(self) -> None:
        """Stop sending, without waiting for a running request."""
        self._stopping.set()

    def send(self) -> None:
        """Send once; raise the client's error."""
        body = request_of(
            self._read(),
            self._resource,
            start_unix_ns=self._began_ns,
            now_unix_ns=time.time_ns(),
        )
        self._client.send(body, "")

    def _run(self) -> None:
        while not self._stopping.wait(self._every_s):
            self._try()
        # In this thread, which alone uses the client.
        self._client.close()

    def _try(self) -> None:
        try:
            self.send()
        except OtelBridgeError as exc:
            # Nothing is kept: the next request has newer totals.
            if not self._failed:  # logged when failures begin, not at each try
                _log.warning("the service's own metrics are not sent: %s", exc)
            self._failed = True
        else:
            self._failed = False


def request_of(
    metrics: Iterable[Metric],
    resource: Mapping[str, str],
    *,
    start_unix_ns: int,
    now_unix_ns: int,
) -> bytes:
    """Return *metrics* as an OTLP export request of this service.

    Args:
        metrics: The metrics; the prefix of their names gets a dot, as in OpenTelemetry:
            ``otel_bridge.rows``.
        resource: The sender.
        start_unix_ns: Start time of the counters.
        now_unix_ns: Time of the values.
    """
    request = ExportMetricsServiceRequest()
    part = request.resource_metrics.add()
    part.resource.attributes.extend(_attributes(resource))
    part.resource.attributes.append(
        KeyValue(key=SERVICE_MARK, value=AnyValue(bool_value=True))
    )
    scope = part.scope_metrics.add()
    scope.scope.name = "otel_bridge.service"
    for metric in metrics:
        is_counter = metric.type == "counter"
        points: list[NumberDataPoint] = []
        for sample in metric.samples:
            point = NumberDataPoint(
                attributes=_attributes(sample.labels),
                time_unix_nano=now_unix_ns,
                as_double=float(sample.value),
            )
            # A cumulative sum begins somewhere; a gauge has no start in OTLP.
            if is_counter:
                point.start_time_unix_nano = start_unix_ns
            points.append(point)
        if not points:
            continue
        name = f"otel_bridge.{metric.name.removeprefix(PREFIX)}"
        exported = scope.metrics.add(name=name, description=metric.documentation)
        if is_counter:
            exported.sum.is_monotonic = True
            exported.sum.aggregation_temporality = (
                AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
            )
            exported.sum.data_points.extend(points)
        else:
            exported.gauge.data_points.extend(points)
    return request.SerializeToString()


def _attributes(values: Mapping[str, str]) -> list[KeyValue]:
    return [
        KeyValue(key=key, value=AnyValue(string_value=value))
        for key, value in values.items()
    ]
