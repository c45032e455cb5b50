"""Run of the SDK exporters: the process's run, or one begun from the environment alone."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping

from otel_bridge.emit.bridge_process.other_python import find_python
from otel_bridge.emit.config.child_env import launcher_alive
from otel_bridge.emit.config.exporters import SETTING_BY_SIGNAL
from otel_bridge.emit.process_runs import runs
from otel_bridge.emit.run import Run
from otel_bridge.emit.sdk.appender import SdkAppender
from otel_bridge.errors import OtelBridgeError
from otel_bridge.exporter import NONE, available, described, missing_of
from otel_bridge.settings import OFFLINE, environment

NAMES = ("wandb", "mlflow", "trackio", "file")
"""Exporters of otel-bridge that SDKs know by name; ``otlp`` and ``console`` stay the SDK's own."""
_log = logging.getLogger("otel_bridge")


class _SdkState:
    """Holds the run of the process's SDK exporters.

    Attributes:
        run: Run that the environment alone began; ``None`` before, or if the program began its own.
        appender: Appender to the run that records now, which all exporters share.
        exporter_by_signal: Signal to the one exporter that appends it, the first that asked.
        refused: Exporters that cannot deliver; each was named in a warning once.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.run: Run | None = None
        self.appender: SdkAppender | None = None
        self.exporter_by_signal: dict[str, str] = {}
        self.refused: set[str] = set()


_process = _SdkState()


def _after_fork_in_child() -> None:
    _process.lock = threading.RLock()  # another thread of the parent may have held it


os.register_at_fork(after_in_child=_after_fork_in_child)


def named(env: Mapping[str, str]) -> bool:
    """Return whether one of our exporters is named for any signal."""
    for setting in SETTING_BY_SIGNAL.values():
        if not set(NAMES).isdisjoint(setting.read(env)):
            return True
    return False


def appender_for(name: str, signal: str) -> SdkAppender | None:
    """Return the appender for the exporter *name* of *signal*; never raises.

    Of several exporters named for a signal only one appends, since the bridge delivers each record
    to all of them.
    ``None``: another exporter appends *signal*, no bridge here could load the exporter, or nothing
    is recorded.
    """
    with _process.lock:
        if not _can_deliver(name):
            return None
        appender = _appender()
        # Last: an exporter that cannot append must not take the signal from one that can.
        if (
            appender is None
            or _process.exporter_by_signal.setdefault(signal, name) != name
        ):
            return None
        return appender


def start() -> None:
    """Begin the run before any provider is created, because handlers registered first run last at exit."""
    with _process.lock:
        _appender()


def _can_deliver(name: str) -> bool:
    """Return whether a bridge can load the exporter *name*; warn once if it cannot.

    Its packages are in this Python, or in that of another environment. The bridge of a launcher,
    and the one that will drain an offline run, check for themselves. Here, since a bridge would
    fail only later, in its log.
    """
    if name in _process.refused:
        return False
    env = environment()
    try:
        missing = missing_of(name, described(name))
        if missing and not (launcher_alive(env) or OFFLINE.read(env)):
            find_python(env, [name], {name: missing})
    except OtelBridgeError as exc:
        _process.refused.add(name)
        _log.warning("exporter %s is off: %s", name, exc)
        return False
    return True


def _appender() -> SdkAppender | None:
    """Return the appender to the process's run, begun if need be.

    ``None`` if nothing is recorded. The run may change: ``init()`` after the SDK was configured
    begins one of its own.
    """
    run = runs.current or _process.run or _begin()
    if run is None or not run.recording:
        return None
    if _process.appender is None or _process.appender.run is not run:
        _process.appender = SdkAppender(run)
    return _process.appender


def _begin() -> Run | None:
    """Begin a run by the environment; return ``None`` after a warning when it cannot begin."""
    try:
        _process.run = runs.begin_from_environment(_own_exporters(environment()))
    except (OtelBridgeError, OSError) as exc:
        # The SDK builds the exporter: an error here would cost the program its other exporters.
        _log.warning("nothing is recorded by otel-bridge: %s", exc)
    return _process.run


def _own_exporters(env: Mapping[str, str]) -> dict[str, str]:
    """Return *env* with only our own working exporters.

    The SDK itself serves ``otlp`` and the like.
    """
    variables = dict(env)
    for setting in SETTING_BY_SIGNAL.values():
        names = [
            name
            for name in setting.read(env)
            if name in NAMES and name in available() and _can_deliver(name)
        ]
        variables[setting.name] = ",".join(names) or NONE
    return variables
