"""Taking a run folder: the lock, and what is done when another bridge has it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from typing import Final

from otel_bridge.bridge.options import BridgeOptions
from otel_bridge.errors import FolderLockedError
from otel_bridge.journal.ask import ask
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.life import this_host
from otel_bridge.journal.locks import RecordLock

OTHER_HOST_NS: Final = 60 * 10**9


def take_lock(folder: RunFolder, options: BridgeOptions, say: Callable[[str], None]) -> RecordLock:
    """Take the lock of a run folder, from another bridge where the options say so.

    Raises:
        FolderLockedError: Another bridge has the folder and keeps it.
        JournalError: It cannot be locked.
    """
    _refuse_other_host(folder)
    lock = folder.lock()
    if lock.acquire():
        return lock
    if options.takeover:
        ask(folder, "handover")
        if _acquired(lock, options.handover_s):
            return lock
        _kill_holder(folder, options, say)
        if _acquired(lock, options.handover_s):
            return lock
    holder = folder.holder()
    who = "another process" if holder is None else f"process {holder.pid} on {holder.host}"
    raise FolderLockedError(f"{folder.path} is served by {who}; wait for it or end it")


def _refuse_other_host(folder: RunFolder) -> None:
    """Where locks are of one machine only, a young heartbeat of another one says that it serves the folder."""
    holder, now_ns = folder.holder(), time.time_ns()
    if holder is None or holder.boot_id == this_host().boot_id:
        return
    if now_ns - holder.heartbeat_unix_ns < OTHER_HOST_NS:
        raise FolderLockedError(f"{folder.path} is served by process {holder.pid} on {holder.host}; end it there first")


def _kill_holder(folder: RunFolder, options: BridgeOptions, say: Callable[[str], None]) -> None:
    """Kill a bridge that does not hand over: nothing is lost by that."""
    holder = folder.holder()
    if holder is not None and holder.boot_id == this_host().boot_id and holder.pid not in {0, os.getpid()}:
        say(f"the bridge {holder.pid} does not hand over within {options.handover_s:.0f} s and is killed")
        with contextlib.suppress(OSError):
            os.kill(holder.pid, signal.SIGKILL)


def _acquired(lock: RecordLock, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while not lock.acquire():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
