"""Measures the system metrics of one run on this machine, while a process that requested them lives.

A separate thread measures, because a driver may hang. The bridge appends the values to its own
segment as points without a step. So they are placed by time, forwarded and delivered like any other
metric. The keys are ``system/<what>``, and ``system/node<n>/<what>`` on machines of node rank n >
0.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import psutil
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.common.v1.common_pb2 import (
    AnyValue,
    InstrumentationScope,
    KeyValue,
)
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
        bridge_segment: The bridge's own segment.
    """

    def __init__(self, bridge_segment: BridgeSegment) -> None:
        self._bridge_segment = bridge_segment
        self._measurements: deque[tuple[int, Mapping[str, float]]] = deque(
            maxlen=_MAX_WAITING
        )
        self._requested: tuple[float, Mapping[int, str]] = (0.0, {})
        self._stop: threading.Event | None = None

    def measure_if_due(self, living: Iterable[SegmentHeader]) -> bool:
        """Begin or stop as the *living* processes request.

        Append measured values, and return whether there were any. Processes of other machines are
        passed over: their own bridge measures there. Values wait for the next call, at most
        `_MAX_WAITING`, the oldest of which are dropped: they are measurements, not records.

        Raises:
            JournalError: The values cannot be appended now; they are appended by a later call.
            RuntimeError: The machine allows no more threads; the next call tries again.
        """
        boot_id = this_host().boot_id
        local = [
            header
            for header in living
            if header.boot_id == boot_id and header.kind == "process"
        ]
        requesting = [header for header in local if header.system_metrics_s > 0]
        if not requesting:
            self.close()
            return False
        interval_s = min(header.system_metrics_s for header in requesting)
        self._requested = (
            interval_s,
            {header.pid: header.role or "main" for header in local},
        )
        if self._stop is None:
            # A new one each time: the old thread may still be in a slow call.
            stop = threading.Event()
            threading.Thread(
                target=self._measure, args=(stop,), name="system-metrics", daemon=True
            ).start()
            self._stop = (
                stop  # after the start, which fails if no more threads are allowed
            )
        appended = False
        while self._measurements:
            time_unix_ns, values = self._measurements[0]
            self._bridge_segment.metrics(
                requesting[0], request(requesting[0], values, time_unix_ns)
            )
            self._measurements.popleft()
            appended = True
        return appended

    def close(self) -> None:
        """Stop measuring; values that were not appended are discarded. May be called twice."""
        if self._stop is not None:
            self._stop.set()
            self._stop = None
        self._measurements.clear()

    def _measure(self, stop: threading.Event) -> None:
        """Measure until *stop* is set, on the second thread; a failed measurement is left out."""
        sampler = SystemSampler()
        interval_s, processes = self._requested
        with contextlib.suppress(
            Exception
        ):  # the first call only sets the counters for later ones
            sampler.take(processes)
        wait_s = min(FIRST_S, interval_s)
        while not stop.wait(wait_s):
            # Read anew each time: processes come and go, and may request another interval.
            wait_s, processes = self._requested
            # A driver that fails once may answer at the next interval.
            with contextlib.suppress(Exception):
                self._measurements.append((time.time_ns(), sampler.take(processes)))


def request(of: SegmentHeader, values: Mapping[str, float], time_unix_ns: int) -> bytes:
    """Return *values* as an export request in the name of the process that requested them.

    So they are of its run and its machine. Without a step, they are placed by time.
    """
    resource = Resource.FromString(of.resource)
    node = next(
        (
            pair.value.int_value
            for pair in resource.attributes
            if pair.key == semconv.NODE_RANK
        ),
        0,
    )
    resource.attributes.append(
        KeyValue(key=semconv.SYSTEM, value=AnyValue(bool_value=True))
    )
    prefix = f"system/node{node}/" if node else "system/"
    metrics: list[pb.Metric] = []
    for key, value in values.items():
        point = pb.NumberDataPoint(time_unix_nano=time_unix_ns, as_double=value)
        metrics.append(
            pb.Metric(name=prefix + key, gauge=pb.Gauge(data_points=[point]))
        )
    scope = pb.ScopeMetrics(
        scope=InstrumentationScope(name=f"{semconv.SCOPE_NAME}.system"), metrics=metrics
    )
    part = pb.ResourceMetrics(resource=resource, scope_metrics=[scope])
    return ExportMetricsServiceRequest(resource_metrics=[part]).SerializeToString()


# Utilizations are shares (0 to 1) since the last measurement, averaged over all CPUs. Sizes are
# bytes. I/O is counted since the machine's start, all devices together. GPUs are measured by NVML
# if there are any, the rest by psutil.

Measure: TypeAlias = Callable[[], Iterable[tuple[str, float]]]

_LOOPBACK = frozenset({"lo", "lo0"})


class SystemSampler:
    """Measures one machine for one run; one thread."""

    def __init__(self) -> None:
        self._gpus = _gpus()
        self._processes: dict[int, psutil.Process] = {}

    def take(self, processes: Mapping[int, str]) -> dict[str, float]:
        """Return the values by key, without the prefix ``system/``.

        Args:
            processes: Process id to the name under which it is shown; processes of one name are
                added up.
        """
        values: dict[str, float] = {}
        for measure in (_machine, self._gpus):
            # A value that the system or a driver fails to return is not shown.
            with contextlib.suppress(Exception):
                values.update(measure())
        return values | self._of_processes(processes)

    def _of_processes(self, roles: Mapping[int, str]) -> dict[str, float]:
        """Return CPU and memory of each role; a process that ended, or may not be read, is left out."""
        # Kept over measurements: the use of a CPU is counted since the last call.
        self._processes = {
            pid: process for pid, process in self._processes.items() if pid in roles
        }
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
                        f"process.memory.usage/{name}": float(
                            process.memory_info().rss
                        ),
                    }
                for key, value in used.items():
                    values[key] = values.get(key, 0.0) + value
        return values


def _machine() -> Iterator[tuple[str, float]]:
    """Yield the values of the machine; an error loses only values that come after it.

    Raises what psutil raises. Fields that a system does not have (``iowait`` outside Linux) are
    left out.
    """
    cpu = psutil.cpu_times_percent()
    for state in ("idle", "user", "system", "iowait"):
        if hasattr(cpu, state):
            yield f"cpu.utilization/{state}", getattr(cpu, state) / 100
    memory = psutil.virtual_memory()
    for kind in ("used", "free", "cached"):
        if hasattr(memory, kind):
            yield f"memory.usage/{kind}", float(getattr(memory, kind))
    yield "memory.utilization/used", memory.used / memory.total
    interfaces = psutil.net_io_counters(pernic=True)
    # What a machine sends to itself uses no network.
    devices = [interfaces[name] for name in interfaces.keys() - _LOOPBACK]
    yield "network.io/receive", float(sum(device.bytes_recv for device in devices))
    yield "network.io/transmit", float(sum(device.bytes_sent for device in devices))
    disks = psutil.disk_io_counters()
    if disks is not None:
        yield "disk.io/read", float(disks.read_bytes)
        yield "disk.io/write", float(disks.write_bytes)
    yield "swap.usage/used", float(psutil.swap_memory().used)


@functools.cache
def _gpus() -> Measure:
    """Return what measures the GPUs of this machine; of none without NVML. Looked for once a process."""
    try:
        nvml: Any = importlib.import_module("pynvml")
        nvml.nvmlInit()
        handles = [
            nvml.nvmlDeviceGetHandleByIndex(number)
            for number in range(nvml.nvmlDeviceGetCount())
        ]
    except Exception:  # noqa: BLE001  # no package, no driver, no GPU: each has its own error
        return lambda: ()
    return lambda: _of_gpus(nvml, handles).items()


def _of_gpus(nvml: Any, handles: Sequence[Any]) -> dict[str, float]:
    """Return the values of every GPU; an error of one GPU loses only values of that GPU."""
    values: dict[str, float] = {}
    for number, handle in enumerate(handles):
        with contextlib.suppress(Exception):
            # One by one, so that values before an error are kept.
            values.update(_gpu(nvml, number, handle))
    return values


def _gpu(nvml: Any, number: int, handle: Any) -> Iterable[tuple[str, float]]:
    """Yield the values of one GPU; raises NVML's errors, for values that a model of GPU does not have."""
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    yield (
        f"gpu.utilization/{number}",
        nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
    )
    yield f"gpu.memory.usage/{number}", float(memory.used)
    yield f"gpu.memory.utilization/{number}", memory.used / memory.total
    yield (
        f"gpu.temperature/{number}",
        float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
    )
    yield f"gpu.power/{number}", nvml.nvmlDeviceGetPowerUsage(handle) / 1000  # watts
