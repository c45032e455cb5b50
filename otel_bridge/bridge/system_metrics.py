"""Measures the system metrics of one run on this machine, while a process that requested them lives.

A separate thread measures, because a driver may hang. The bridge appends the values to its own segment as points
without a step. So they are placed by time, forwarded and delivered like any other metric. The keys are
``system/<what>``, and ``system/node<n>/<what>`` on machines of node rank n > 0.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import psutil
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.metrics.v1 import metrics_pb2 as pb
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otel_bridge import semconv
from otel_bridge.bridge.ingest.bridge_segment import BridgeSegment
from otel_bridge.journal.header import SegmentHeader
from otel_bridge.journal.liveness import this_host

FIRST_S = 1.0
"""Seconds after the first request, so that a short job has a measurement too."""
_MAX_WAITING = 100


class SystemMetrics:
    """Determines who requests metrics, measures and appends. One thread, and a second one that measures.

    Args:
        own: The bridge's own segment.
    """

    def __init__(self, own: BridgeSegment) -> None:
        self._own = own
        self._taken: deque[tuple[int, Mapping[str, float]]] = deque(maxlen=_MAX_WAITING)
        self._asked: tuple[float, Mapping[int, str]] = (0.0, {})
        self._stop: threading.Event | None = None

    def measure_if_due(self, living: Iterable[SegmentHeader]) -> bool:
        """Begin or stop as the *living* processes request; append measured values, and return whether there were any.

        Raises:
            JournalError: The values cannot be appended now.
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
            stop = threading.Event()
            threading.Thread(
                target=self._measure, args=(stop,), name="system-metrics", daemon=True
            ).start()
            self._stop = stop  # after the start, which fails if no more threads are allowed
        appended = False
        while self._taken:
            time_unix_ns, values = self._taken[0]
            self._own.metrics(asking[0], request(asking[0], values, time_unix_ns))
            self._taken.popleft()
            appended = True
        return appended

    def close(self) -> None:
        """Stop measuring; values that were not appended are discarded. May be called twice."""
        if self._stop is not None:
            self._stop.set()
            self._stop = None
        self._taken.clear()

    def _measure(self, stop: threading.Event) -> None:
        measures = SystemSampler()
        with contextlib.suppress(Exception):  # the first call only sets the counters for later ones
            measures.take(self._asked[1])
        wait_s = min(FIRST_S, self._asked[0])
        while not stop.wait(wait_s):
            interval_s, processes = self._asked
            with contextlib.suppress(
                Exception
            ):  # a driver that fails once may answer at the next interval
                self._taken.append((time.time_ns(), measures.take(processes)))
            wait_s = interval_s


def request(of: SegmentHeader, values: Mapping[str, float], time_unix_ns: int) -> bytes:
    """Return *values* as an export request in the name of the process that requested them."""
    resource = Resource.FromString(of.resource)
    node = next(
        (pair.value.int_value for pair in resource.attributes if pair.key == semconv.NODE_RANK), 0
    )
    resource.attributes.append(KeyValue(key=semconv.SYSTEM, value=AnyValue(bool_value=True)))
    prefix = f"system/node{node}/" if node else "system/"
    metrics = [
        pb.Metric(
            name=prefix + key,
            gauge=pb.Gauge(
                data_points=[pb.NumberDataPoint(time_unix_nano=time_unix_ns, as_double=value)]
            ),
        )
        for key, value in values.items()
    ]
    scope = pb.ScopeMetrics(
        scope=InstrumentationScope(name=f"{semconv.SCOPE_NAME}.system"), metrics=metrics
    )
    part = pb.ResourceMetrics(resource=resource, scope_metrics=[scope])
    return ExportMetricsServiceRequest(resource_metrics=[part]).SerializeToString()


# Values of the machine come from OpenTelemetry's system-metrics instrumentation if the extra ``system`` is installed,
# else from psutil, which has fewer. GPUs are measured by NVML if there are any, processes by psutil. Utilizations are
# shares (0 to 1) since the last measurement, averaged over all CPUs. Sizes are bytes. I/O is counted since the
# machine's start, all devices together.

Measure: TypeAlias = Callable[[], dict[str, float]]

_CONFIG: Final[dict[str, list[str] | None]] = {
    "system.cpu.utilization": ["idle", "user", "system", "iowait"],
    "system.memory.usage": ["used", "free", "cached"],
    "system.memory.utilization": ["used"],
    "system.swap.usage": ["used"],
    "system.disk.io": ["read", "write"],
    "system.network.io": ["transmit", "receive"],
}
_LOOPBACK: Final = frozenset({"lo", "lo0"})
_lock = threading.Lock()


class SystemSampler:
    """Measures one machine for one run; one thread."""

    def __init__(self) -> None:
        self._machine = _machine()
        self._gpus = _gpus()
        self._processes: dict[int, psutil.Process] = {}

    def take(self, processes: Mapping[int, str]) -> dict[str, float]:
        """Return the values by key, without the prefix ``system/``.

        Args:
            processes: Process id to the name under which it is shown; processes of one name are added up.
        """
        values: dict[str, float] = {}
        for measure in (self._machine, self._gpus):
            # A value that the system or a driver fails to return is not shown. Both measures are shared by all runs
            # here.
            with _lock, contextlib.suppress(Exception):
                values |= measure()
        return values | self._of_processes(processes)

    def _of_processes(self, roles: Mapping[int, str]) -> dict[str, float]:
        self._processes = {pid: process for pid, process in self._processes.items() if pid in roles}
        values: dict[str, float] = {}
        for pid, name in roles.items():
            with contextlib.suppress(psutil.Error, OSError):
                process = self._processes.get(pid)
                if process is None:
                    process = psutil.Process(pid)
                    self._processes[pid] = process
                    process.cpu_percent()  # begins the measurement
                with process.oneshot():
                    used = {
                        f"process.cpu.utilization/{name}": process.cpu_percent() / 100,
                        f"process.memory.usage/{name}": float(process.memory_info().rss),
                    }
                for key, value in used.items():
                    values[key] = values.get(key, 0.0) + value
        return values


@functools.cache
def _machine() -> Measure:
    try:
        instrumentation: Any = importlib.import_module(
            "opentelemetry.instrumentation.system_metrics"
        )
        export: Any = importlib.import_module("opentelemetry.sdk.metrics.export")
        sdk: Any = importlib.import_module("opentelemetry.sdk.metrics")
    except ImportError:
        psutil.cpu_times_percent()
        return _bare
    reader = export.InMemoryMetricReader()
    provider = sdk.MeterProvider([reader])
    instrumentation.SystemMetricsInstrumentor(config=_CONFIG).instrument(meter_provider=provider)
    reader.get_metrics_data()
    return lambda: _summed(_points(reader.get_metrics_data()))


def _points(data: Any) -> Iterable[tuple[str, Mapping[str, object], float]]:
    for resource in data.resource_metrics if data is not None else ():
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for point in metric.data.data_points:
                    yield metric.name, point.attributes, float(point.value)


def _summed(points: Iterable[tuple[str, Mapping[str, object], float]]) -> dict[str, float]:
    """Return the sum of the values of all devices, and the mean of the values of all CPUs."""
    values_by_key: dict[str, list[float]] = {}
    for name, attributes, value in points:
        if attributes.get("device") in _LOOPBACK:
            continue
        kind = attributes.get("state") or attributes.get("direction")
        values_by_key.setdefault(f"{name.removeprefix('system.')}/{kind}", []).append(value)
    return {
        key: sum(values) / (len(values) if "utilization" in key else 1)
        for key, values in values_by_key.items()
    }


def _bare() -> dict[str, float]:
    cpu = psutil.cpu_times_percent()
    memory = psutil.virtual_memory()
    shares = {state: getattr(cpu, state, 0.0) / 100 for state in ("idle", "user", "system")}
    return {
        **{f"cpu.utilization/{state}": share for state, share in shares.items()},
        "memory.usage/used": float(memory.used),
        "memory.usage/free": float(memory.free),
        "memory.utilization/used": memory.percent / 100,
    }


@functools.cache
def _gpus() -> Measure:
    try:
        nvml: Any = importlib.import_module("pynvml")
        nvml.nvmlInit()
        handles = [
            nvml.nvmlDeviceGetHandleByIndex(number) for number in range(nvml.nvmlDeviceGetCount())
        ]
    except Exception:  # noqa: BLE001  # no package, no driver, no GPU: each has its own error
        return dict[str, float]
    return lambda: _of_gpus(nvml, handles)


def _of_gpus(nvml: Any, handles: Sequence[Any]) -> dict[str, float]:
    """Return the values of every GPU; an error of one GPU loses only values of that GPU."""
    values: dict[str, float] = {}
    for number, handle in enumerate(handles):
        with contextlib.suppress(Exception):
            values.update(
                _gpu(nvml, number, handle)
            )  # one by one, so that values before an error are kept
    return values


def _gpu(nvml: Any, number: int, handle: Any) -> Iterable[tuple[str, float]]:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    yield f"gpu.utilization/{number}", nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
    yield f"gpu.memory.usage/{number}", float(memory.used)
    yield f"gpu.memory.utilization/{number}", memory.used / memory.total
    yield (
        f"gpu.temperature/{number}",
        float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
    )
    yield f"gpu.power/{number}", nvml.nvmlDeviceGetPowerUsage(handle) / 1000  # watts
