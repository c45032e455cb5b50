"""Commands that messages name -> text that works in the user's shell."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path

# Assignments before the program (their values as `shlex.quote` writes them), the program, its
# arguments; no address.
_COMMAND = re.compile(
    r"((?:\w+=(?:'[^']*'|\"[^\"]*\"|[^\s'\"])*\s+)*)([\w-]+)(\s.*)?", re.DOTALL
)


def command_line(command: str, *arguments: str | os.PathLike[str]) -> str:
    """Return the `runnable` line of ``otel-bridge`` *command* with *arguments*, each quoted where a shell needs it."""
    words = ["otel-bridge", *command.split()]
    for argument in arguments:
        words.append(os.fspath(argument))
    return runnable(shlex.join(words))


def runnable(command: str) -> str:
    """Return *command*, with the path of its program if only the folder of this Python has it.

    A program that was started by its path (``.venv/bin/python train.py``) has no activated
    environment, in which a shell would find ``trackio show …``. An address, and a program that is
    in no folder, is returned as it is.
    """
    match = _COMMAND.fullmatch(command)
    if match is None:
        return command
    assignments, program, arguments = match.groups(default="")
    beside = Path(sys.executable or "-").parent / program
    if not _runs(beside):
        return command
    for folder in os.get_exec_path():
        if _runs(Path(folder, program)):
            return command
    return f"{assignments}{shlex.quote(str(beside))}{arguments}"


def _runs(path: Path) -> bool:
    """Return whether this user can run the file at *path*. Folders may be executable too."""
    return path.is_file() and os.access(path, os.X_OK)
