"""``otel-bridge doctor``: show every setting and what is installed, and check whether it works on this machine."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import click
from rich.table import Table
from rich.text import Text

from otel_bridge import exporter, settings
from otel_bridge.cli.check import send
from otel_bridge.cli.doctor import checks
from otel_bridge.cli.terminal import Terminal
from otel_bridge.emit.bridge_process.other_python import find_python
from otel_bridge.emit.config.misspelt import all_settings, misspelt
from otel_bridge.errors import ConfigError, OtelBridgeError
from otel_bridge.journal.base_dir import find_base
from otel_bridge.otlp import destination
from otel_bridge.text.printable import shown

_PACKAGES: Final = (
    "otel-bridge",
    "opentelemetry-sdk",
    "opentelemetry-exporter-otlp-proto-http",
    "opentelemetry-exporter-otlp-proto-grpc",
    "wandb",
    "mlflow",
    "trackio",
    "grpcio",
    "starlette",
    "uvicorn",
)
_WITHOUT_VARIABLES: Final = {
    "console": "the terminal of `otel-bridge run`, else bridge.log in the run folder",
    "file": "file/ in the run folder",
}
"""Where the exporters deliver that no variable directs."""
_MIN_FREE_BYTES: Final = 1 << 30


@click.command("doctor")
@click.option("--send", "sending", is_flag=True, help="Send a test row and rollout, and read them back.")
def command(sending: bool) -> None:
    """Show every setting, what is installed, and whether this machine and its trackers can work."""
    console = Terminal()
    env = settings.environment()
    wrong = [*_settings(console, env), *_exporters(console, env), *_directory(console, env)]
    _packages(console)
    wrong += _checks(console, env)
    if sending and wrong:
        console.print_line("nothing was sent: first fix what is wrong")
    elif sending:
        wrong += send(console, env)
    for line in wrong:
        console.print_line(f"✗ {line}", "red")
    if not sending and not chosen_exporters(env):
        line = "no exporter is chosen: set OTEL_BRIDGE_EXPORTERS, e.g. to trackio, or name exporters in init()"
        console.print_line(line)
    if not wrong:
        console.print(Text("✓ nothing is wrong", style="green"))
    sys.exit(1 if wrong else 0)


def _checks(console: Terminal, env: Mapping[str, str]) -> list[str]:
    """Check versions, ports, tokens and trackers; print what was found; return what is wrong."""
    names = chosen_exporters(env)
    results = [checks.versions(_installed()), checks.ports()]
    with contextlib.suppress(ConfigError):  # already reported with the settings
        results.append(checks.tokens(env))
    for name in names:
        with contextlib.suppress(OtelBridgeError):  # already reported with the exporters
            results.append(checks.tracker(name, _places(name, env), env))
            if name != exporter.OTLP:
                found = exporter.load(name)
                results.append(checks.abilities(name, found, found.read_settings(env, Path.cwd())))
    for result in results:
        for line in result.shown:
            console.print_line(line)
    return [line for result in results for line in result.wrong]


def _installed() -> dict[str, exporter.Exporter]:
    """Return the exporters whose packages are installed, by name."""
    found: dict[str, exporter.Exporter] = {}
    for name in exporter.available():
        with contextlib.suppress(OtelBridgeError):
            found |= {name: exporter.load(name)} if name != exporter.OTLP else {}
    return found


def _places(name: str, env: Mapping[str, str]) -> Mapping[str, str]:
    if name == exporter.OTLP:
        return destination.addresses(env)
    return exporter.destination_of(exporter.load(name).read_settings(env, Path.cwd()))


def _settings(console: Terminal, env: Mapping[str, str]) -> list[str]:
    wrong: list[str] = []
    table = _Table("setting (-: not set)", "value", "from", "meaning")
    for setting in all_settings():
        given = env.get(setting.name, "").strip()
        if setting.internal and not given:
            continue
        try:
            value = setting.written(setting.read(env)) or given or "-"
        except ConfigError as exc:
            wrong.append(str(exc))
            value = "cannot be read"
        table.add(
            setting.name,
            "set" if setting.secret and given else value,
            "environment" if given else "default",
            setting.doc,
        )
    table.print(console)
    return wrong + misspelt(env)


def _exporters(console: Terminal, env: Mapping[str, str]) -> list[str]:
    chosen = chosen_exporters(env)
    wrong: list[str] = []
    missing: dict[str, str] = {}
    table = _Table("exporter", "chosen", "delivers to, or what it needs")
    known = exporter.available()
    for name in known:
        mark = "yes" if name in chosen else ""
        try:
            where = " ".join(_destination(name, env))
            lacking = "" if name == exporter.OTLP else exporter.missing_of(name, exporter.described(name))
        except OtelBridgeError as exc:
            where, lacking = str(exc), ""
            wrong += [str(exc)] if name in chosen else []
        missing |= {name: lacking} if lacking else {}
        table.add(name, mark, lacking or where)
    wrong += [exporter.unknown(name) for name in chosen if name not in {*known, exporter.NONE}]
    table.print(console)
    return wrong + _bridge_environment(console, env, {name: missing.get(name, "") for name in chosen if name in known})


def _bridge_environment(console: Terminal, env: Mapping[str, str], lacking: Mapping[str, str]) -> list[str]:
    """Print in which other Python environment the bridge would run; return what is wrong with that environment.

    Args:
        console: Terminal to print to.
        env: The environment.
        lacking: Chosen exporter to what this environment lacks for it; empty when nothing is missing.
    """
    missing = {name: what for name, what in lacking.items() if what}
    try:
        other = find_python(env, tuple(lacking), missing, find_base(env, Path.cwd()).path)
    except ConfigError as exc:
        return [str(exc)]
    if other is not None:
        line = f"the bridge of a program here runs in another environment: {other.path} (otel-bridge {other.version})"
        console.print_line(line)
    return []


def chosen_exporters(env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the exporters that the environment chooses for any signal."""
    lists = (settings.METRICS_EXPORTER, settings.TRACES_EXPORTER, settings.LOGS_EXPORTER, settings.EXPORTERS)
    names = tuple(dict.fromkeys(name for setting in lists for name in setting.read(env)))
    if not names and destination.signals_with_endpoint(env):
        return (exporter.OTLP,)
    return names


def _destination(name: str, env: Mapping[str, str]) -> list[str]:
    if name == exporter.OTLP:
        return [f"{signal}={destination.endpoint_for(signal, env).address}" for signal in destination.signals_sent(env)]
    chosen = exporter.described(name).read_settings(env, Path.cwd())
    found = [f"{key}={value}" for key, value in exporter.destination_of(chosen).items()]
    return found or [_WITHOUT_VARIABLES.get(name, "")]


def _directory(console: Terminal, env: Mapping[str, str]) -> list[str]:
    base = find_base(env, Path.cwd())
    existing = next(path for path in (base.path, *base.path.parents) if path.exists())
    free_bytes = shutil.disk_usage(existing).free
    console.print_line(f"run folders: {base.path} ({free_bytes / 2**30:.1f} GiB free)")
    wrong: list[str] = []
    if base.file_system:
        console.print_line(f"  the requested folder is on {base.file_system}, a network file system")
    if not os.access(existing, os.W_OK | os.X_OK):
        wrong.append(f"{existing} is not writable; make it yours or set OTEL_BRIDGE_DIR to a writable folder")
    if free_bytes < _MIN_FREE_BYTES:
        wrong.append(f"{existing} has {free_bytes >> 20} MiB left; free some, or set OTEL_BRIDGE_DIR to another disk")
    return wrong


def _packages(console: Terminal) -> None:
    table = _Table("package", "version")
    table.add("python", sys.version.split()[0])
    for name in _PACKAGES:
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found = "not installed"
        table.add(name, found)
    table.print(console)


class _Table:
    """Prints aligned columns: folded on a terminal, one line per row in a pipe or a file."""

    def __init__(self, *columns: str) -> None:
        self._rows: list[tuple[str, ...]] = [columns]

    def add(self, *cells: str) -> None:
        self._rows.append(tuple(map(shown, cells)))

    def print(self, console: Terminal) -> None:
        if console.is_terminal:
            table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
            for column in self._rows[0]:
                table.add_column(column, overflow="fold")
            for row in self._rows[1:]:
                table.add_row(*map(Text, row))
            console.print(table)
            return
        widths = [max(map(len, column)) for column in zip(*self._rows, strict=True)]
        for row in self._rows:
            line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            console.print_line(line.rstrip())
