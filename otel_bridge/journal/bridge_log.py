"""The end of a bridge's log: why a run is not delivered, in the bridge's own words."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from otel_bridge.journal.files import open_regular
from otel_bridge.text.printable import shown

NOT_SERVED: Final = " ends, the run is not served: "
"""Stands in the last line of a bridge that could not serve its run, before the reason."""
_END_BYTES: Final = 64 << 10


def last_line(log: Path) -> str:
    """Return the last line of the log at *log* and where it stands, or why there is none."""
    try:
        return end_of_log(log) or f"{log} is empty; was its process killed?"
    except OSError as exc:
        return f"{log}: {exc.strerror}"


def end_of_log(log: Path) -> str:
    """Return the last line of the log at *log* and where it stands; empty when nothing was written.

    Raises:
        OSError: There is no log, or it cannot be read.
    """
    with open(open_regular(log), "rb") as file:
        file.seek(max(os.fstat(file.fileno()).st_size - _END_BYTES, 0))
        lines = file.read(_END_BYTES).decode("utf-8", "replace").strip().splitlines()
    return f"{shown(lines[-1].strip())} (the end of {log})" if lines else ""


def reason_of_end(log: Path) -> str:
    """Return why the bridge that wrote the log at *log* ended without serving its run; empty when it gave no reason."""
    with contextlib.suppress(OSError):
        end = end_of_log(log)
        _, found, reason = end.partition(NOT_SERVED)
        return reason if found else ""
    return ""
