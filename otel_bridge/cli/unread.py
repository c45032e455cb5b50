"""What is said of a run folder that no bridge has read yet: what waits there, whether one is starting, what to do."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Final, NamedTuple

from otel_bridge.journal.folder import RunFolder

_STARTING_S: Final = 10
"""How long a bridge may take to hold its lock, on a busy machine: half a second on an idle one."""


_END_BYTES: Final = 64 << 10


class Unread(NamedTuple):
    """What is said, and the command that comes next."""

    says: str
    command: str


def unread(run_id: str, folder: RunFolder, waiting_bytes: int, *, served: bool, here: bool = True) -> Unread:
    """Return what is said of a run of which no bridge has told anything yet.

    Args:
        run_id: Its id.
        folder: Its folder.
        waiting_bytes: The size of its segments.
        served: Its lock is held.
        here: The folder is one of this machine, and so is what lies in it.
    """
    waits = f"{waiting_bytes:,} bytes wait"
    watch, drain = f"otel-bridge status --watch {folder.path}", f"otel-bridge drain {folder.path}"
    if here and _starting(folder):
        return Unread(f"{run_id}: its bridge is starting, {waits}", watch)
    said = ""
    with contextlib.suppress(OSError):  # a service has no log of each run, and a run that is held never had a bridge
        if here and (line := _end_of(folder.log_path)):
            said = f"; its bridge's log ends: {line}"
    if served:
        return Unread(f"{run_id}: its bridge has told nothing of it yet, {waits}{said}", watch)
    return Unread(f"{run_id}: no bridge has read it yet, {waits}{said}", drain)


def last_line(log: Path) -> str:
    """Return the last line of a bridge's log, or why there is none."""
    try:
        return _end_of(log) or f"{log} is empty; was its process killed?"
    except OSError as exc:
        return f"{log}: {exc.strerror}"


def _starting(folder: RunFolder) -> bool:
    # Whoever starts a bridge makes its log: the one trace of a bridge whose interpreter is still loading.
    with contextlib.suppress(OSError):
        status = folder.log_path.stat()
        return not status.st_size and time.time() - status.st_mtime < _STARTING_S
    return False


def _end_of(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(os.fstat(file.fileno()).st_size - _END_BYTES, 0))
        lines = file.read(_END_BYTES).decode("utf-8", "replace").strip().splitlines()
    return f"{lines[-1].strip()} (the end of {log})" if lines else ""
