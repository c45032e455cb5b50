"""Shares one ``fdatasync`` among many requests: those that arrive during a sync of a file share the next one.

A request is on the disk after a sync that began after the request was appended. Files are synced
concurrently, so that a hundred runs do not wait for each other.
"""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from otel_bridge.errors import JournalError

_THREADS = 4
_sync = getattr(os, "fdatasync", os.fsync)


class SyncedFile:
    """Holds an open file and the requests that wait for its sync. For the event loop.

    One that is retired (`GroupSync.retire`) is closed by whichever comes last: its task or the
    retirement.

    Args:
        fd: Its descriptor, which is duplicated, so that the writer may close its own.
        folders: Folders in which the file was just created, whose entries must be on the disk too.

    Raises:
        OSError: This process may open no more files.
    """

    def __init__(self, fd: int, folders: tuple[Path, ...]) -> None:
        self.fd = os.dup(fd)
        self.folders = folders
        self.waiting: list[asyncio.Future[None]] = []
        self.task: asyncio.Task[None] | None = None
        self.retired = False


class GroupSync:
    """Syncs files in threads. For the event loop."""

    def __init__(self) -> None:
        self.syncs = 0
        self._threads = ThreadPoolExecutor(_THREADS, "otlp-sync")
        self._tasks: set[asyncio.Task[None]] = set()

    def wait(self, file: SyncedFile) -> asyncio.Future[None]:
        """Return a future that is done when all data appended to *file* so far is on the disk.

        The future fails with `JournalError`: what of the file is on the disk is unknown then, and
        nothing of the sync may be acknowledged.
        """
        future = asyncio.get_running_loop().create_future()
        file.waiting.append(future)
        if file.task is None:
            file.task = asyncio.create_task(self._sync_waiting(file))
            self._tasks.add(file.task)
            file.task.add_done_callback(self._tasks.discard)
        return future

    def retire(self, file: SyncedFile) -> None:
        """Close *file* once no request waits for its sync, because nothing more is appended to it."""
        file.retired = True
        if file.task is None:
            os.close(file.fd)

    async def stop(self) -> None:
        """Sync all files that requests wait for, and end the threads.

        Only when no more requests are accepted: a later `wait` would never be answered.
        """
        await asyncio.gather(*self._tasks)
        self._threads.shutdown()

    async def _sync_waiting(self, file: SyncedFile) -> None:
        """Sync *file* until no request waits for it, then close it if nothing more is appended to it."""
        loop = asyncio.get_running_loop()
        while file.waiting:
            # Requests that arrive during this sync wait for the next one.
            waiting = file.waiting
            file.waiting = []
            error = await loop.run_in_executor(self._threads, _synced, file)
            self.syncs += 1
            _resolve(waiting, error)
        file.task = None
        if file.retired:
            os.close(file.fd)


def _synced(file: SyncedFile) -> JournalError | None:
    """Sync a file and the folders of a new one; return why that failed, ``None`` when it did not.

    Returned and not raised, since the error goes to each request that waits.
    """
    try:
        _sync(file.fd)
        for folder in file.folders:
            _sync_folder(folder)
        file.folders = ()
    except OSError as exc:
        return JournalError(
            f"the disk refused to sync: {exc.strerror}; nothing was acknowledged"
        )
    except Exception as exc:  # noqa: BLE001  # requests would be left without an answer
        return JournalError(
            f"the sync failed: {type(exc).__name__}: {exc}; nothing was acknowledged"
        )
    return None


def _sync_folder(folder: Path) -> None:
    """Sync the entries of a folder.

    Nothing for one that was deleted meanwhile. Raises `OSError`.
    """
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return  # deleted meanwhile, with its content
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _resolve(waiting: list[asyncio.Future[None]], error: JournalError | None) -> None:
    """Finish the futures of requests, with *error* if there is one.

    A cancelled request has ended already.
    """
    for future in waiting:
        if future.done():  # its request was cancelled
            continue
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
