"""Imports otel-bridge once, and forks a process for each command or program: ``python server.py SOCKET``.

It prints a line when it takes commands, and ends with its standard input: with the process that
started it, also when that was killed.

The command ``[PROGRAM.py, ARGUMENT…]`` is a program, any other one is ``otel-bridge``. Each has its
own process, arguments, environment, working folder and standard streams, as if a shell had started
it; only what Python imports at the start is there already. Nothing that is
imported here may read the environment at import, nor start a thread.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import socket
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

_IMPORTED = (
    "otel_bridge.cli.main",
    "otel_bridge.cli.drain",
    "otel_bridge.cli.dead_letters",
    "otel_bridge.cli.doctor.command",
    "otel_bridge.cli.finish",
    "otel_bridge.cli.rollouts.command",
    "otel_bridge.cli.run.command",
    "otel_bridge.cli.status.command",
    "otel_bridge.cli.timeline.command",
    "otel_bridge.emit.api",
    "otel_bridge_collector.receiver",
    "otel_bridge_collector.http.server",
    "otel_bridge_collector.grpc_server",
    "otel_bridge_local",
)
_REQUEST_BYTES = 1 << 20


def serve(path: str) -> dict[str, Any]:
    """Fork for each connection until the standard input ends; return the request in the process of a command."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path)
    listener.listen(8)
    print("ready", flush=True)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # so that nobody need wait for them
    while listener in select.select([listener, sys.stdin], [], [])[0]:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return _started(connection)
        connection.close()
    sys.exit()


def _started(connection: socket.socket) -> dict[str, Any]:
    """Fork the command and return its request there; this process, its parent, reports how it ended."""
    text, descriptors, _, _ = socket.recv_fds(connection, _REQUEST_BYTES, 3)
    pid = os.fork()
    if pid == 0:
        connection.close()
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
            os.close(descriptor)
        return dict(json.loads(text))
    for descriptor in descriptors:
        os.close(descriptor)
    connection.send(str(pid).encode())
    _, status = os.waitpid(pid, 0)
    connection.send(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def become(request: dict[str, Any]) -> None:
    """Take the place that the command's caller chose."""
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.argv = request["command"]
    # They live as long as the process, so that nothing closes them.
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(  # noqa: SIM115
        2, "w", encoding="utf-8", errors="backslashreplace", closefd=False, buffering=1
    )


def main_module(path: str) -> ModuleType:
    """Make the module ``__main__`` of the program *path*, which it finds as if Python had begun with it."""
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    module = ModuleType("__main__")
    module.__file__ = path
    sys.modules["__main__"] = module
    return module


if __name__ == "__main__":
    del sys.path[0]  # this folder, which the script of a command does not have
    for name in _IMPORTED:
        importlib.import_module(name)
    become(serve(sys.argv[1]))
    if sys.argv[0].endswith(".py"):
        this = sys.modules["__main__"]  # lives on, since its code runs
        code = compile(Path(sys.argv[0]).read_bytes(), sys.argv[0], "exec")
        exec(code, vars(main_module(sys.argv[0])))
    else:
        from otel_bridge.cli import main

        sys.exit(main())
