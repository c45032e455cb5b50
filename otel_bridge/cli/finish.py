"""``otel-bridge finish``: a person's word on how a run ended whose processes cannot say it."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Final

import click
from rich.console import Console

from otel_bridge.cli.drain import Drains
from otel_bridge.cli.rollouts import chosen_folders
from otel_bridge.cli.status_source import folders_of
from otel_bridge.journal.ask import ask, is_asked
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.locks import probe
from otel_bridge.journal.report import Report, read_report
from otel_bridge.records import Status

_WAIT_S: Final = 60.0
_PAUSE_S: Final = 0.1


@click.command("finish")
@click.argument("run")
@click.argument("directory", required=False, type=click.Path(path_type=Path))
@click.option("--status", type=click.Choice([one.value for one in Status]), default="finished", show_default=True)
def command(run: str, directory: Path | None, status: str) -> None:
    """End RUN in its trackers: its name, its id, the beginning of that, or its folder.

    For a run whose processes are gone without a word, or on machines that no longer answer. What a process said itself
    holds. Data that comes later opens the run again. Where no bridge runs, this one delivers what is left first.
    """
    own = folders_of(Path(run)) if directory is None and os.path.isdir(os.path.join(run, "segments")) else []
    folders = own or chosen_folders(directory, run)
    if len(folders) > 1:
        names = ", ".join(folder.run_id for folder in folders)
        raise click.ClickException(f"{run!r} may be {names}; write more of the id")
    folder = folders[0]
    console = Console(highlight=False)
    before = time.time_ns()
    ask(folder, "finish", status=status)
    if not _answered(folder, before):
        sys.exit(Drains(console).drain(folder))
    report = read_report(folder)
    if report is None or report.status == "running":
        raise click.ClickException(f"{folder.run_id}: its bridge did not end the run yet; look at otel-bridge status")
    console.print(_said(folder, report, status), soft_wrap=True)


def _answered(folder: RunFolder, since_unix_ns: int) -> bool:
    """Wait for the bridge that holds the folder; ``False``: there is none, and nobody took what was asked."""
    deadline = time.monotonic() + _WAIT_S
    while time.monotonic() < deadline:
        taken, report = not is_asked(folder), read_report(folder)
        if taken and report is not None and report.status != "running" and report.time_unix_ns > since_unix_ns:
            return True
        if not taken and not probe(folder.lock_path):
            return False
        time.sleep(_PAUSE_S)
    return True


def _said(folder: RunFolder, report: Report, status: str) -> str:
    line = f"{report.project}/{report.name} ({folder.run_id}) {report.status}"
    if report.status != status:
        line += ": its processes said so themselves, and that holds"
    waiting = [name for name, one in report.exporters.items() if one.written < report.position]
    return line + (f"; still to be delivered to {', '.join(waiting)}" if waiting else "")
