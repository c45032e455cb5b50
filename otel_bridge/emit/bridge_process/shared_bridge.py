"""One bridge process for many runs of this process: handles that have the same directory and environment.

The folder of the first run keeps a note for each run (`RunFolder.companions_dir`). Its bridge holds
the lock beside the notes, and serves each run that is noted. A note is written before the lock is
probed, and the bridge looks for notes once more after it has released the lock, so that no run is
left without a bridge.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from otel_bridge.emit.bridge_process.spawn import bridge_environment, start_bridge
from otel_bridge.errors import JournalError
from otel_bridge.journal.folder import RunFolder, companions_mark, put_file
from otel_bridge.journal.locks import probe

_LOADING_S = 10.0
"""Longest time for which a bridge that was started here, and has logged nothing yet, counts as loading."""


class SharedBridge:
    """Starts the bridge that several runs share.

    Thread-safe without a lock: at worst two are started, and one ends.

    Args:
        env: Environment for the bridge.
        python: Interpreter of another environment for the bridge; ``None``: this process's own.
    """

    def __init__(self, env: Mapping[str, str], *, python: str | None = None) -> None:
        self._env = env
        self._python = python
        self._mark = companions_mark()
        self._leader: RunFolder | None = None
        self._started_s = float("-inf")
        self._logged = -1

    def serve(self, folder: RunFolder) -> None:
        """Have the shared bridge serve *folder*; start that bridge where none runs.

        Where the bridge still loads, or runs, it finds the note itself.

        Raises:
            JournalError: The note cannot be written, the file system has no locks, or the system
                started no process. The caller starts a bridge for this run alone.
        """
        leader = self._leader
        # The notes of a deleted folder are gone, so another run's folder holds them from now on.
        if leader is None or not leader.exists():
            leader = folder
            self._leader = folder
            self._started_s = float("-inf")
        notes = leader.companions_dir(self._mark)
        try:
            notes.mkdir(mode=0o700, exist_ok=True)
            # Before the probe: a bridge that ends reads the notes after it has released the lock.
            put_file(notes / folder.path.name, b"")
        except OSError as exc:
            raise JournalError(
                f"{notes} cannot be written: {exc.strerror or exc}"
            ) from exc
        if self._loads(leader) or probe(leader.companions_lock_path(self._mark)):
            return
        self._started_s = time.monotonic()
        self._logged = log_bytes(leader)
        start_bridge(leader, self._env, python=self._python, companions=self._mark)

    def _loads(self, leader: RunFolder) -> bool:
        """Return whether the bridge that was started last has not taken its lock yet.

        It logs a line once it has: a log that has not grown within ten seconds of the start shows a
        bridge that still loads.
        """
        return (
            log_bytes(leader) == self._logged
            and time.monotonic() - self._started_s < _LOADING_S
        )


def log_bytes(folder: RunFolder) -> int:
    """Return the size of the bridge's log in *folder*.

    0 before the bridge has logged, and where the folder is gone.
    """
    try:
        return folder.log_path.stat().st_size
    except OSError:
        return 0


class SharedBridges:
    """Keeps the shared bridge of each directory and environment, for the runs of one process."""

    def __init__(self) -> None:
        self._bridges: dict[tuple[object, ...], SharedBridge] = {}

    def of(
        self, folder: RunFolder, env: Mapping[str, str], *, python: str | None
    ) -> SharedBridge:
        """Return the bridge for runs beside *folder* with this environment.

        Another one has its own. The environment decides where and with which credentials a bridge
        delivers. So does the working folder, below which relative destinations are.

        Raises:
            OSError: The working folder was deleted; ``init()`` raises it as a `ConfigError`.
        """
        cleaned = bridge_environment(env)
        key = (folder.base, os.getcwd(), python, tuple(sorted(cleaned.items())))
        return self._bridges.setdefault(key, SharedBridge(env, python=python))
