"""What is said of a run folder that no bridge has read yet: what waits there, whether one is starting, what to do."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Final, NamedTuple

from otel_bridge.journal.folder import RunFolder

_STARTING_S: Final = 10
"""How long a bridge may take to hold its lock, on a busy machine: half a second on an idle one."""


class Unread(NamedTuple):
    """What is said, and the command that comes next."""

    says: str
    command: str


def unread(folder: RunFolder, waiting_bytes: int, *, served: bool) -> Unread:
    """Return what is said of *folder*, of whose segments nobody has read anything; *served*: its lock is held."""
    if served or _starting(folder):
        says = f"{folder.run_id}: its bridge is starting, {waiting_bytes:,} bytes wait"
        return Unread(says, f"otel-bridge status --watch {folder.path}")
    says = f"{folder.run_id}: no bridge has read it yet, {waiting_bytes:,} bytes wait"
    with contextlib.suppress(OSError):  # held: none was ever started
        if line := _end_of(folder.log_path):
            says += f"; the last one said: {line}"
    return Unread(says, f"otel-bridge drain {folder.path}")


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
    lines = log.read_text("utf-8", "replace").strip().splitlines()
    return f"{lines[-1].strip()} (the end of {log})" if lines else ""
