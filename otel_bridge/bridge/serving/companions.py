"""Lists the runs of one process that share a bridge: notes in the folder of the first, and a lock beside them."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from otel_bridge.errors import JournalError
from otel_bridge.journal.files import names_in
from otel_bridge.journal.folder import COMPANIONS, RunFolder
from otel_bridge.journal.locks import RecordLock, probe
from otel_bridge.journal.machine import start_ticks

LOG_BYTES = 4 << 20
"""Size at which a log gets no more lines of a shared bridge, or is emptied by the next bridge."""


class Companions:
    """Lists the runs that this bridge serves, while it holds their lock. For the bridge's main thread.

    Args:
        leader: Folder of the run for which the bridge was started.
        mark: Mark of the process whose runs they are.
    """

    def __init__(self, leader: RunFolder, mark: str) -> None:
        self._leader = leader
        self._mark = mark
        self._notes = leader.companions_dir(mark)
        self._lock = RecordLock(leader.companions_lock_path(mark))
        self._listed: dict[Path, tuple[tuple[str, int], ...]] = {}
        self._by_run_id = {leader.run_id: leader}

    def take(self) -> bool:
        """Take the lock; return whether no other bridge has it."""
        try:
            return self._lock.acquire()
        except JournalError:
            # The folder is gone, or its file system has no locks: each run gets a bridge of its
            # own.
            return False

    def folders(self) -> list[RunFolder]:
        """Return the folders of the runs; what each holds now is noted for `more_came`.

        None when the notes are gone, as with a deleted folder of the leader.
        """
        existing: list[RunFolder] = []
        self._listed = {}
        for name in names_in(self._notes):
            folder = RunFolder.at(self._leader.base / name)
            # The notes have the names of run folders; the lock among them is not a folder.
            if folder.exists():
                existing.append(folder)
                self._listed[folder.path] = _held_by(folder)
                self._by_run_id[folder.run_id] = folder
        return existing

    def more_came(self) -> bool:
        """Release the lock, and take it again if a run was noted or appended to after the last `folders`.

        A process that notes a run later finds the lock free, and starts a bridge.

        Returns:
            Whether the lock was taken again, so that there is something to serve; ``False`` when
                another bridge was faster.
        """
        last_listed = self._listed
        # Before the look: a process that notes a run is seen here, or finds the lock free.
        self._lock.release()
        self.folders()
        return self._listed != last_listed and self.take()

    def log(self, line: str) -> None:
        """Write a line about a run into that run's log too, unless it is the leader's, which has all lines.

        `status` and messages name the log of the run's own folder. Nothing is written to a log that
        is full or cannot be opened, and for a line without a run.
        """
        run_id, _, text = line.partition(": ")
        folder = self._by_run_id.get(run_id)
        if folder is None or folder.path == self._leader.path or not text:
            return
        with contextlib.suppress(OSError):
            # A link or a pipe in its place is neither followed nor waited for.
            flags = (
                os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
            )
            with open(
                os.open(folder.log_path, flags, 0o600), "a", encoding="utf-8"
            ) as file:
                if file.tell() < LOG_BYTES:
                    file.write(f"{line}\n")

    def delete_left(self) -> None:
        """Delete the notes of processes that have ended and whose bridge has too.

        What cannot be deleted, and notes of another form, stay: they take a few bytes.
        """
        for path in self._leader.path.glob(f"{COMPANIONS}*"):
            mark = path.name.removeprefix(COMPANIONS)
            pid, _, ticks = mark.partition("-")
            if mark == self._mark or not (pid.isdecimal() and ticks.isdecimal()):
                continue
            with contextlib.suppress(OSError, JournalError):
                # With the start time, because another process may have the same id by now.
                if start_ticks(int(pid)) != int(ticks) and not probe(
                    self._leader.companions_lock_path(mark)
                ):
                    shutil.rmtree(path)


def _held_by(folder: RunFolder) -> tuple[tuple[str, int], ...]:
    return tuple(
        (segment.path.name, segment.size_bytes) for segment in folder.segments()
    )
