"""Holds the exclusive right to serve a run folder: the lock, its heartbeat, and whether the folder was lost."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable

from otel_bridge.bridge.options import BridgeOptions
from otel_bridge.errors import FolderLockedError, JournalError
from otel_bridge.journal.control import HANDOVER_S, delete_handovers, send_control
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.locks import RecordLock
from otel_bridge.journal.machine import this_host
from otel_bridge.journal.report import read_report

HEARTBEAT_S = 10.0
"""Interval of heartbeats, by which other machines judge where locks do not reach them."""


class FolderLease:
    """Holds the lease of a run folder from `take` until `release` or `hand_on`. One thread.

    Args:
        folder: The run folder.
        lock: Its lock, which this process holds.
        log_line: Takes one line for the log.

    Attributes:
        lost: Whether the folder was moved or deleted; a folder at its path now belongs to another
            bridge.
    """

    def __init__(
        self, folder: RunFolder, lock: RecordLock, log_line: Callable[[str], None]
    ) -> None:
        self._folder = folder
        self._log_line = log_line
        self._lock: RecordLock | None = lock
        self._heartbeat_s = 0.0
        self.lost = False

    @classmethod
    def take(
        cls,
        folder: RunFolder,
        options: BridgeOptions,
        log_line: Callable[[str], None],
        *,
        lock: RecordLock | None = None,
    ) -> FolderLease:
        """Return the lease of *folder*, taken from another bridge if *options* allow that.

        Args:
            folder: The run folder.
            options: Options of its bridge.
            log_line: Takes one line for the log.
            lock: The folder's lock, if this process already holds it; released when the lease is
                not returned.

        Raises:
            FolderLockedError: Another bridge has the folder and keeps it. A host that goes on tries
                again after a minute; one that ends reports it.
            FormatVersionError: Another version wrote the folder, or it holds another run; likewise.
            JournalError: The folder cannot be used, or belongs to another user.
        """
        try:
            folder.check_owner()
            folder.check_format()
            if lock is not None and lock.held():
                return cls(folder, lock, log_line)
        except BaseException:
            if lock is not None:
                lock.release()
            raise
        if lock is not None:  # the lock of a folder that was deleted
            lock.release()
        lock = take_lock(folder, options, log_line)
        # They asked the bridge before, which was killed or ended first: this one would end at once.
        delete_handovers(folder)
        return cls(folder, lock, log_line)

    def kept(self) -> bool:
        """Return whether the folder is still held; ``False`` for good once it was not.

        A folder that was moved or deleted is reported once. A lock file is compared by what is at
        its path now, because the lock of a deleted file can still be held.
        """
        if self._lock is not None and self._lock.held():
            return True
        if not self.lost:
            fate = "was moved or deleted"
            if self._folder.exists():
                fate = "belongs to another bridge"
            self._log_line(f"{self._folder.path} {fate}; this bridge ends")
        self.lost = True
        return False

    def heartbeat(self) -> None:
        """Write a heartbeat when it is due; also while the run is idle.

        An error, as of a full disk, is passed over: after a minute of silence another machine may take the folder,
        if the file system has no locks across machines.
        """
        if (
            self._lock is not None
            and time.monotonic() - self._heartbeat_s >= HEARTBEAT_S
        ):
            self._heartbeat_s = time.monotonic()
            with contextlib.suppress(JournalError):
                self._folder.write_heartbeat(self._lock, time.time_ns())

    def hand_on(self) -> RecordLock | None:
        """Return the lock, for the object in this process that continues with the folder."""
        lock = self._lock
        self._lock = None
        return lock

    def release(self) -> None:
        """Release the lock; a lost lock holds a file open too."""
        if self._lock is not None:
            # So that another host need not wait until this heartbeat is old.
            if self._heartbeat_s and not self.lost:
                with contextlib.suppress(JournalError):
                    self._folder.write_heartbeat(self._lock, 0)
            self._lock.release()


OTHER_HOST_NS = 60 * 10**9
"""Age from which another machine's heartbeat no longer holds the folder: six of its intervals."""


def take_lock(
    folder: RunFolder, options: BridgeOptions, log_line: Callable[[str], None]
) -> RecordLock:
    """Take the lock of a run folder, from another bridge if the options allow that.

    With *takeover* (``drain``) the other bridge is asked to hand over, and killed when it does not
    within `HANDOVER_S`: it may hang, and committed records survive a kill.

    Raises:
        FolderLockedError: Another bridge has the folder and keeps it.
        JournalError: The folder cannot be locked, or the request to hand over cannot be written.
    """
    # Before the lock: on some shared file systems each machine has locks of its own.
    _refuse_other_host(folder)
    lock = folder.lock()
    if lock.acquire():
        return lock
    if options.takeover:
        # Before the request: afterwards the lock may be that of another bridge.
        asked_pid = folder.bridge_pid()
        send_control(folder, "handover")
        if _acquired(lock, HANDOVER_S):
            return lock
        _kill_holder(folder, asked_pid, log_line)
        if _acquired(lock, HANDOVER_S):
            return lock
        # This process waits no more: a bridge that followed its request now would end for no other one.
        delete_handovers(folder)
    holder = folder.holder()
    owner = "another process"
    if holder is not None:
        owner = f"process {holder.pid} on {holder.host}"
    raise FolderLockedError(
        f"{folder.path} is in use by {owner}; wait for it to finish, or stop it"
    )


def _refuse_other_host(folder: RunFolder) -> None:
    """Raise if another machine has a recent heartbeat in the folder, because locks may be of one machine only."""
    holder = folder.holder()
    now_ns = time.time_ns()
    if holder is None or holder.boot_id == this_host().boot_id:
        return
    if now_ns - holder.heartbeat_unix_ns < OTHER_HOST_NS:
        raise FolderLockedError(
            f"{folder.path} is in use by process {holder.pid} on {holder.host}; stop it there first"
        )


def _kill_holder(
    folder: RunFolder, asked_pid: int, log_line: Callable[[str], None]
) -> None:
    """Kill the bridge *asked_pid* that does not hand over, which loses no data.

    Nothing is killed when the holder is another one by now or has no id here
    (`RunFolder.bridge_pid`), and when it is a launcher, because that runs a command. The caller
    then waits for the lock in vain. Raises `JournalError` when the lock cannot be probed.
    """
    report = read_report(folder)
    if report is not None and report.launcher:
        return
    pid = folder.bridge_pid()
    if pid and pid == asked_pid:
        log_line(
            f"the bridge {pid} does not hand over within {HANDOVER_S:.0f} s and is killed"
        )
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def _acquired(lock: RecordLock, timeout_s: float) -> bool:
    """Take *lock* within *timeout_s*.

    Return whether it was taken. Raises as `RecordLock.acquire` does.
    """
    deadline = time.monotonic() + timeout_s
    while not lock.acquire():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
