"""``otel-bridge serve``: OTLP in, over gRPC and HTTP, and the bridge of every run folder below one directory."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from otel_bridge import settings
from otel_bridge.bridge.garbage import collect_less_often
from otel_bridge.bridge.host import Host
from otel_bridge.bridge.options import BridgeOptions
from otel_bridge.bridge.wake import Wake
from otel_bridge.cli.closing import left
from otel_bridge.cli.directory import made
from otel_bridge.cli.service_log import ServiceLog
from otel_bridge.cli.status_source import overview_of
from otel_bridge.emit.exporters import Choice, choose
from otel_bridge.emit.launch import bridge_environment
from otel_bridge.errors import ConfigError, MissingExtraError
from otel_bridge.exporter import OTLP
from otel_bridge.journal.folder import base_dir, run_folders
from otel_bridge.journal.locks import RecordLock
from otel_bridge.journal.report import read_report
from otel_bridge.journal.unread import unread_bytes

if TYPE_CHECKING:
    from otel_bridge_collector import Receiver
    from otel_bridge_collector.metrics_text import Metric

DRAIN_S: Final = 30.0
IDLE_S: Final = 60.0
FILES: Final = 65_536
_STOP_S: Final = 10.0
_LOCK: Final = "serve.lock"
_OFF: Final = "off"


@click.command("serve")
@click.option("--exporters", default="", help="Exporters of all signals, e.g. wandb,mlflow; goes before all variables.")
@click.option("--grpc", "grpc_address", default="127.0.0.1:4317", metavar="HOST:PORT", show_default=True,
              help="Where to receive OTLP over gRPC; off: not at all.")  # fmt: skip
@click.option("--http", "http_address", default="127.0.0.1:4318", metavar="HOST:PORT", show_default=True,
              help="The same over HTTP, beside /healthz, /readyz, /metrics, /status; off: not at all.")  # fmt: skip
@click.option("--dir", "directory", default="", help="Where run folders are (OTEL_BRIDGE_DIR).")
@click.option("--log-format", type=click.Choice(["plain", "json"]), default="plain", show_default=True)
def command(exporters: str, grpc_address: str, http_address: str, directory: str, log_format: str) -> None:
    """Receive OTLP and bring every run below one directory to the trackers, until SIGTERM or SIGINT.

    Then new data is refused (clients send it again later), what waits is let go and delivered for at most
    OTEL_BRIDGE_DRAIN_TIMEOUT_S (30); a second signal ends that at once. What remains is said, stays in the folders, and
    is delivered by the next `serve` or `drain`. Exit codes: 0 nothing remains, 1 something does, 2 the call is wrong.
    """
    env = settings.environment()
    if directory:
        env[settings.DIR.name] = directory
    cwd = Path.cwd()
    base = base_dir(env, cwd)
    allow_files()
    with ServiceLog(as_json=log_format == "json") as log, _only_one(base):
        service = _Service(env, cwd, base, exporters=exporters, log=log)
        service.listen(grpc_address, http_address)
        code = service.run()
        sys.stdout.flush()
        if service.hanging:
            os._exit(code)  # a writer that hangs must not keep the service from ending
    sys.exit(code)


def allow_files() -> None:
    """Raise the limit of open files as far as we may: a run at work holds fifteen, and 1,024 is a common soft limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class _only_one:  # noqa: N801  # a context manager
    """Holds the directory's lock: two services on one directory would take each other's runs."""

    def __init__(self, base: Path) -> None:
        self._base, self._lock = made(base), RecordLock(base / _LOCK)

    def __enter__(self) -> None:
        if not self._lock.acquire():
            who = (self._base / _LOCK).read_text().strip() or "another process"
            raise ConfigError(
                f"{self._base} is served by {who} already; end that one, or give this one another directory (--dir)"
            )
        self._lock.write(f"process {os.getpid()}".encode())

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class _Service:
    """The host of all run folders, the receiver, and their end."""

    def __init__(self, env: Mapping[str, str], cwd: Path, base: Path, *, exporters: str, log: ServiceLog) -> None:
        self._env, self._base, self._log = env, base, log
        named = {**env, settings.EXPORTERS.name: exporters} if exporters else dict(env)
        if exporters:
            for setting in (settings.METRICS_EXPORTER, settings.TRACES_EXPORTER, settings.LOGS_EXPORTER):
                named.pop(setting.name, None)
        self._choice: Choice = choose(None, named, cwd)
        options = dataclasses.replace(
            BridgeOptions.read(bridge_environment(env), cwd),
            exporters=self._choice.by_signal if self._choice.names or self._choice.refused else None,
            idle_s=IDLE_S,
            lazy=True,
        )
        self._drain_s = settings.DRAIN_TIMEOUT_S.read(env)
        self._host = Host(base, options, say=log.say_of_run)
        self._receiver: Receiver | None = None
        self._end_own_metrics: Callable[[], None] = lambda: None
        self._asked = 0
        self._stop = Wake()

    @property
    def hanging(self) -> bool:
        """A writer did not close."""
        return bool(self._host.hanging)

    def listen(self, grpc_address: str, http_address: str) -> None:
        """Begin to receive; raises `ConfigError` when that cannot be."""
        grpc, http = _address("--grpc", grpc_address), _address("--http", http_address)
        if grpc is None and http is None:
            return
        if any(importlib.util.find_spec(name) is None for name in ("grpc", "starlette", "uvicorn")):
            raise MissingExtraError(
                "serve needs the receiver: pip install 'otel-bridge[collector]', or set both to off"
            )
        from otel_bridge_collector import Receiver, ReceiverSettings  # noqa: PLC0415  # an extra

        chosen = ReceiverSettings.from_environment(
            self._env,
            self._base,
            host=grpc[0] if grpc else http[0] if http else "",
            grpc_port=grpc[1] if grpc else None,
            http_host=http[0] if http else grpc[0] if grpc else "",
            http_port=http[1] if http else None,
        )
        if chosen.in_clear:
            line = "what comes travels in clear: set OTEL_BRIDGE_TLS_CERT and _KEY, or stay behind something with TLS"
            self._log.say(line, level="warning")
        self._receiver = Receiver(chosen, metrics=self._metrics, status=self._status)

    def run(self) -> int:
        """Serve until a signal comes; returns the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._signalled)
        collect_less_often()
        self._host.start()
        self._say_begin()
        self._send_own_metrics()
        self._stop.wait()
        return self._end()

    def _say_begin(self) -> None:
        where = "nowhere"
        if self._receiver is not None:
            where = " and ".join(one for one in (self._receiver.grpc_endpoint, self._receiver.http_endpoint) if one)
        names = ", ".join(self._choice.names)
        self._log.say(f"receives at {where}; run folders in {self._base}; delivers to {names or 'nobody'}")
        if not names:
            self._log.say(
                "no exporter is chosen: what comes is kept; pass --exporters, or drain it later", level="warning"
            )

    def _send_own_metrics(self) -> None:
        if OTLP in self._choice.names and self._receiver is not None:
            from otel_bridge_collector.own_metrics import OwnMetrics  # noqa: PLC0415  # an extra

            own = OwnMetrics(self._receiver.metrics, self._env)
            own.start()
            self._end_own_metrics = own.stop

    def _signalled(self, number: int, _frame: object) -> None:
        del number
        self._asked += 1
        if self._asked > 1:
            self._host.request_stop(_STOP_S)
        self._stop.set()

    def _end(self) -> int:
        limit_s = DRAIN_S if self._drain_s is None else self._drain_s
        self._log.say(f"ends: refuses new data and delivers what is here for at most {limit_s:g} s")
        self._end_own_metrics()
        if self._receiver is not None:
            self._receiver.refuse("the service is shutting down; send it again")
            self._receiver.let_go()
        self._host.drain()
        self._host.wait(limit_s)
        remaining = self._host.stop(_STOP_S)
        if self._receiver is not None:
            self._receiver.stop()
        lines = [f"{run.run_id}: {line}" for run in remaining.values() for line in left(run, self._host.hanging)]
        for line in lines:
            self._log.say(line, level="warning")
        self._log.say(
            f"ended; {'not all is delivered, the rest stays in ' + str(self._base) if lines else 'nothing remains'}"
        )
        return 1 if lines else 0

    def _metrics(self) -> list[Metric]:
        from otel_bridge_collector.metrics_text import of_runs  # noqa: PLC0415  # an extra

        folders = run_folders(self._base)
        reports = {folder.run_id: read_report(folder) for folder in folders}
        unread = {folder.run_id: unread_bytes(folder, reports[folder.run_id]) for folder in folders}
        return of_runs({name: one for name, one in reports.items() if one is not None}, time.time_ns(), unread=unread)

    def _status(self) -> bytes:
        return overview_of(self._base, run_folders(self._base), self._env).to_json()


def _address(option: str, given: str) -> tuple[str, int] | None:
    """Return host and port; ``None`` for ``off``; port 0: any that is free."""
    if given == _OFF:
        return None
    host, colon, port = given.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"{option}={given!r}: expected HOST:PORT, e.g. 127.0.0.1:4317, or off")
    return host.strip("[]"), int(port)
