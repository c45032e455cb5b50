"""System metrics of one run on this machine: measured in the bridge while a process that asked for them lives.

Measured on a thread of its own, since a driver may hang; appended by the bridge to its own segment as points without a
step, so that they are placed by time, forwarded and delivered like any other metric. The keys are ``system/<what>``, on
machines of node rank n > 0 ``system/node<n>/<what>``.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.metrics.v1 import metrics_pb2 as pb
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otel_bridge import semconv
from otel_bridge.bridge.measures import Measures
from otel_bridge.bridge.own_segment import OwnSegment
from otel_bridge.journal.header import SegmentHeader
from otel_bridge.journal.life import this_host

FIRST_S = 1.0
"""After the first asks: a short job has a measurement too."""
_MAX_WAITING = 100


class SystemMetrics:
    """Looks who asks, measures, appends. One thread but for the measuring.

    Args:
        own: The bridge's own segment.
    """

    def __init__(self, own: OwnSegment) -> None:
        self._own = own
        self._taken: deque[tuple[int, Mapping[str, float]]] = deque(maxlen=_MAX_WAITING)
        self._asked: tuple[float, Mapping[int, str]] = (0.0, {})
        self._stop: threading.Event | None = None

    def look(self, living: Iterable[SegmentHeader]) -> bool:
        """Begin or stop as the *living* processes ask; append what was measured, and say whether anything was.

        Raises:
            JournalError: It cannot be appended now.
        """
        boot_id = this_host().boot_id
        here = [one for one in living if one.boot_id == boot_id and one.kind == "process"]
        asking = [one for one in here if one.system_metrics_s > 0]
        if not asking:
            self.close()
            return False
        self._asked = (
            min(one.system_metrics_s for one in asking),
            {one.pid: one.role or "main" for one in here},
        )
        if self._stop is None:
            self._stop = threading.Event()
            threading.Thread(target=self._measure, args=(self._stop,), name="system-metrics", daemon=True).start()
        appended = False
        while self._taken:
            time_unix_ns, values = self._taken[0]
            self._own.metrics(asking[0], request(asking[0], values, time_unix_ns))
            self._taken.popleft()
            appended = True
        return appended

    def close(self) -> None:
        """Stop measuring; what was not appended is forgotten. May be called twice."""
        if self._stop is not None:
            self._stop.set()
            self._stop = None
        self._taken.clear()

    def _measure(self, stop: threading.Event) -> None:
        measures = Measures()
        measures.take(self._asked[1])
        wait_s = min(FIRST_S, self._asked[0])
        while not stop.wait(wait_s):
            interval_s, processes = self._asked
            self._taken.append((time.time_ns(), measures.take(processes)))
            wait_s = interval_s


def request(of: SegmentHeader, values: Mapping[str, float], time_unix_ns: int) -> bytes:
    """Return *values* as an export request in the name of the process that asked."""
    resource = Resource.FromString(of.resource)
    node = next((pair.value.int_value for pair in resource.attributes if pair.key == semconv.NODE_RANK), 0)
    resource.attributes.append(KeyValue(key=semconv.SYSTEM, value=AnyValue(bool_value=True)))
    prefix = f"system/node{node}/" if node else "system/"
    metrics = [
        pb.Metric(
            name=prefix + key,
            gauge=pb.Gauge(data_points=[pb.NumberDataPoint(time_unix_nano=time_unix_ns, as_double=value)]),
        )
        for key, value in values.items()
    ]
    scope = pb.ScopeMetrics(scope=InstrumentationScope(name=f"{semconv.SCOPE_NAME}.system"), metrics=metrics)
    part = pb.ResourceMetrics(resource=resource, scope_metrics=[scope])
    return ExportMetricsServiceRequest(resource_metrics=[part]).SerializeToString()
