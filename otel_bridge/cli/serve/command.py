"""``otel-bridge serve``: receive OTLP, and deliver every run folder of one directory.

An `OtelBridgeError` that passes comes before anything is served, and ends the command with one line
and exit code 1 (`cli.main`). Later an error of one run is logged, and the others are served on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import resource
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from otel_bridge import settings
from otel_bridge.bridge.options import BridgeOptions
from otel_bridge.bridge.serving.process_limits import collect_less_often
from otel_bridge.bridge.supervisor import BridgeSupervisor, Wakeup
from otel_bridge.cli.delivery_summary import undelivered
from otel_bridge.cli.environment import own_environment
from otel_bridge.cli.output import end_process, work_without_output
from otel_bridge.cli.serve.directory_lock import ServiceLock
from otel_bridge.cli.serve.log import ServiceLog
from otel_bridge.cli.status.run_state import StateReader
from otel_bridge.cli.status.source import overview_of
from otel_bridge.emit.bridge_process.spawn import bridge_environment
from otel_bridge.emit.config.exporters import choose
from otel_bridge.errors import MissingExtraError
from otel_bridge.journal.base_dir import base_dir
from otel_bridge.journal.folder import run_folders
from otel_bridge.journal.report import Report, read_report, unread_bytes
from otel_bridge.setting_parsers import host_and_port
from otel_bridge.text.counts import counted, first_ones

if TYPE_CHECKING:
    from prometheus_client import Metric

    from otel_bridge_collector import Receiver

DRAIN_S = 30.0
IDLE_S = 60.0
"""Seconds without work after which a run is closed, since thousands of runs would fill the memory."""
FILES = 65_536
"""Open files that are asked for: enough for the most active runs and their connections."""
_STOP_S = 10.0
"""Seconds that writers may take to close after a signal."""
_THREADS_S = 2.0
_OFF = "off"
_NAMED_RUNS = 5
"""Most runs that the line on earlier runs names."""


@click.command(
    "serve", epilog="Example: otel-bridge serve --exporters mlflow --http 0.0.0.0:4318"
)
@click.option(
    "--exporters",
    default="",
    help="Exporters of all signals, e.g. wandb,mlflow; overrides all variables.",
)
@click.option("--grpc", "grpc_address", default="127.0.0.1:4317", metavar="HOST:PORT", show_default=True,
              help="Where to receive OTLP over gRPC; off disables it.")  # fmt: skip
@click.option("--http", "http_address", default="127.0.0.1:4318", metavar="HOST:PORT", show_default=True,
              help="Where to receive OTLP over HTTP, with /healthz, /readyz, /metrics and /status; "
                   "off disables it.")  # fmt: skip
@click.option(
    "--dir", "directory", default="", help="Where run folders are (OTEL_BRIDGE_DIR)."
)
@click.option(
    "--log-format",
    type=click.Choice(["plain", "json"]),
    default="plain",
    show_default=True,
    help="Format of the log on stderr, one line per event.",
)
def command(
    exporters: str,
    grpc_address: str,
    http_address: str,
    directory: str,
    log_format: str,
) -> None:
    """Receive OTLP and deliver every run of one directory to the trackers, until SIGTERM or SIGINT.

    After the signal, new data is refused: clients send it again later. Incomplete data is released,
    and stored records are delivered for at most OTEL_BRIDGE_DRAIN_TIMEOUT_S (30) seconds. A second
    signal stops the delivery at once. Remaining records are reported and stay in the folders until
    the next `serve` or `drain` delivers them. Exit codes: 0 nothing remains,
    1 something remains, 2 the call is wrong.
    """
    work_without_output()
    env = own_environment(exporters=exporters, directory=directory)
    # Before the runs, whose number is derived from the limit.
    allow_files()
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(ServiceLog(as_json=log_format == "json"))
        cwd = Path.cwd()
        base = base_dir(env, cwd)
        # Before anything listens: clients must not reach a service that refuses to start.
        stack.enter_context(ServiceLock(base))
        service = _Service(env, cwd, base, log)
        # Before anything is received or delivered, so that all that is named is from before.
        if line := earlier_runs_line(base):
            log.log_line(line)
        service.listen(grpc_address, http_address)
        code = service.run()
        # A writer, a disk or an HTTP request that hangs must not keep the service from exiting.
        end_process(code, hangs=service.hanging or _others_at_work())


def earlier_runs_line(base: Path) -> str:
    """Return a line on the runs below *base* that are not wholly delivered, by name.

    It is empty when there is none. A service delivers them at once, which a person who named the
    wrong directory does not expect.
    """
    names: list[str] = []
    folders = run_folders(base)
    for folder in folders:
        report = read_report(folder)
        if report is None:
            names.append(folder.run_id)
        # Also a run that had ended: a process may have appended after its bridge exited.
        elif not report.ended or unread_bytes(folder.segments(), report):
            names.append(f"{report.project}/{report.name}")
    if not names:
        return ""
    return (
        f"found {counted(len(folders), 'run')} in {base}, of which {len(names)} will be delivered now: "
        f"{first_ones(names, _NAMED_RUNS)}; --dir serves another folder"
    )


def allow_files() -> None:
    """Raise the limit of open files as far as allowed.

    An active run keeps fifteen files open, and 1,024 is a common soft limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < files:
        # Where that is not allowed, fewer runs are active at a time.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))


def _others_at_work() -> bool:
    """Return whether a non-daemon thread still runs after `_THREADS_S`, for which the interpreter would wait at exit.

    An HTTP request that reads from a disk that hangs is such a thread.
    """
    until_s = time.monotonic() + _THREADS_S
    # Daemon threads end with the interpreter; it waits for the others.
    threads = [
        thread
        for thread in threading.enumerate()
        if not thread.daemon and thread is not threading.main_thread()
    ]
    for thread in threads:
        thread.join(max(until_s - time.monotonic(), 0.0))
    return any(thread.is_alive() for thread in threads)


class _Service:
    """Runs the supervisor of all run folders and the receiver, and shuts both down.

    Nothing is served before `run`.

    Raises:
        ConfigError: A setting, or an exporter that is chosen for all runs, cannot be used.
    """

    def __init__(
        self,
        env: Mapping[str, str],
        cwd: Path,
        base: Path,
        log: ServiceLog,
    ) -> None:
        self._env = env
        self._base = base
        self._log = log
        self._choice = choose(None, env, cwd)
        is_chosen = bool(self._choice.names or self._choice.refused)
        options = dataclasses.replace(
            BridgeOptions.read(bridge_environment(env), cwd),
            exporters=self._choice.by_signal if is_chosen else None,
            idle_s=IDLE_S,
            # Reading early makes nothing safer, and costs most in an outage.
            lazy=True,
        )
        self._drain_s = settings.DRAIN_TIMEOUT_S.read(env)
        # With one token all senders have the same access, so that spans may move between runs.
        self._one_token = len(settings.TOKEN.read(env)) <= 1
        self._host = BridgeSupervisor(
            base, options, may_join=self._may_join, log_line=log.log_run_line
        )
        self._states = StateReader(settings.LIVENESS_TIMEOUT_S.read(env))
        self._receiver: Receiver | None = None
        self._asked = 0
        self._stop = Wakeup()

    @property
    def hanging(self) -> bool:
        """Return whether a writer did not close, or the reading thread did not end."""
        return bool(self._host.hanging) or self._host.alive

    def _may_join(self, run_id: str, other_run_id: str) -> bool:
        """Return whether the sender of one run may send the other, so that spans may move there.

        With several tokens and without a receiver it is unknown who sent what, and nothing moves.
        """
        return self._one_token or (
            self._receiver is not None
            and self._receiver.same_token(run_id, other_run_id)
        )

    def listen(self, grpc_address: str, http_address: str) -> None:
        """Begin to receive; nothing happens if both addresses are ``off``.

        Raises:
            ConfigError: An address is not valid or not free, or a setting of the receiver is wrong.
            MissingExtraError: gRPC is not installed. It is the default, so that a newcomer meets
                it.
        """
        grpc = _address("--grpc", grpc_address)
        http = _address("--http", http_address)
        first = grpc or http
        # Nothing is received: the service delivers what is in the folders.
        if first is None:
            return
        if grpc is not None and importlib.util.find_spec("grpc") is None:
            raise MissingExtraError(
                "--grpc needs the extra: pip install 'otel-bridge[collector]', or set it to off"
            )
        from otel_bridge_collector import Receiver, ReceiverSettings  # noqa: PLC0415  # only where it listens

        host, _ = first
        http_host, http_port = http or (host, None)
        receiver_settings = ReceiverSettings.from_environment(
            self._env,
            self._base,
            host=host,
            grpc_port=grpc[1] if grpc else None,
            http_host=http_host,
            http_port=http_port,
        )
        if receiver_settings.in_clear:
            line = (
                "data arrives unencrypted: set OTEL_BRIDGE_TLS_CERT and _KEY, "
                "or put a proxy with TLS in front"
            )
            self._log.log_line(line, level="warning")
        self._receiver = Receiver(
            receiver_settings,
            metrics=self._metrics,
            status=self._status,
            warnings=self._host.warnings,
        )

    def run(self) -> int:
        """Serve until a signal arrives; return the exit code of `_end`.

        Signals are handled before the supervisor starts: one that came earlier could end the
        process in the middle of a write to a tracker.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._signalled)
        collect_less_often()
        self._host.start()
        self._log_begin()
        self._stop.wait()
        return self._end()

    def _log_begin(self) -> None:
        """Log where the service listens and what it delivers to, or that it only stores."""
        endpoints = "nowhere"
        if self._receiver is not None:
            addresses = (self._receiver.grpc_endpoint, self._receiver.http_endpoint)
            endpoints = " and ".join(filter(None, addresses))
        names = ", ".join(self._choice.names)
        self._log.log_line(
            f"receives at {endpoints}; run folders in {self._base}; delivers to {names or 'no exporter'}"
        )
        if not names:
            self._log.log_line(
                "no exporter is chosen: data is stored only; pass --exporters, or drain it later",
                level="warning",
            )

    def _signalled(self, _number: int, _frame: object) -> None:
        """Handle SIGTERM and SIGINT; `Wakeup` may be set in a handler, unlike a lock.

        Each signal after the first gives writers `_STOP_S` from then on.
        """
        # The first signal lets it deliver what is stored, the second one stops that.
        self._asked += 1
        if self._asked > 1:
            self._host.request_stop(_STOP_S)
        self._stop.set()

    def _end(self) -> int:
        """Shut down, and return the exit code: 0, or 1 when records remain, which are logged by run.

        First no new data, then delivery, and the receiver's ports last: until then `/status` and
        `/metrics` answer, and clients get an error that makes them send again.
        """
        limit_s = DRAIN_S if self._drain_s is None else self._drain_s
        self._log.log_line(
            f"shutting down: refusing new data, delivering what is stored for at most {limit_s:g} s"
        )
        if self._receiver is not None:
            # New data first, or the delivery below would have no end.
            self._receiver.refuse("the service is shutting down; send it again")
            self._try(self._receiver.release_connections)
        self._host.drain()
        self._host.wait(limit_s)
        remaining = self._host.stop(_STOP_S)
        if self._receiver is not None:
            self._try(self._receiver.stop)
        code = 0
        for run in remaining.values():
            for line in undelivered(run, self._host.hanging):
                self._log.log_run_line(f"{run.run_id}: {line}", level="warning")
                code = 1
        rest = "nothing remains"
        if code:
            rest = f"not everything is delivered, the remaining records stay in {self._base}"
        self._log.log_line(f"ended; {rest}")
        return code

    def _try(self, end: Callable[[], None]) -> None:
        """Shut down a part of the receiver; its failure is logged and raises nothing."""
        try:
            end()
        except Exception as exc:  # noqa: BLE001  # the other parts must be shut down too
            self._log.log_line(
                f"the receiver failed to shut down: {type(exc).__name__}: {exc}",
                level="warning",
            )

    def _metrics(self) -> list[Metric]:
        """Return what ``/metrics`` shows: the service, and each run that a bridge has read.

        In a thread of the receiver, which calls one page at a time.
        """
        from otel_bridge_collector.telemetry.service_metrics import of_host, of_runs  # noqa: PLC0415  # an extra

        reports: dict[str, Report] = {}
        unread: dict[str, int] = {}
        for folder in run_folders(self._base):
            report = self._states.reports.read(folder)
            unread[folder.run_id] = unread_bytes(folder.segments(), report)
            if report is not None:
                reports[folder.run_id] = report
        return [
            *of_host(self._host.state()),
            *of_runs(reports, time.time_ns(), unread=unread),
        ]

    def _status(self) -> bytes:
        """Return the body of ``/status``.

        A run that cannot be read is in it with what is known of it.
        """
        return overview_of(
            self._base, run_folders(self._base), self._env, self._states
        ).to_json()


def _address(option: str, address: str) -> tuple[str, int] | None:
    """Return host and port, or ``None`` for ``off``.

    Port 0 means any free port. Raises as `host_and_port`.
    """
    if address == _OFF:
        return None
    return host_and_port(option, address, expected="e.g. 127.0.0.1:4317, or off")
