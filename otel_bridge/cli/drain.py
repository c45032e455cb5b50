"""``otel-bridge drain``: deliver what run folders hold, each in a process of its own, four at a time."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import click
from rich.console import Console

from otel_bridge import settings
from otel_bridge.bridge.garbage import collect_less_often
from otel_bridge.bridge.host import Host
from otel_bridge.bridge.options import BridgeOptions
from otel_bridge.bridge.rest import Remaining, Rest
from otel_bridge.cli.closing import remains
from otel_bridge.cli.status_source import folders_of, no_run_folder, runs_below
from otel_bridge.cli.tables import show
from otel_bridge.emit.exporters import choose
from otel_bridge.emit.launch import bridge_environment
from otel_bridge.exporter import NONE, OTLP, SIGNALS, load
from otel_bridge.journal.folder import RunFolder, base_dir
from otel_bridge.journal.life import this_host
from otel_bridge.journal.report import read_report

AT_A_TIME: Final = 4
_FRESH_S: Final = 60.0
_STOP_S: Final = 10.0


@click.command("drain")
@click.argument("directories", nargs=-1, type=click.Path(path_type=Path, exists=True))
@click.option("--exporters", default="", help="Deliver to these instead of those that the folders name.")
@click.option("--folder", "single", type=click.Path(path_type=Path), hidden=True)
def command(directories: tuple[Path, ...], exporters: str, single: Path | None) -> None:
    """Deliver what run folders hold; exits 0 when all of it is written and ended.

    DIRECTORIES hold run folders or are run folders (default: OTEL_BRIDGE_DIR, else .otel-bridge here). Each is
    delivered to where its programs wanted it, unless --exporters or the trackers' own variables say otherwise;
    credentials are those of this command.
    """
    if single is not None:
        sys.exit(_drain_one(single, settings.names(exporters)))
    for name in settings.names(exporters):
        if name not in {OTLP, NONE}:
            load(name)
    named = directories or (base_dir(settings.environment(), Path.cwd()),)
    found = {directory: folders_of(directory) for directory in named}
    console = Console(highlight=False)
    for directory in (directory for directory, folders in found.items() if not folders):
        if runs_below(directory) is not None:
            raise click.ClickException(no_run_folder(directory))
        console.print(f"{directory}: no run folder here, nothing to deliver", soft_wrap=True)
    folders = [folder for of_one in found.values() for folder in of_one]
    if not folders:
        return
    drains = Drains(console, exporters)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, drains.stop)
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        codes = list(pool.map(drains.drain, folders))
    sys.exit(1 if any(codes) else 0)


class Drains:
    """Drains folders, each in a process of its own: a tracker's folder and credentials are a process's.

    Args:
        console: Where each run is shown when its process has ended.
        exporters: Deliver to these, separated by commas; empty: to those that the folder names.
    """

    def __init__(self, console: Console, exporters: str = "") -> None:
        self._console = console
        self._options = ["--exporters", exporters] if exporters else []
        self._running: list[subprocess.Popen[str]] = []
        self._stopped = threading.Event()

    def drain(self, folder: RunFolder) -> int:
        """Drain one folder; returns the exit code of its process. From any thread."""
        code = "import sys; from otel_bridge.cli import main; main(sys.argv[1:])"
        command = [sys.executable, "-c", code, "drain", "--folder", str(folder.path), *self._options]
        done = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)
        self._running.append(done)
        if self._stopped.is_set():
            done.terminate()
        said = done.communicate()[0].strip()
        self._running.remove(done)
        report = read_report(folder)
        if report is not None:
            show(self._console, folder.run_id, report)
        if done.returncode:
            why = said.splitlines()[-1] if said else f"exit code {done.returncode}"
            self._console.print(f"{folder.path}: not all is delivered: {why}", soft_wrap=True)
        return done.returncode

    def stop(self, _number: int, _frame: object) -> None:
        """SIGTERM, SIGINT: no process of ours goes on alone; each commits and closes its writers, the rest remains."""
        self._stopped.set()
        for process in self._running.copy():
            process.terminate()


def _drain_one(path: Path, exporters: Sequence[str]) -> int:
    """Deliver one folder in this process; prints why something remains; returns 0 when nothing does."""
    path = path.resolve()
    found = [folder for folder in folders_of(path) if folder.path == path]
    if not found:
        click.echo(f"{path} is no run folder")
        return 1
    folder = found[0]
    foreign = _foreign_holder(folder)
    if foreign:
        click.echo(f"a bridge on {foreign} serves it; run drain there, or wait until that bridge has ended")
        return 1
    collect_less_often()
    host = Host(path.parent, _options(folder, exporters), folders=lambda: found, until_done=True, say=_say)

    def stop(_number: int, _frame: object) -> None:
        host.request_stop(_STOP_S)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    host.start()
    remaining = _waited(host, folder)
    host.stop(_STOP_S)
    now = host.progress().get(folder.run_id, remaining)
    why = remains(read_report(folder), now, host.hanging)
    if why:
        click.echo(why)
    sys.stdout.flush()
    code = 1 if why else 0
    if host.hanging:
        os._exit(code)  # a writer that hangs must not keep us
    return code


def _options(folder: RunFolder, exporters: Sequence[str]) -> BridgeOptions:
    env = settings.environment()
    cwd = Path.cwd()
    read = BridgeOptions.read(bridge_environment(env), cwd)
    given = _given(exporters, env, cwd)
    return dataclasses.replace(
        read,
        places=dataclasses.replace(read.places, from_segments=True),
        exporters=given,
        closing=True,
        takeover=True,
        exclusive=_is_shared(folder),
    )


def _given(exporters: Sequence[str], env: Mapping[str, str], cwd: Path) -> Mapping[str, tuple[str, ...]] | None:
    """Return the exporters that the call or its environment names; ``None``: the folder decides."""
    if exporters:
        return dict.fromkeys(SIGNALS, tuple(exporters))
    by_signal = choose(None, env, cwd).by_signal
    return by_signal if any(by_signal.values()) else None


def _waited(host: Host, folder: RunFolder) -> Remaining | None:
    """Wait until all is delivered, or what is not cannot be now, or only living processes keep the run open."""
    while not host.wait(1.0):
        remaining = host.progress().get(folder.run_id)
        if remaining is None or remaining.rest is not Rest.BUSY or remaining.unread or not remaining.living:
            continue
        if all(_settled(one.state, one.written, remaining.position) for one in remaining.exporters.values()):
            return remaining
    return host.progress().get(folder.run_id)


def _settled(state: str, written: int, position: int) -> bool:
    return state == "blocked" or written >= position


def _foreign_holder(folder: RunFolder) -> str:
    """Return the other machine whose bridge has the folder and gave a sign of life within a minute."""
    holder = folder.holder()
    if holder is None or holder.boot_id == this_host().boot_id:
        return ""
    return holder.host if time.time() - holder.heartbeat_unix_ns / 1e9 < _FRESH_S else ""


def _is_shared(folder: RunFolder) -> bool:
    holder = folder.holder()
    return holder is not None and holder.boot_id != this_host().boot_id


def _say(line: str) -> None:
    click.echo(line, err=True)
