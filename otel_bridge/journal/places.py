"""Where a run is looked at: addresses, and commands that a shell at this place finds.

The bridge writes a tracker's bare command into the report (``trackio show …``). A program that was started by its path
(``.venv/bin/python train.py``) has no activated environment, and there that command would not be found.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from otel_bridge.journal.report import Report

# Assignments before the program (their values as `shlex.quote` writes them), the program, its arguments; no address.
_COMMAND = re.compile(r"((?:\w+=(?:'[^']*'|\"[^\"]*\"|[^\s'\"])*\s+)*)([\w-]+)(\s.*)?", re.DOTALL)


def places(report: Report) -> Mapping[str, str]:
    """Return where each exporter's run is looked at, by name; an exporter without such a place is left out."""
    known = {**report.former, **report.exporters}
    return {name: one.url or runnable(one.view) for name, one in known.items() if one.url or one.view}


def runnable(command: str) -> str:
    """Return *command*, its program by path where only the folder of this Python has it; anything else as it is."""
    found = _COMMAND.fullmatch(command)
    if found is None:
        return command
    assignments, program, arguments = found.groups(default="")
    beside = Path(sys.executable or "-").parent / program
    if not _runs(beside) or any(_runs(Path(folder, program)) for folder in os.get_exec_path()):
        return command
    return f"{assignments}{shlex.quote(str(beside))}{arguments}"


def _runs(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)
