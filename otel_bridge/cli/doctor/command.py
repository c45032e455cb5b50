"""``otel-bridge doctor``: check whether the settings and what is installed work on this machine.

What is wrong is collected, so that one call shows all of it. Only a directory with a name that
cannot be used ends the command at once, with one line and exit code 1 (`cli.main`).
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from otel_bridge import exporter, settings
from otel_bridge.cli.check import send
from otel_bridge.cli.doctor import checks
from otel_bridge.cli.doctor.checks import Findings
from otel_bridge.cli.environment import OF_SIGNALS
from otel_bridge.cli.terminal import Terminal, plain_table
from otel_bridge.emit.bridge_process.other_python import find_python
from otel_bridge.emit.config.misspelt import all_settings, misspelt
from otel_bridge.errors import ConfigError, OtelBridgeError
from otel_bridge.journal.base_dir import find_base
from otel_bridge.otlp import destination
from otel_bridge.text.printable import shown

_PACKAGES = (
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
_WITHOUT_VARIABLES = {
    "console": "the terminal of `otel-bridge run`, else bridge.log in the run folder",
    "file": "file/ in the run folder",
}
"""Where the exporters deliver that no variable directs."""
_DELIVERS_TO = "delivers to, or what it needs"
_MIN_FREE_BYTES = 1 << 30
"""Free space below which a run could soon drop rows: it may use half of what is free."""


@click.command("doctor", epilog="Example: otel-bridge doctor --send")
@click.option(
    "--send",
    "sending",
    is_flag=True,
    help="Send a test row and rollout, and read them back.",
)
@click.option(
    "--all",
    "whole",
    is_flag=True,
    help="Show also settings that are not set, other exporters, packages.",
)
def command(*, sending: bool, whole: bool) -> None:
    """Check whether this machine and its trackers can work: the verdict, then what is set."""
    console = Terminal()
    env = settings.environment()
    findings = Findings(whole=whole)
    _settings(findings, env)
    _exporters(findings, env)
    _directory(findings, env)
    if whole:
        _packages(findings)
    _checks(findings, env)
    # A test run could not arrive, and would wait for a minute.
    if sending and findings.wrong:
        findings.lines.append("nothing was sent: first fix what is wrong")
    elif sending:
        findings.wrong.extend(send(findings.lines.append, env))
    _print_verdict(
        console, findings.wrong, chosen=sending or bool(chosen_exporters(env))
    )
    _print(console, findings)
    sys.exit(1 if findings.wrong else 0)


def _print(console: Terminal, findings: Findings) -> None:
    """Print what is shown: tables, then lines; empty tables are left out."""
    for table in findings.tables:
        if table.row_count:
            console.print()
            console.print_table(table)
    console.print()
    for line in findings.lines:
        console.print_line(line)
    if not findings.whole:
        console.print()
        console.print_line(
            "`otel-bridge doctor --all` shows every setting, exporter and package",
            "dim",
        )


def _print_verdict(console: Terminal, wrong: Sequence[str], *, chosen: bool) -> None:
    """Print each problem, or that there is none, and that no exporter is *chosen*, which is not an error."""
    for line in wrong:
        console.print_line(f"✗ {line}", "red")
    advice = "no exporter is chosen: set OTEL_BRIDGE_EXPORTERS, e.g. to trackio, or name exporters in init()"
    if wrong and not chosen:
        console.print_line(advice)
    elif not wrong:
        console.print_line(
            "✓ nothing is wrong" if chosen else f"✓ nothing is wrong, but {advice}",
            "green",
        )


def _checks(findings: Findings, env: Mapping[str, str]) -> None:
    """Check tokens and trackers; what its settings keep from a check is reported with them."""
    with contextlib.suppress(ConfigError):
        checks.tokens(findings, env)
    for name in chosen_exporters(env):
        with contextlib.suppress(OtelBridgeError):
            checks.tracker(findings, name, _destination(name, env), env)
            if name != exporter.OTLP:
                chosen = exporter.load(name)
                exporter_settings = chosen.read_settings(env, Path.cwd())
                checks.abilities(findings, name, chosen, exporter_settings)


def _settings(findings: Findings, env: Mapping[str, str]) -> None:
    """Show the settings that are set, or all of them with where each comes from.

    Those that cannot be read are wrong, and variables whose names look like a setting's but are
    none.
    """
    columns = (
        ("setting (-: not set)", "value", "from", "meaning")
        if findings.whole
        else ("setting", "value", "meaning")
    )
    table = plain_table(columns)
    for setting in all_settings():
        is_set = bool(env.get(setting.name, "").strip())
        # Internal ones are set by our own processes, and are of use to a person only then.
        if not is_set and (setting.internal or not findings.whole):
            continue
        cells = [setting.name, _value(findings, setting, env)]
        if findings.whole:
            cells.append("environment" if is_set else "default")
        _add(table, *cells, setting.doc)
    findings.tables.append(table)
    findings.wrong.extend(misspelt(env))


def _value(
    findings: Findings, setting: settings.Setting[Any], env: Mapping[str, str]
) -> str:
    """Return the value of *setting* as it may be shown; one that cannot be read is a problem."""
    raw = env.get(setting.name, "").strip()
    try:
        value = setting.written(setting.read(env)) or raw or "-"
    except ConfigError as exc:
        # All wrong settings at once, not only the first.
        findings.wrong.append(str(exc))
        value = "cannot be read"
    # A secret must not reach a terminal or a log.
    if setting.secret and raw:
        return "set"
    return value


def _exporters(findings: Findings, env: Mapping[str, str]) -> None:
    """Show the chosen exporters, or all of them, and the environment of their bridge.

    A chosen exporter with wrong settings, or of an unknown name, is wrong. One whose package is
    missing here is not, as long as there is another environment in which its bridge can run. What
    is wrong with one that is not chosen is only shown in its place.
    """
    chosen = chosen_exporters(env)
    available = exporter.available()
    table = plain_table(
        ["exporter", *(["chosen"] if findings.whole else []), _DELIVERS_TO]
    )
    lacking: dict[str, str] = {}
    for name in available:
        description, lack, error = _described(name, env)
        # What an exporter that is not chosen lacks is not wrong.
        if name in chosen:
            lacking[name] = lack
            findings.wrong.extend(filter(None, [error]))
        if findings.whole:
            _add(table, name, "yes" if name in chosen else "", description)
        elif name in chosen:
            _add(table, name, description)
    unknown = [name for name in chosen if name not in {*available, exporter.NONE}]
    findings.wrong.extend(map(exporter.unknown, unknown))
    findings.tables.append(table)
    _bridge_environment(findings, env, lacking)


def _described(name: str, env: Mapping[str, str]) -> tuple[str, str, str]:
    """Return what is shown of an exporter, what this environment lacks for it, and what is wrong.

    The last two may be empty.
    """
    try:
        addresses = _destination(name, env)
        places = " ".join(f"{key}={value}" for key, value in addresses.items())
        places = places or _WITHOUT_VARIABLES.get(name, "")
        if name == exporter.OTLP:
            return places, "", ""
        lack = exporter.missing_of(name, exporter.described(name))
    except OtelBridgeError as exc:
        return str(exc), "", str(exc)
    return lack or places, lack, ""


def _bridge_environment(
    findings: Findings, env: Mapping[str, str], lacking: Mapping[str, str]
) -> None:
    """Show in which other Python environment the bridge would run, or what is wrong with it.

    Args:
        findings: Where it is shown.
        env: The environment.
        lacking: Chosen exporter to what this environment lacks for it; empty when nothing is
            missing.
    """
    missing = {name: lack for name, lack in lacking.items() if lack}
    try:
        python = find_python(env, tuple(lacking), missing)
    except ConfigError as exc:
        findings.wrong.append(str(exc))
        return
    if python is not None:
        line = f"the bridge of a program here runs in another environment: {python.path} (otel-bridge {python.version})"
        findings.lines.append(line)


def chosen_exporters(env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the exporters that the environment chooses for any signal; empty without any.

    An OTLP endpoint alone chooses ``otlp``, as it does for a stock SDK.
    """
    lists = (*OF_SIGNALS, settings.EXPORTERS)
    names = tuple(
        dict.fromkeys(name for setting in lists for name in setting.read(env))
    )
    if not names and destination.signals_with_endpoint(env):
        return (exporter.OTLP,)
    return names


def _destination(name: str, env: Mapping[str, str]) -> dict[str, str]:
    """Return where the exporter delivers; raises `OtelBridgeError` when its settings are wrong."""
    if name == exporter.OTLP:
        return {
            signal: destination.endpoint_for(signal, env).address
            for signal in destination.signals_sent(env)
        }
    chosen = exporter.described(name).read_settings(env, Path.cwd())
    return dict(exporter.destination_of(chosen))


def _directory(findings: Findings, env: Mapping[str, str]) -> None:
    """Show where run folders are made, and check its space and permissions.

    Nothing is created. Less than 1 GiB of free space is wrong: a run could soon drop rows.

    Raises:
        ConfigError: The name of the directory is not UTF-8, which ends the command: nothing could
            be stored there.
    """
    base = find_base(env, Path.cwd())
    # The folder may not exist yet: its disk is that of the nearest one above.
    # Not `Path.exists`, which raises `PermissionError` below a folder of another user.
    existing = next(filter(os.path.exists, (base.path, *base.path.parents)))
    free_bytes = shutil.disk_usage(existing).free
    findings.lines.append(
        f"run folders: {base.path} ({free_bytes / 2**30:.1f} GiB free)"
    )
    if base.file_system:
        findings.lines.append(
            f"  the requested folder is on {base.file_system}, a network file system"
        )
    if not os.access(existing, os.W_OK | os.X_OK):
        findings.wrong.append(
            f"{existing} is not writable; make it yours or set OTEL_BRIDGE_DIR to a writable folder"
        )
    if free_bytes < _MIN_FREE_BYTES:
        lack = f"{existing} has {free_bytes >> 20} MiB left; free some, or set OTEL_BRIDGE_DIR to another disk"
        findings.wrong.append(lack)


def _add(table: Table, *cells: str) -> None:
    table.add_row(*(Text(shown(cell)) for cell in cells))


def _packages(findings: Findings) -> None:
    """Show the versions of what otel-bridge works with, for a report of a problem.

    An untested version is not a problem by itself: `checks.abilities` probes what works. An exporter
    that cannot be imported is wrong only if it is chosen, and left out here.
    """
    tested_with = dict.fromkeys(_PACKAGES, "")
    for name in exporter.available():
        with contextlib.suppress(OtelBridgeError):
            described = exporter.described(name)
            tested_with |= dict.fromkeys(described.requires, described.tested_with)
    table = plain_table(["package", "version", "tested with"])
    _add(table, "python", sys.version.split()[0], "")
    for name, tested_versions in tested_with.items():
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            version = "not installed"
        _add(table, name, version, tested_versions)
    findings.tables.append(table)
