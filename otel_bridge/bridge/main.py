"""Runs the plain bridge as a process, which serves one run folder, or the runs of one process, and then exits.

The first ``init()`` that finds the folder's lock free starts it detached; its output is the
folder's ``bridge.log``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType

from otel_bridge.bridge.options import BridgeOptions
from otel_bridge.bridge.serving.companions import LOG_BYTES, Companions
from otel_bridge.bridge.serving.process_limits import collect_less_often
from otel_bridge.bridge.supervisor import BridgeSupervisor
from otel_bridge.errors import ConfigError, JournalError
from otel_bridge.journal.folder import RunFolder, run_folders
from otel_bridge.journal.locks import probe
from otel_bridge.journal.report import NOT_SERVED
from otel_bridge.otlp.proxies import direct_variables
from otel_bridge.settings import environment

STOP_S = 5.0
"""Seconds that writers may take to close after a signal."""
LONGEST_STOP_S = 60
"""Seconds after a signal until the kernel ends the process, whatever it waits for; committed
records stay."""


def main(argv: list[str]) -> int:
    """Serve the run folder ``argv[0]``; return 0, or 2 when a setting cannot be used.

    With a mark in ``argv[1]``, also serve the other runs of that process; see
    `RunFolder.companions_dir`. 0 too when another bridge has the folder, which the log explains:
    programs that begin at once each start a bridge. 0 as well for a folder that is gone by now.
    """
    # The log of a folder is appended to by every bridge of it, so its size is checked at the start.
    _bound_log()
    collect_less_often()
    os.environ.update(direct_variables(os.environ))  # for the trackers' own clients too
    path = Path(argv[0])
    try:
        options = BridgeOptions.read(environment(), _working_folder(path))
    except ConfigError as exc:
        log_line(f"{path.name}: {exc}")
        return 2
    leader = [folder for folder in run_folders(path.parent) if folder.path == path]
    if len(argv) == 1 or not leader:
        return _ServedFolders(path, options, lambda: leader, log_line).serve()
    companions = Companions(leader[0], argv[1])
    if not companions.take():
        return 0  # the bridge that has the lock finds the note of the run for which this one was started

    def log_to_both(line: str) -> None:
        log_line(line)
        companions.log(line)

    companions.delete_left()
    service = _ServedFolders(path, options, companions.folders, log_to_both)
    code = service.serve()
    # A run may be noted while this bridge ends: its program has seen the lock as taken.
    while not service.stopped and companions.more_came():
        code = service.serve()
    return code


class _ServedFolders:
    """Serves folders until nothing is left to do; a signal stops it."""

    def __init__(
        self,
        path: Path,
        options: BridgeOptions,
        folders: Callable[[], Iterable[RunFolder]],
        log_line: Callable[[str], None],
    ) -> None:
        self._path = path
        self._options = options
        self._folders = folders
        self._log_line = log_line
        self._host: BridgeSupervisor | None = None
        self.stopped = False
        # The kernel's own action, since Python's handlers wait until the thread is back in Python.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._stop)

    def serve(self) -> int:
        """Serve until nothing is left to do; return the exit code, 0.

        A writer that hangs must not keep the process, which then ends here by ``os._exit``.
        """
        name = self._path.name
        log_line = self._log_line
        host = BridgeSupervisor(
            self._path.parent,
            self._options,
            folders=self._folders,
            until_done=True,
            log_line=log_line,
        )
        self._host = host
        # A signal that came before there was this host has found none to stop.
        if self.stopped:
            host.request_stop(STOP_S)
        log_line(f"{name}: the bridge {os.getpid()} begins")
        host.serve()
        for run_id, status in host.progress().items() or [(name, None)]:
            reason = status.reason if status else ""
            ending = _ending(RunFolder(self._path.parent, run_id), reason)
            log_line(f"{run_id}: the bridge {os.getpid()}{ending}")
        if host.hanging:
            log_line(
                f"{name}: the writers of {', '.join(host.hanging)} hang and are left"
            )
            # A writer or a disk that hangs must not keep this process from exiting.
            os._exit(0)
        return 0

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        """Request a stop at a signal.

        The kernel ends the process a minute later if that takes longer.
        """
        self.stopped = True
        # This thread may be in a call of a disk that hangs, which Python cannot interrupt.
        signal.alarm(LONGEST_STOP_S)
        if self._host is not None:
            self._host.request_stop(STOP_S)


def _ending(folder: RunFolder, reason: str) -> str:
    """Return how the log reports the end of this bridge, which did not serve *folder* if there is a *reason*.

    Programs that begin at once each start a bridge. All but one find the lock held, which is as it
    should be. Where the lock cannot be probed, the reason is logged.
    """
    if not reason:
        return " ends"
    with contextlib.suppress(JournalError):
        if probe(folder.lock_path):
            return " ends: another bridge serves the run"
    return f"{NOT_SERVED}{reason}"


def log_line(line: str) -> None:
    """Write one line to the log."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"{stamp} {line}\n")
        sys.stderr.flush()


def _working_folder(path: Path) -> Path:
    """Return the folder in which the program started the bridge, to which paths of trackers are relative.

    The run folder if it was deleted meanwhile.
    """
    try:
        return Path.cwd()
    except OSError:
        return path


def _bound_log() -> None:
    """Empty the log when it has grown large: every bridge of the folder appends to it."""
    with contextlib.suppress(OSError):
        if os.fstat(2).st_size > LOG_BYTES:
            os.ftruncate(2, 0)
