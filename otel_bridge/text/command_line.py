"""Commands that messages name -> text that works in the user's shell."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys

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
    in no folder, is returned as it is. A folder of ``PATH`` that this user may not read has no
    program, as for a shell.
    """
    match = _COMMAND.fullmatch(command)
    if match is None:
        return command
    assignments, program, arguments = match.groups(default="")
    # Without a path (an embedded interpreter) no folder is searched.
    beside = shutil.which(program, path=os.path.dirname(sys.executable or ""))
    if beside is None or shutil.which(program):
        return command
    return f"{assignments}{shlex.quote(beside)}{arguments}"
