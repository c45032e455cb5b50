"""Asks the server of commands for a process; a command that depends on how Python starts has a Python of its own."""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from support.waiting import ANSWER_S

_START_OF_PYTHON = ("PYTHON", "LC_", "LD_", "OTEL_BRIDGE_CAPTURE", "COVERAGE")
"""Beginnings of variables that are read while Python starts."""
_HARMLESS = {"PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"}
"""The server sets the path; the others change nothing that a test looks at."""
_READ_AT_IMPORT = ("OTEL_PROPAGATORS", "OTEL_PYTHON_")
"""Beginnings of variables that the OTel API reads when it is imported."""


def run_command(
    command: Sequence[str], *, cwd: Path, env: Mapping[str, str], timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """Run ``[…/otel-bridge, ARGUMENT…]`` or ``[PROGRAM.py, ARGUMENT…]`` to its end, its output captured.

    Raises:
        subprocess.TimeoutExpired: It ran longer; it was killed.
    """
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection,
        tempfile.TemporaryFile() as output,
        tempfile.TemporaryFile() as errors,
        open(os.devnull, "rb") as nothing,
    ):
        connection.settimeout(ANSWER_S)
        connection.connect(_server())
        request = {"command": list(command), "cwd": str(cwd), "env": dict(env)}
        descriptors = [file.fileno() for file in (nothing, output, errors)]
        socket.send_fds(connection, [json.dumps(request).encode()], descriptors)
        pid = int(connection.recv(64))
        connection.settimeout(timeout_s)
        try:
            code = int(connection.recv(64))
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            raise subprocess.TimeoutExpired(list(command), timeout_s) from None
        texts: list[str] = []
        for file in (output, errors):
            file.seek(0)
            texts.append(file.read().decode("utf-8"))
    return subprocess.CompletedProcess(list(command), code, *texts)


def starts_plainly(env: Mapping[str, str]) -> bool:
    """Whether a process with *env* starts as any other one."""
    folders = map(Path, filter(None, env.get("PYTHONPATH", "").split(os.pathsep)))
    if any((folder / "sitecustomize.py").exists() for folder in folders):
        return False
    return env.get("LANG", "C.UTF-8").endswith("UTF-8") and not any(
        name.startswith(_START_OF_PYTHON + _READ_AT_IMPORT)
        for name in env.keys() - _HARMLESS
    )


def is_plain(program: Path) -> bool:
    """Whether *program* is a script that does not look at what is imported, or at how it is."""
    if program.suffix != ".py":
        return False
    code = program.read_text("utf-8")
    return "sys.modules" not in code and "find_spec" not in code


@cache
def _server() -> str:
    """Start the server of this worker, which ends with it, however it ends; return its socket."""
    folder = tempfile.TemporaryDirectory(prefix="commands")
    path = f"{folder.name}/socket"
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).parent / "server.py"), path],
        stdin=subprocess.PIPE,  # ends with this process, also when that is killed
        stdout=subprocess.PIPE,
    )
    atexit.register(folder.cleanup)
    atexit.register(process.kill)
    assert process.stdout is not None
    assert process.stdout.readline(), "the server of commands did not start"
    return path
