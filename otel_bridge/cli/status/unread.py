"""Describes a run folder that no bridge has read yet: what waits there, and what to do."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import NamedTuple

from otel_bridge.cli.run_folders import headers_of
from otel_bridge.cli.status.run_state import RunState
from otel_bridge.emit.console import drain_command
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.report import end_of_log
from otel_bridge.text.command_line import command_line
from otel_bridge.text.printable import printable

_STARTING_S = 10
"""Seconds that a starting bridge may take to lock the folder on a busy machine.

An idle machine needs half a second.
"""


class Unread(NamedTuple):
    """Holds a message about an unread run, and the command to run next."""

    message: str
    command: str


def unread(state: RunState, *, here: bool = True) -> Unread:
    """Return the message about a run that no bridge has reported on yet.

    Args:
        state: The run's state.
        here: Whether its folder is on this machine, so that its files can be read.
    """
    folder = RunFolder.at(Path(state.folder))
    run = _run_of(state, folder, is_local=here)
    waits = f"{state.bytes.get('segments', 0):,} bytes wait"
    watch = command_line("status --watch", folder.path)
    if here and _starting(folder):
        return Unread(f"{run}: its bridge is starting, {waits}", watch)
    log_end = ""
    # A service keeps no log per run, and an offline run never had a bridge.
    with contextlib.suppress(OSError):
        if here and (line := end_of_log(folder.log_path)):
            log_end = f"; its bridge's log ends: {line}"
    if state.bridge_alive:
        return Unread(
            f"{run}: its bridge has not reported on it yet, {waits}{log_end}", watch
        )
    drain = drain_command(folder, chosen=_names_exporters(folder))
    return Unread(f"{run}: no bridge has read it yet, {waits}{log_end}", drain)


def _run_of(state: RunState, folder: RunFolder, *, is_local: bool) -> str:
    """Return project, name and id of a run; the id alone where no segment here says more."""
    headers = headers_of(folder) if is_local else []
    for header in filter(None, headers):
        return printable(f"{header.project}/{header.run_name} ({state.run_id})")
    return printable(state.run_id)


def _names_exporters(folder: RunFolder) -> bool:
    """Return whether a segment of *folder* names an exporter, or a header cannot be read.

    An unreadable one may name some, and a command that names another would leave them out.
    """
    headers = headers_of(folder)
    return not headers or any(
        header is None or any(header.exporters.values()) for header in headers
    )


def _starting(folder: RunFolder) -> bool:
    """Return whether a bridge is starting: its log is empty and new; ``False`` without a log."""
    # Who starts a bridge creates its log: the only trace of one whose interpreter still loads.
    with contextlib.suppress(OSError):
        status = folder.log_path.stat()
        return not status.st_size and time.time() - status.st_mtime < _STARTING_S
    return False
