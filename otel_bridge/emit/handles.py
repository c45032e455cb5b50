"""Runs of this process beside its own: ``init(…, handle=True)``. At the process's exit all of its runs end together."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import sys
import threading
import time
from collections.abc import Generator, Mapping
from typing import Final

from otel_bridge.emit.arguments import DEFAULT_FINISH_S
from otel_bridge.emit.bridge_process.shared_bridge import SharedBridges
from otel_bridge.emit.process_end import status_at_exit
from otel_bridge.emit.run import Run
from otel_bridge.errors import ConfigError
from otel_bridge.settings import GENERATED_NAME, RUN_ID, RUN_NAME

MAX_HANDLES: Final = 256
"""Most runs of one process beside its own at a time; each has three open files."""
_SPARE_FILES: Final = 16
"""Open files that the last handle leaves to the program, which also needs some to begin and to end a run."""
_OF_THE_PROCESS: Final = frozenset({
    RUN_ID.name, RUN_NAME.name, GENERATED_NAME.name, "WANDB_RUN_ID", "WANDB_NAME", "WANDB_SWEEP_ID", "MLFLOW_RUN_ID",
    "OTEL_RESOURCE_ATTRIBUTES", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID",
})  # fmt: skip
"""Variables that name the process's own run, and no other."""


class Handles:
    """Holds the open handles of one process, oldest first. Thread-safe.

    Attributes:
        bridges: Bridges that the handles share.
    """

    def __init__(self) -> None:
        self.bridges = SharedBridges()
        self._lock = threading.RLock()
        self._runs: dict[int, Run] = {}

    def require_room(self) -> None:
        """Check whether one more handle may begin.

        Raises:
            ConfigError: Too many are open, or too few files are left for the program.
        """
        if len(self._runs) >= MAX_HANDLES:
            raise ConfigError(
                f"init(handle=True): {len(self._runs)} handles are open in this process, the most it may have;"
                " call finish() on those that are done"
            )
        limit = _file_limit()
        if self._runs and limit - _open_files(limit) < _SPARE_FILES:
            raise ConfigError(
                f"init(handle=True): {len(self._runs)} handles, of 3 files each, and the program have almost all of the"
                f" {limit} open files that this process may have; raise that limit (`ulimit -n`), or call finish() on"
                " handles that are done"
            )

    def add(self, run: Run) -> None:
        """Keep *run*, which records, until it has ended."""
        if run.recording:
            with self._lock:
                self._runs[id(run)] = run
            run.call_before_end(self._remove)

    def all(self) -> list[Run]:
        """Return the open handles."""
        with self._lock:
            return list(self._runs.values())

    def after_fork(self) -> None:
        """Begin the child's own part of each handle in a forked child."""
        self._lock = threading.RLock()
        for run in self.all():
            run.after_fork()

    def _remove(self, run: Run) -> None:
        with self._lock:
            self._runs.pop(id(run), None)


@contextlib.contextmanager
def config_errors() -> Generator[None]:
    """Raise an error of the operating system as a `ConfigError` that contains what to do."""
    try:
        yield
    except OSError as exc:
        remedy = "raise that limit (`ulimit -n`), or close files and finish handles that are done"
        limit = f"; this process may have {_file_limit()} open files: {remedy}" if exc.errno == errno.EMFILE else ""
        raise ConfigError(f"init() cannot begin a run: {exc}{limit}") from exc


def _file_limit() -> int:
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def _open_files(limit: int) -> int:
    """Return how many files this process has open; *limit* when there is none left to count them with."""
    try:
        return len(os.listdir("/dev/fd"))
    except OSError as exc:
        return limit if exc.errno == errno.EMFILE else 0


def environment_of_handle(env: Mapping[str, str]) -> dict[str, str]:
    """Return *env* without the variables that name the process's own run."""
    return {name: value for name, value in env.items() if name not in _OF_THE_PROCESS}


def end_at_exit(runs: list[Run]) -> None:
    """End *runs* when the interpreter exits: record every end first, then wait for all, as long as for one."""
    status = status_at_exit()
    waits = [wait for run in runs if (wait := run.end_part(status)) is not None]
    deadline = time.monotonic() + DEFAULT_FINISH_S
    for wait in waits:
        wait(max(deadline - time.monotonic(), 0.0))
