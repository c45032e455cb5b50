"""``otel-bridge run -- CMD``: run CMD, serve every run that its processes open, and receive OTLP from stock SDKs."""

from __future__ import annotations

import importlib.util
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final
from urllib.parse import quote

import click
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ScopeLogs
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otel_bridge import semconv, settings
from otel_bridge.bridge.options import BridgeOptions
from otel_bridge.bridge.serving.process_limits import collect_less_often
from otel_bridge.bridge.supervisor import BridgeSupervisor
from otel_bridge.cli.delivery_summary import DeliveryLine, print_runs
from otel_bridge.cli.directory import made
from otel_bridge.cli.run.child import Child, NotStartedError
from otel_bridge.cli.terminal import Terminal, echo
from otel_bridge.emit.bridge_process.spawn import bridge_environment
from otel_bridge.emit.config.child_env import NO_SYSTEM_METRICS, launcher_environment, launcher_mark
from otel_bridge.emit.config.exporters import RequestedDestinations, choose
from otel_bridge.emit.config.identity import Identity, InitArguments, identify, new_end, resource_attributes
from otel_bridge.errors import ConfigError, OtelBridgeError
from otel_bridge.exporter import NONE, SIGNALS
from otel_bridge.journal.folder import RunFolder, base_dir, run_folders
from otel_bridge.journal.frames import Signal
from otel_bridge.journal.header import SegmentHeader
from otel_bridge.journal.liveness import LivenessLock
from otel_bridge.journal.segment import SegmentWriter, read_segment
from otel_bridge.records import Status

DRAIN_S: Final = 300.0
_STOP_S: Final = 10.0
_LAST_DATA_S: Final = 0.5
"""Seconds after the command's exit in which its last data is read and the ends of its processes are recorded."""
_BY_SIGNAL: Final = (settings.METRICS_EXPORTER, settings.TRACES_EXPORTER, settings.LOGS_EXPORTER)


@click.command("run", context_settings={"allow_interspersed_args": False})
@click.option("--exporters", default="", help="Exporters of all signals, e.g. trackio,mlflow; overrides all variables.")
@click.option("--new", "new_run", is_flag=True, help="Start a new run even if one of this name exists.")
@click.option("--dir", "directory", default="", help="Where run folders are (OTEL_BRIDGE_DIR).")
@click.option("--listen", default="", metavar="HOST:PORT", help="Receive OTLP here: gRPC on PORT, HTTP on PORT + 1.")
@click.argument("cmd", nargs=-1, required=True, type=click.UNPROCESSED)
def command(exporters: str, new_run: bool, directory: str, listen: str, cmd: tuple[str, ...]) -> None:
    """Run CMD and deliver what its processes emit to the trackers; returns CMD's exit code.

    Processes that use otel-bridge append to their run folders. Processes with a stock OpenTelemetry SDK send OTLP to a
    receiver on this machine. Both belong to the same run.
    """
    env = _own_environment(exporters=exporters, new_run=new_run, directory=directory)
    cwd = Path.cwd()
    base = base_dir(env, cwd)
    choice = choose(None, env, cwd)
    identity = identify(InitArguments(), env, cwd)
    bridge_env = {**bridge_environment(env)}
    options = replace(
        BridgeOptions.read(bridge_env, cwd),
        exporters=choice.by_signal if choice.names or choice.refused else None,
        launcher=True,
        takeover=True,
    )
    made(base)
    runs = LaunchedRuns(base)
    collect_less_often()
    host = BridgeSupervisor(base, options, folders=runs.folders, say=_notify)
    receiver = _Receiver(env, base, listen)
    host.start()
    child_env = _child_environment(env, identity, choice, base, receiver)
    try:
        child = Child(cmd, child_env)
    except NotStartedError:
        receiver.stop()
        host.stop()
        raise
    host.spare(child.pid)
    code = child.wait()
    give_up = _InterruptHandler(host)
    receiver.stop()
    runs.folders()  # folders that were opened since the last look
    runs.end(child.status())
    host.finish(child.status())
    _drain(host, give_up, settings.DRAIN_TIMEOUT_S.read(env))
    print_runs(Terminal(stderr=True), runs.folders(), host.progress(), host.hanging)
    # A writer that hangs must not delay this process's exit, which others may wait for.
    sys.stdout.flush()
    sys.stderr.flush()
    if host.hanging or host.alive:
        os._exit(code)
    sys.exit(code)


def _own_environment(*, exporters: str, new_run: bool, directory: str) -> dict[str, str]:
    """Return this process's environment with the options in it; ``--exporters`` overrides all variables."""
    env = settings.environment()
    if exporters:
        for setting in _BY_SIGNAL:
            env.pop(setting.name, None)
        env[settings.EXPORTERS.name] = exporters
    if new_run:
        env[settings.NEW_RUN.name] = "1"
    if directory:
        env[settings.DIR.name] = directory
    return env


def _child_environment(
    env: Mapping[str, str],
    identity: Identity,
    choice: RequestedDestinations,
    base: Path,
    receiver: _Receiver,
) -> dict[str, str]:
    """Return the children's environment: launcher, run name, and this receiver instead of the user's OTLP endpoint."""
    child = {name: value for name, value in env.items() if not name.startswith("OTEL_EXPORTER_OTLP_")}
    for setting in (*_BY_SIGNAL, settings.EXPORTERS, settings.NEW_RUN):
        child.pop(setting.name, None)
    child |= {
        settings.DIR.name: str(base),
        settings.PROJECT.name: identity.project,
        settings.RUN_NAME.name: identity.name,
    }
    if identity.id_given:
        child[settings.RUN_ID.name] = identity.id
    if settings.NEW_RUN.read(env):
        child[settings.LAUNCHER_NEW.name] = identity.name[-len(new_end()) :]
    child.setdefault(*NO_SYSTEM_METRICS)
    if not any(name.startswith("OTEL_EXPORTER_OTLP_") for name in env):
        # MLflow exports its own traces to an OTLP endpoint, if one is set, instead of its store: keep both.
        child.setdefault(*MLFLOW_KEEPS_TRACES)
    child |= launcher_environment(choice.by_signal)
    if choice.refused and not choice.names:
        child |= launcher_environment(dict.fromkeys(SIGNALS, (NONE,)))
    elif not choice.names:  # each child's own choice counts
        child[settings.LAUNCHER_EXPORTERS.name] = ""
    attributes = {
        **resource_attributes(env),
        semconv.PROJECT: identity.project,
        semconv.RUN_NAME: identity.name,
        semconv.RUN_ID: identity.id,
    }
    if identity.project_generated:
        child[settings.GENERATED_PROJECT.name] = identity.project
        attributes[semconv.PROJECT_GENERATED] = "true"
    if identity.name_generated:
        child[settings.GENERATED_NAME.name] = identity.name
        attributes[semconv.RUN_NAME_GENERATED] = "true"
    child["OTEL_RESOURCE_ATTRIBUTES"] = ",".join(f"{key}={quote(value)}" for key, value in attributes.items())
    return child | receiver.environment


MLFLOW_KEEPS_TRACES: Final = ("MLFLOW_TRACE_ENABLE_OTLP_DUAL_EXPORT", "true")
"""Makes MLflow export its spans to its own store as well as to OTLP (mlflow 3.6 and later)."""


class _Receiver:
    """Runs the launcher's receiver, and holds the variables that stock SDKs need to find it.

    Without the extra ``collector`` the receiver uses the standard library and accepts HTTP only. The variables
    configure stock SDKs for HTTP in any case.
    """

    def __init__(self, env: Mapping[str, str], base: Path, listen: str) -> None:
        plain = any(importlib.util.find_spec(name) is None for name in ("grpc", "starlette", "uvicorn"))
        if plain and listen:
            raise ConfigError(
                f"--listen {listen}: receiving gRPC, and from other machines, needs the extra: "
                "pip install 'otel-bridge[collector]'; without --listen programs of this machine are received over HTTP"
            )
        from otel_bridge_collector import Receiver, ReceiverSettings  # noqa: PLC0415  # only for this command
        from otel_bridge_collector.receiver import is_loopback  # noqa: PLC0415

        host, port = _address(listen)
        token = ",".join(settings.TOKEN.read(env))
        if not token and not is_loopback(host):
            token = secrets.token_urlsafe(24)
        chosen = ReceiverSettings.from_environment(
            {**env, settings.TOKEN.name: token}, base, host=host, grpc_port=port, http_port=port + 1 if port else 0
        )
        self._receiver = Receiver(replace(chosen, plain=True, grpc_port=None, tls=None) if plain else chosen)
        self.environment = {
            **{f"OTEL_{one.upper()}_EXPORTER": "otlp" for one in SIGNALS},
            "OTEL_EXPORTER_OTLP_ENDPOINT": _for_others(self._receiver.http_endpoint, host),
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        }
        if token:
            first = token.partition(",")[0]
            self.environment["OTEL_EXPORTER_OTLP_HEADERS"] = f"authorization=Bearer%20{quote(first)}"
            self.environment[settings.TOKEN.name] = token

    def stop(self) -> None:
        self._receiver.stop()


def _for_others(endpoint: str, host: str) -> str:
    """Return *endpoint* as other nodes reach it: a wildcard address is replaced by one of this machine."""
    if host not in {"0.0.0.0", "::"}:  # noqa: S104  # looked for, not bound
        return endpoint
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # RFC 5737; sends nothing, and shows the address of the outgoing interface
            own: str = probe.getsockname()[0]
        except OSError:
            own = socket.gethostname()
    scheme, _, rest = endpoint.partition("://")
    return f"{scheme}://{own}:{rest.rpartition(':')[2]}"


def _address(listen: str) -> tuple[str, int]:
    if not listen:
        return "127.0.0.1", 0
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isdigit() or not 0 < int(port) < 65535:
        raise ConfigError(f"--listen={listen!r}: expected HOST:PORT, where PORT + 1 is free too")
    return host.strip("[]") or "127.0.0.1", int(port)


class _InterruptHandler:
    """Stops the delivery on Ctrl-C or SIGTERM once the command has exited; undelivered records stay in the folders.

    A signal takes effect after `allow`, because the ends of the command's processes are recorded before that.
    """

    def __init__(self, host: BridgeSupervisor) -> None:
        self._host = host
        self._asked = self._allowed = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._ask)

    def allow(self) -> None:
        """Stop at once on a signal from now on, and on one that arrived before."""
        self._allowed = True
        if self._asked:
            self._host.request_stop(_STOP_S)

    def _ask(self, _number: int, _frame: object) -> None:
        self._asked = True
        if self._allowed:
            self._host.request_stop(_STOP_S)


def _drain(host: BridgeSupervisor, give_up: _InterruptHandler, timeout_s: float | None) -> None:
    """Deliver what is left, with a line of progress."""
    line = DeliveryLine(Terminal(stderr=True))
    with line:
        if not host.wait(_LAST_DATA_S, on_progress=line.update):
            give_up.allow()
            host.wait(DRAIN_S if timeout_s is None else timeout_s, on_progress=line.update)
    host.stop(_STOP_S)


def _notify(line: str) -> None:
    try:
        echo(f"otel-bridge: {line}", err=True)
    except (OSError, OtelBridgeError):
        return


# The run folders that a launcher's children open. The launcher has a segment in each, which keeps the run open.


class LaunchedRuns:
    """Finds the run folders of the launcher's children. The supervisor's thread calls `folders`, the launcher's `end`.

    Args:
        base: The directory of run folders.
    """

    def __init__(self, base: Path) -> None:
        self._base = base
        self._since_ns = time.time_ns()
        self._runs: dict[Path, _LauncherSegment] = {}
        self._lock = threading.Lock()
        self._ended: Status | None = None

    def folders(self) -> list[RunFolder]:
        """Return the folders that this launcher's children or its receiver write to."""
        with self._lock:
            for folder in run_folders(self._base):
                if folder.path not in self._runs:
                    self._join(folder)
            return [run.folder for run in self._runs.values()]

    def end(self, status: Status) -> None:
        """Record in every run that the command has ended with *status*."""
        with self._lock:
            self._ended = status
            for run in self._runs.values():
                run.end(status)

    def _join(self, folder: RunFolder) -> None:
        """Serve *folder* if a child of this command writes to it; another job's folder is left to its own bridge."""
        header = _own_header(folder, self._since_ns)
        if header is None:
            return
        try:
            run = _LauncherSegment(folder, header)
        except OtelBridgeError:
            return  # the disk is full, or the folder is gone: the next call tries again
        self._runs[folder.path] = run
        if self._ended is not None:
            run.end(self._ended)


class _LauncherSegment:
    """Writes the launcher's own segment in one run folder."""

    def __init__(self, folder: RunFolder, of: SegmentHeader) -> None:
        self.folder = folder
        self._instance_id = os.urandom(8).hex()
        header = SegmentHeader.of_this_process(
            "launcher",
            self._instance_id,
            run_id=of.run_id,
            project=of.project,
            run_name=of.run_name,
            generated=of.generated,
            resource=self._resource(of),
        )
        self._liveness = LivenessLock.hold(folder, self._instance_id)
        self._writer = SegmentWriter(folder, header)
        self._open = True

    def end(self, status: Status) -> None:
        """Append the end event and release the liveness lock; may be called twice."""
        if not self._open:
            return
        self._open = False
        now = time.time_ns()
        record = LogRecord(
            time_unix_nano=now,
            observed_time_unix_nano=now,
            event_name=semconv.EVENT_END,
            attributes=[
                KeyValue(key=semconv.RUN_STATUS, value=AnyValue(string_value=status.value)),
                KeyValue(key=semconv.EVENT_SEQ, value=AnyValue(int_value=1)),
            ],
        )
        scope = ScopeLogs(scope=InstrumentationScope(name=semconv.SCOPE_NAME), log_records=[record])
        try:
            self._writer.append(Signal.LOGS, scope.SerializeToString(), now)
        finally:
            self._writer.close()
            self._liveness.release()

    def _resource(self, of: SegmentHeader) -> bytes:
        texts = {
            semconv.PROJECT: of.project,
            semconv.RUN_NAME: of.run_name,
            semconv.RUN_ID: of.run_id,
            semconv.INSTANCE_ID: self._instance_id,
        }
        attributes = [KeyValue(key=key, value=AnyValue(string_value=text)) for key, text in texts.items()]
        flags = [semconv.LAUNCHER]
        flags += [semconv.PROJECT_GENERATED] if "project" in of.generated else []
        flags += [semconv.RUN_NAME_GENERATED] if "run_name" in of.generated else []
        attributes += [KeyValue(key=key, value=AnyValue(bool_value=True)) for key in flags]
        return Resource(attributes=attributes).SerializeToString()


def _own_header(folder: RunFolder, since_ns: int) -> SegmentHeader | None:
    """Return the header of a segment that a native child or this receiver began since *since_ns*."""
    mark = launcher_mark()
    for segment in folder.segments():
        if segment.mtime_ns < since_ns:
            continue
        try:
            header, _ = read_segment(segment.path, 0, limit_bytes=1, final=False)
        except OtelBridgeError:
            continue
        if header is None or header.created_unix_ns < since_ns:
            continue
        if header.launcher == mark or (header.kind == "receiver" and header.pid == os.getpid()):
            return header
    return None
