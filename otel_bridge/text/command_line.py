"""Commands that messages name -> text that a POSIX shell reads as the same arguments. Pure."""

from __future__ import annotations

import os
import shlex


def command_line(command: str, *arguments: str | os.PathLike[str]) -> str:
    """Return the line that runs ``otel-bridge`` *command* with *arguments*, each quoted where a shell needs it."""
    return shlex.join(("otel-bridge", *command.split(), *(os.fspath(one) for one in arguments)))
