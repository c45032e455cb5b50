"""Runs the plain bridge as a process, which serves one run folder and then exits.

The first ``init()`` that finds the folder's lock free starts it detached; its output is the folder's ``bridge.log``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Final

from otel_bridge.bridge.options import BridgeOptions
from otel_bridge.bridge.serving.process_limits import collect_less_often
from otel_bridge.bridge.supervisor import BridgeSupervisor
from otel_bridge.errors import ConfigError
from otel_bridge.journal.folder import run_folders
from otel_bridge.journal.report import NOT_SERVED
from otel_bridge.settings import environment

LOG_BYTES: Final = 4 << 20
STOP_S: Final = 5.0
LONGEST_STOP_S: Final = 60
"""Seconds after a signal until the kernel ends the process, whatever it waits for; committed records stay."""


def main(argv: list[str]) -> int:
    """Serve the run folder ``argv[0]``; return 0, or 2 when a setting cannot be used."""
    _bound_log()
    collect_less_often()
    path = Path(argv[0])
    try:
        options = BridgeOptions.read(environment(), _working_folder(path))
    except ConfigError as exc:
        say(f"{path.name}: {exc}")
        return 2
    folders = [folder for folder in run_folders(path.parent) if folder.path == path]
    host = BridgeSupervisor(path.parent, options, folders=lambda: folders, until_done=True, say=say)

    def stop(_number: int, _frame: FrameType | None) -> None:
        signal.alarm(LONGEST_STOP_S)  # this thread may be in a call of a disk that hangs, which Python cannot interrupt
        host.request_stop(STOP_S)

    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)
    say(f"{path.name}: the bridge {os.getpid()} begins")
    host.serve()
    rest = host.progress().get(folders[0].run_id) if folders else None
    say(f"{path.name}: the bridge {os.getpid()}" + (f"{NOT_SERVED}{rest.reason}" if rest and rest.reason else " ends"))
    if host.hanging:
        say(f"{path.name}: the writers of {', '.join(host.hanging)} hang and are left")
        os._exit(0)
    return 0


def say(line: str) -> None:
    """Write one line to the log."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"{stamp} {line}\n")
        sys.stderr.flush()


def _working_folder(path: Path) -> Path:
    # The folder in which the program started the bridge: relative paths of trackers are relative to it.
    try:
        return Path.cwd()
    except OSError:
        return path


def _bound_log() -> None:
    """Empty the log when it has grown large."""
    with contextlib.suppress(OSError):
        if os.fstat(2).st_size > LOG_BYTES:
            os.ftruncate(2, 0)
