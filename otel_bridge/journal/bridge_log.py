"""Reads the last line of a bridge's log, which gives the reason why a run is not delivered."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from otel_bridge.journal.files import open_regular
from otel_bridge.text.printable import shown

NOT_SERVED: Final = " ends, the run is not served: "
"""Text before the reason in the last line of a bridge that could not serve its run."""
_END_BYTES: Final = 64 << 10


def last_line(log: Path) -> str:
    """Return the last line of the log at *log* with the log's path, or the reason why there is none."""
    try:
        return end_of_log(log) or f"{log} is empty; was its process killed?"
    except OSError as exc:
        return f"{log}: {exc.strerror}"


def end_of_log(log: Path) -> str:
    """Return the last line of the log at *log* with the log's path; empty when nothing was written.

    Raises:
        OSError: There is no log, or it cannot be read.
    """
    with open(open_regular(log), "rb") as file:
        file.seek(max(os.fstat(file.fileno()).st_size - _END_BYTES, 0))
        lines = file.read(_END_BYTES).decode("utf-8", "replace").strip().splitlines()
    return f"{shown(lines[-1].strip())} (the end of {log})" if lines else ""


def reason_of_end(log: Path) -> str:
    """Return the reason that the bridge gave in its log at *log* for not serving its run; empty without one."""
    with contextlib.suppress(OSError):
        end = end_of_log(log)
        _, found, reason = end.partition(NOT_SERVED)
        return reason if found else ""
    return ""
