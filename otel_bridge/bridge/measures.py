"""What a machine and the processes of a job use, measured here and now.

The machine by OpenTelemetry's system-metrics instrumentation where the extra ``system`` is installed, else by psutil
with fewer values; GPUs by NVML where there are any; processes by psutil. Utilizations are shares (0 to 1) since the
measurement before, mean over all CPUs; sizes are bytes; I/O is counted since the machine's start, all devices together.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import psutil

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


class Measures:
    """Everything that is measured on one machine for one run; one thread."""

    def __init__(self) -> None:
        self._machine, self._gpus = _machine(), _gpus()
        self._processes: dict[int, psutil.Process] = {}

    def take(self, processes: Mapping[int, str]) -> dict[str, float]:
        """Return the values by key, without the prefix ``system/``.

        Args:
            processes: Process id to the name it is shown under; those of one name are added up.
        """
        values: dict[str, float] = {}
        for measure in (self._machine, self._gpus):
            # A system's or a driver's own error: what it does not tell is not shown. Both are shared by all runs here.
            with _lock, contextlib.suppress(Exception):
                values |= measure()
        return values | self._of_processes(processes)

    def _of_processes(self, wanted: Mapping[int, str]) -> dict[str, float]:
        self._processes = {pid: process for pid, process in self._processes.items() if pid in wanted}
        values: dict[str, float] = {}
        for pid, name in wanted.items():
            with contextlib.suppress(psutil.Error, OSError):
                process = self._processes.get(pid)
                if process is None:
                    process = self._processes[pid] = psutil.Process(pid)
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
        instrumentation: Any = importlib.import_module("opentelemetry.instrumentation.system_metrics")
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
    """Add up what is told of each device, and take the mean of what is told of each CPU."""
    found: dict[str, list[float]] = {}
    for name, attributes, value in points:
        if attributes.get("device") in _LOOPBACK:
            continue
        kind = attributes.get("state") or attributes.get("direction")
        found.setdefault(f"{name.removeprefix('system.')}/{kind}", []).append(value)
    return {key: sum(all_) / (len(all_) if "utilization" in key else 1) for key, all_ in found.items()}


def _bare() -> dict[str, float]:
    cpu, memory = psutil.cpu_times_percent(), psutil.virtual_memory()
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
        handles = [nvml.nvmlDeviceGetHandleByIndex(number) for number in range(nvml.nvmlDeviceGetCount())]
    except Exception:  # noqa: BLE001  # no package, no driver, no GPU: each says so in its own way
        return dict[str, float]
    return lambda: _of_gpus(nvml, handles)


def _of_gpus(nvml: Any, handles: Sequence[Any]) -> dict[str, float]:
    """Ask every GPU; what one of them refuses costs that one alone."""
    values: dict[str, float] = {}
    for number, handle in enumerate(handles):
        with contextlib.suppress(Exception):
            values.update(_gpu(nvml, number, handle))  # one by one: what came before a refusal stays
    return values


def _gpu(nvml: Any, number: int, handle: Any) -> Iterable[tuple[str, float]]:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    yield f"gpu.utilization/{number}", nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
    yield f"gpu.memory.usage/{number}", float(memory.used)
    yield f"gpu.memory.utilization/{number}", memory.used / memory.total
    yield f"gpu.temperature/{number}", float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
    yield f"gpu.power/{number}", nvml.nvmlDeviceGetPowerUsage(handle) / 1000  # watts
