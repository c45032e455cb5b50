"""Measures the system metrics of one run on this machine, for `measurements`.

The values are points without a step. So they are placed by time, forwarded and delivered like any
other metric. The keys are ``system/<what>``; a machine whose node rank n is above 0 has
``system/node<n>/<what>``.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import psutil
from opentelemetry.proto.metrics.v1 import metrics_pb2 as pb
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otel_bridge import semconv
from otel_bridge.bridge.ingest.bridge_segment import metrics_request
from otel_bridge.journal.header import SegmentHeader

FIRST_S = 1.0
"""Seconds after the first request, so that a short job has a measurement too."""


class SystemMeasurement:
    """Measures this machine for one process. One thread.

    Args:
        of: Header of the process that requested it.
        roles: Returns the processes to measure, by id, with the name under which each is shown.
    """

    def __init__(
        self, of: SegmentHeader, roles: Callable[[], Mapping[int, str]]
    ) -> None:
        self._of = of
        self._roles = roles
        self._sampler: SystemSampler | None = None

    def request(self) -> bytes:
        """Return an export request with the values of now; the first call waits for up to a second.

        Raises:
            RuntimeError: A driver failed; the next call measures again.
        """
        try:
            if self._sampler is None:
                sampler = SystemSampler()
                # Only sets the counters, from which later calls count.
                sampler.take(self._roles())
                time.sleep(min(FIRST_S, self._of.system_metrics_s))
                self._sampler = sampler
            values = self._sampler.take(self._roles())
            return request(self._of, values, time.time_ns())
        except Exception as exc:
            raise RuntimeError(
                f"the machine cannot be measured ({type(exc).__name__}: {exc})"
            ) from exc


def request(of: SegmentHeader, values: Mapping[str, float], time_unix_ns: int) -> bytes:
    """Return *values* as an export request in the name of the process that requested them.

    So they are of its run and its machine. Without a step, they are placed by time.
    """
    resource = Resource.FromString(of.resource)
    prefix = "system/"
    for pair in resource.attributes:
        if pair.key == semconv.NODE_RANK and pair.value.int_value:
            prefix = f"system/node{pair.value.int_value}/"
    metrics: list[pb.Metric] = []
    for key, value in values.items():
        metric = pb.Metric(name=prefix + key)
        metric.gauge.data_points.add(time_unix_nano=time_unix_ns, as_double=value)
        metrics.append(metric)
    return metrics_request(resource, metrics, "system")


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
        """Return CPU and memory of each role.

        A process that ended, or may not be read, is left out.
        """
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
    """Yield the values of one GPU.

    Raises NVML's errors, for values that a model of GPU does not have.
    """
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
