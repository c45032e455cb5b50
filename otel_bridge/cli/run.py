"""``otel-bridge run -- CMD``: the bridge of every run that CMD's processes open, and a receiver for stock OTel SDKs."""

from __future__ import annotations

import importlib.util
import os
import secrets
import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final
from urllib.parse import quote

import click
from rich.console import Console

from otel_bridge import semconv, settings
from otel_bridge.bridge.garbage import collect_less_often
from otel_bridge.bridge.host import Host
from otel_bridge.bridge.options import BridgeOptions
from otel_bridge.cli.child import Child, NotStartedError
from otel_bridge.cli.closing import DeliveryLine, print_runs
from otel_bridge.cli.directory import made
from otel_bridge.cli.launched_runs import LaunchedRuns
from otel_bridge.emit.exporters import Choice, choose
from otel_bridge.emit.identity import Asked, Identity, identify, new_end, resource_attributes
from otel_bridge.emit.launch import bridge_environment
from otel_bridge.emit.launcher import NO_SYSTEM_METRICS, launcher_environment
from otel_bridge.errors import ConfigError, OtelBridgeError
from otel_bridge.exporter import NONE, SIGNALS
from otel_bridge.journal.folder import base_dir

DRAIN_S: Final = 300.0
_STOP_S: Final = 10.0
_LAST_WORDS_S: Final = 0.5
"""Time in which what the command's processes said last is read and their ends are said."""
_BY_SIGNAL: Final = (settings.METRICS_EXPORTER, settings.TRACES_EXPORTER, settings.LOGS_EXPORTER)


@click.command("run", context_settings={"allow_interspersed_args": False})
@click.option(
    "--exporters", default="", help="Exporters of all signals, e.g. trackio,mlflow; goes before all variables."
)
@click.option("--new", "new_run", is_flag=True, help="Start another run although one of this name exists.")
@click.option("--dir", "directory", default="", help="Where run folders are (OTEL_BRIDGE_DIR).")
@click.option("--listen", default="", metavar="HOST:PORT", help="Receive OTLP here: gRPC on PORT, HTTP on PORT + 1.")
@click.argument("cmd", nargs=-1, required=True, type=click.UNPROCESSED)
def command(exporters: str, new_run: bool, directory: str, listen: str, cmd: tuple[str, ...]) -> None:
    """Run CMD and bring what its processes emit to the trackers; returns CMD's exit code.

    Children that use otel-bridge are served from their run folders; those with a stock OpenTelemetry SDK send OTLP to a
    receiver on this machine, and land in the same run.
    """
    env = _own_environment(exporters=exporters, new_run=new_run, directory=directory)
    cwd = Path.cwd()
    base = base_dir(env, cwd)
    choice = choose(None, env, cwd)
    identity = identify(Asked(), env, cwd)
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
    host = Host(base, options, folders=runs.folders, say=_say)
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
    give_up = _GiveUp(host)
    receiver.stop()
    runs.folders()  # what came in the last moment
    runs.end(child.status())
    host.finish(child.status())
    _drain(host, give_up, settings.DRAIN_TIMEOUT_S.read(env))
    print_runs(Console(highlight=False, stderr=True), runs.folders(), host.progress(), host.hanging)
    # A writer that hangs must not keep the command's end from those who wait for it.
    sys.stdout.flush()
    sys.stderr.flush()
    if host.hanging:
        os._exit(code)
    sys.exit(code)


def _own_environment(*, exporters: str, new_run: bool, directory: str) -> dict[str, str]:
    """Return this process's environment with the options in it; ``--exporters`` goes before all variables."""
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
    choice: Choice,
    base: Path,
    receiver: _Receiver,
) -> dict[str, str]:
    """Return the children's environment: who we are, the run's name, and our receiver instead of the user's OTLP."""
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
    child |= launcher_environment(choice.by_signal)
    if choice.refused and not choice.names:
        child |= launcher_environment(dict.fromkeys(SIGNALS, (NONE,)))
    elif not choice.names:  # what a child asks for itself counts
        child[settings.LAUNCHER_EXPORTERS.name] = ""
    attributes = {
        **resource_attributes(env),
        semconv.PROJECT: identity.project,
        semconv.RUN_NAME: identity.name,
        semconv.RUN_ID: identity.id,
    }
    child["OTEL_RESOURCE_ATTRIBUTES"] = ",".join(f"{key}={quote(value)}" for key, value in attributes.items())
    return child | receiver.environment


class _Receiver:
    """The receiver of a launcher, and what stock SDKs need to find it.

    Without the extra ``collector`` it is one of the standard library: HTTP, which is what stock SDKs are told to speak.
    """

    def __init__(self, env: Mapping[str, str], base: Path, listen: str) -> None:
        plain = any(importlib.util.find_spec(name) is None for name in ("grpc", "starlette", "uvicorn"))
        if plain and listen:
            raise ConfigError(
                f"--listen {listen}: receiving gRPC, and from other machines, needs the extra: "
                "pip install 'otel-bridge[collector]'; without --listen programs of this machine are received over HTTP"
            )
        from otel_bridge_collector import Receiver, ReceiverSettings  # noqa: PLC0415  # only where it is asked for
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
    """Return *endpoint* with an address of this machine where it listens on all of them: children tell other nodes."""
    if host not in {"0.0.0.0", "::"}:  # noqa: S104  # looked for, not bound
        return endpoint
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # RFC 5737; sends nothing, and tells which address goes out
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
        raise ConfigError(f"--listen={listen!r}: expected HOST:PORT, with PORT + 1 free too")
    return host.strip("[]") or "127.0.0.1", int(port)


class _GiveUp:
    """What Ctrl-C or SIGTERM does once the command has ended: it ends the delivery, and the rest stays in the folders.

    It waits for `allow`: until then the ends of the command's processes are not said yet.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._asked = self._allowed = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._ask)

    def allow(self) -> None:
        """From now on at once."""
        self._allowed = True
        if self._asked:
            self._host.request_stop(_STOP_S)

    def _ask(self, _number: int, _frame: object) -> None:
        self._asked = True
        if self._allowed:
            self._host.request_stop(_STOP_S)


def _drain(host: Host, give_up: _GiveUp, timeout_s: float | None) -> None:
    """Deliver what is left, with a line of progress."""
    line = DeliveryLine(Console(highlight=False, stderr=True))
    with line:
        if not host.wait(_LAST_WORDS_S, on_progress=line.update):
            give_up.allow()
            host.wait(DRAIN_S if timeout_s is None else timeout_s, on_progress=line.update)
    host.stop(_STOP_S)


def _say(line: str) -> None:
    try:
        click.echo(f"otel-bridge: {line}", err=True)
    except (OSError, OtelBridgeError):
        return
