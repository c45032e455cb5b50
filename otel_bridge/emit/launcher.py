"""Whether ``otel-bridge run`` started this process and lives: then it is the bridge, and it chose the exporters."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from otel_bridge.exporter import SIGNALS
from otel_bridge.journal.host import start_ticks
from otel_bridge.settings import EXPORTERS, LAUNCHER, LAUNCHER_EXPORTERS

NO_SYSTEM_METRICS: Final = ("OTEL_PYTHON_DISABLED_INSTRUMENTATIONS", "system_metrics")
"""Where the user does not say it: the extra ``system`` brings this instrumentation for the bridge, and
``opentelemetry-instrument`` would measure with it inside each program, 150 keys of a machine and of its interpreter."""


def launcher_mark(pid: int | None = None) -> str:
    """Return the value of ``OTEL_BRIDGE_LAUNCHER`` for the children of *pid* (default: of this process)."""
    pid = os.getpid() if pid is None else pid
    return f"{pid}:{start_ticks(pid)}"


def launcher_alive(env: Mapping[str, str]) -> bool:
    """Tell whether the launcher that *env* names still runs; a pid used again by another process is not it."""
    pid, _, started = LAUNCHER.read(env).partition(":")
    if not (pid.isdigit() and started.isdigit()):
        return False
    return int(started) > 0 and start_ticks(int(pid)) == int(started)


def launcher_environment(exporters: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Return the variables by which this process, as a launcher, tells its children of itself and its exporters."""
    return {
        LAUNCHER.name: launcher_mark(),
        LAUNCHER_EXPORTERS.name: ";".join(f"{signal}={','.join(exporters.get(signal, ()))}" for signal in SIGNALS),
    }


def launcher_exporters(env: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Return what the launcher chose, signal to exporters."""
    chosen = LAUNCHER_EXPORTERS.read(env)
    if not chosen:
        return dict.fromkeys(SIGNALS, EXPORTERS.read(env))
    return {signal: chosen.get(signal, ()) for signal in SIGNALS}
