"""Shares one ``fdatasync`` among many requests: those that arrive during a sync of a file share the next one.

A request is on the disk after a sync that began after the request was appended. Files are synced
concurrently, so that a hundred runs do not wait for each other.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections import deque
from pathlib import Path

from otel_bridge.errors import JournalError

_THREADS = 4
_sync = getattr(os, "fdatasync", os.fsync)


class SyncedFile:
    """Holds an open file and the requests that wait for its sync. For the event loop.

    Args:
        fd: Its descriptor, which is duplicated, so that the writer may close its own.
        folders: Folders in which the file was just created, whose entries must be on the disk too.
    """

    def __init__(self, fd: int, folders: tuple[Path, ...]) -> None:
        self.fd = os.dup(fd)
        self.folders = folders
        self.waiting: list[asyncio.Future[None]] = []
        self.queued = False
        self.retired = False


class GroupSync:
    """Syncs files in threads. `wait` and `retire` are for the event loop."""

    def __init__(self) -> None:
        self.syncs = 0
        self._queue: deque[SyncedFile] = deque()
        self._news = threading.Condition()
        self._stopping = False
        self._threads = [
            threading.Thread(target=self._run, name="otlp-sync", daemon=True)
            for _ in range(_THREADS)
        ]
        for thread in self._threads:
            thread.start()

    def wait(self, file: SyncedFile) -> asyncio.Future[None]:
        """Return a future that is done when all data appended to *file* so far is on the disk.

        The future fails with `JournalError`.
        """
        future = asyncio.get_running_loop().create_future()
        with self._news:
            file.waiting.append(future)
            if not file.queued:
                file.queued = True
                self._queue.append(file)
                self._news.notify()
        return future

    def retire(self, file: SyncedFile) -> None:
        """Close *file* once no request waits for its sync, because nothing more is appended to it."""
        with self._news:
            file.retired = True
            if not file.queued:
                os.close(file.fd)

    def stop(self) -> None:
        """Sync all files that requests wait for, and end the threads."""
        with self._news:
            self._stopping = True
            self._news.notify_all()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while True:
            with self._news:
                while not self._queue:
                    if self._stopping:
                        return
                    self._news.wait()
                file = self._queue.popleft()
                waiting = file.waiting
                file.waiting = []
            error = _synced(file)
            with self._news:
                self.syncs += 1
                if file.waiting:
                    self._queue.append(file)  # requests arrived during the sync
                    self._news.notify()
                else:
                    file.queued = False
                    if file.retired:
                        os.close(file.fd)
            # The loop was closed: no request waits any more.
            with contextlib.suppress(RuntimeError):
                waiting[0].get_loop().call_soon_threadsafe(_resolve, waiting, error)


def _synced(file: SyncedFile) -> JournalError | None:
    try:
        _sync(file.fd)
        for folder in file.folders:
            _sync_folder(folder)
        file.folders = ()
    except OSError as exc:
        return JournalError(
            f"the disk refused to sync: {exc.strerror}; nothing was acknowledged"
        )
    except Exception as exc:  # noqa: BLE001  # a thread that ends would leave its requests without an answer
        return JournalError(
            f"the sync failed: {type(exc).__name__}: {exc}; nothing was acknowledged"
        )
    return None


def _sync_folder(folder: Path) -> None:
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return  # deleted meanwhile, with its content
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _resolve(waiting: list[asyncio.Future[None]], error: JournalError | None) -> None:
    for future in waiting:
        if future.done():  # its request was cancelled
            continue
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
