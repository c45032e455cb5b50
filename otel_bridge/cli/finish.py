"""``otel-bridge finish``: mark a run as ended if its processes cannot report their end.

An `OtelBridgeError` that passes ends the command with one line and exit code 1, a `WrongCallError`
with 2 (`cli.main`).
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import click

from otel_bridge.cli.drain import Drains
from otel_bridge.cli.output import work_without_output
from otel_bridge.cli.run_folders import chosen_folders, only_one
from otel_bridge.cli.terminal import Terminal
from otel_bridge.journal.control import is_requested, send_control
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.locks import probe
from otel_bridge.journal.report import Report, read_report
from otel_bridge.records import Status
from otel_bridge.text.wait_display import Amount

_WAIT_S = 60.0
_PAUSE_S = 0.1


@click.command("finish", epilog="Example: otel-bridge finish ppo --status failed")
@click.argument("run")
@click.argument(
    "directory", required=False, metavar="[DIR]", type=click.Path(path_type=Path)
)
@click.option(
    "--status",
    type=click.Choice([member.value for member in Status]),
    default="finished",
    show_default=True,
    help="Status of the processes that have not reported one.",
)
def command(run: str, directory: Path | None, status: str) -> None:
    """Mark RUN as ended in its trackers.

    RUN is its name, its id, the beginning of its id, or its folder.

    Use it for a run whose processes crashed without reporting an end, or whose machines no longer
    answer. A status that a process reported itself is kept. Data that arrives later reopens the
    run. If no bridge runs, this command first delivers the remaining records. DIR holds run
    folders, is one, or is the folder above (default: OTEL_BRIDGE_DIR, else .otel-bridge here).
    """
    work_without_output()
    name: str | None = run
    # Not of an empty RUN, which would be the working folder.
    if directory is None and run and os.path.isdir(os.path.join(run, "segments")):
        directory = Path(run)
        name = None
    (folder,) = only_one(chosen_folders(directory, name))
    console = Terminal()
    # A newer version would carry out later what this one could not.
    folder.check_format()
    # Before the request: a report from before it says nothing about the answer. A request that
    # cannot be written (`JournalError`: a folder of another user, a full disk) ends the command.
    request_ns = time.time_ns()
    send_control(folder, "finish", status=status)
    if not _answered(console, folder, request_ns):
        sys.exit(*Drains(console).drain([folder]))
    report = read_report(folder)
    if report is None or report.status == "running":
        raise click.ClickException(
            f"{folder.run_id}: its bridge has not ended the run yet; look at otel-bridge status"
        )
    console.print_line(_result_line(folder, report, status))


def _answered(console: Terminal, folder: RunFolder, since_unix_ns: int) -> bool:
    """Wait until the folder's bridge has ended the run, at most `_WAIT_S`.

    Return ``False`` when no bridge can do it: the request is still there, and no process holds the
    folder. ``True`` after the time as well; the caller sees by the report what has become of it.
    The report must be newer than the request, because an older one may show an earlier end.

    Raises:
        JournalError: Whether the folder is held cannot be asked, as on a file system without locks.
    """
    deadline = time.monotonic() + _WAIT_S
    with console.wait_display() as display:
        while time.monotonic() < deadline:
            is_taken = not is_requested(folder)
            report = read_report(folder)
            if (
                is_taken
                and report is not None
                and report.status != "running"
                and report.time_unix_ns > since_unix_ns
            ):
                return True
            # The request is still there and no bridge that would carry it out.
            if not is_taken and not probe(folder.lock_path):
                return False
            display.show(lambda: {"the bridge's answer": Amount()})
            time.sleep(_PAUSE_S)
    return True


def _result_line(folder: RunFolder, report: Report, status: str) -> str:
    """Return the run with its status, why it may differ from *status*, and which trackers lack records."""
    line = f"{report.project}/{report.name} ({folder.run_id}) {report.status}"
    if report.status != status:
        line += ": its processes reported this status themselves, and it is kept"
    waiting: list[str] = []
    for name, exporter in report.exporters.items():
        if exporter.written < report.position:
            waiting.append(name)
    if waiting:
        line += f"; still to be delivered to {', '.join(waiting)}"
    return line
