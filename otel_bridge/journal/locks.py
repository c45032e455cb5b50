"""Provides POSIX record locks, which show that a process is alive and which process is the bridge.

``fcntl.lockf``, not ``flock``: a forked child does not inherit the lock, SIGKILL frees it at once,
exec frees it too, and other pid namespaces see it. Its trap is that it belongs to the process.
Opening and closing the file a second time *anywhere in the process* drops the lock, and a second
holder in the same process is admitted. Hence the registry of the locks that this process holds.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import sys
import threading
from pathlib import Path
from typing import cast

from otel_bridge.errors import JournalError
from otel_bridge.journal.files import (
    Identity,
    identity_of,
    open_regular,
    read_regular,
    to_high_number,
)

CONTENT_BYTES = 512
_BUSY = frozenset({errno.EACCES, errno.EAGAIN})
_UNSUPPORTED = frozenset(
    {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL}
)
_REPLACED_TRIES = 8

_registry: dict[Identity, RecordLock] = {}
_mutex = threading.RLock()


class LockUnsupportedError(JournalError):
    """Raised when the file system has no record locks.

    `otel_bridge.journal.liveness` describes the fallback.
    """


class RecordLock:
    """Locks one file exclusively for this process, until `release`, exec or the end of the process.

    Thread-safe.

    Args:
        path: File of the lock alone; created when missing, never deleted here.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1
        self._identity: Identity | None = None
        self._pid = 0

    def acquire(self) -> bool:
        """Take the lock.

        Return ``False`` when another holder has it, ``True`` also when this object already had it.

        A file that was replaced meanwhile is locked anew, a few times: an old file would be locked
        by nobody else.

        Raises:
            LockUnsupportedError: The file system has no record locks.
            JournalError: The file cannot be created or opened.
        """
        with _mutex:
            if self.held():
                return True
            self._unlock()
            for _ in range(_REPLACED_TRIES):
                is_held = self._try()
                if is_held is not None:
                    return is_held
        raise JournalError(
            f"{self.path}: replaced repeatedly while it was being locked; which process deletes it?"
        )

    def held(self) -> bool:
        """Return whether this process holds the lock and the file at the path is still the locked one."""
        return (
            self._identity is not None
            # A child that C code has forked runs no hook of Python, and has no lock.
            and self._pid == os.getpid()
            and identity_of(self.path) == self._identity
        )

    def write(self, content: bytes) -> None:
        """Replace the file's content, at most `CONTENT_BYTES`; only while the lock is held.

        Raises:
            JournalError: The file cannot be written, or the lock is not held.
        """
        try:
            # One write of one length: a reader never sees a part of it.
            os.pwrite(self._fd, content.ljust(CONTENT_BYTES)[:CONTENT_BYTES], 0)
        except OSError as exc:
            raise JournalError(
                f"{self.path} cannot be written: {exc.strerror}; is the disk full?"
            ) from exc

    def read(self) -> bytes:
        """Return the file's content.

        Only while the lock is held, when the file must not be opened again. Raises `OSError` when a
        program has closed the descriptor.
        """
        return os.pread(self._fd, CONTENT_BYTES, 0).strip()

    def release(self) -> None:
        """Free the lock; the file stays. May be called twice.

        A forked child drops its copy by that, and the lock of its parent stays held.
        """
        with _mutex:
            self._unlock()

    def _try(self) -> bool | None:
        """Try once to lock the file; return ``None`` when the file was replaced meanwhile.

        ``False`` also when another object of this process holds it, which the kernel would admit.

        Raises:
            LockUnsupportedError: The file system has no record locks.
            JournalError: The file cannot be created or opened.
        """
        file_identity = identity_of(self.path)
        # Opening the file and closing it again would drop the lock that this process holds.
        if file_identity is not None and file_identity in _registry:
            return False
        # Before it is locked: closing the old number later would release the lock.
        fd = to_high_number(_open(self.path, os.O_RDWR | os.O_CREAT))
        identity = identity_of(fd)
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            os.close(fd)
            if exc.errno in _BUSY:
                return False
            raise _lock_error(exc, self.path) from exc
        # Deleted or replaced meanwhile: other processes would lock the new file.
        if identity is None or identity_of(self.path) != identity:
            os.close(fd)
            return None
        self._fd = fd
        self._identity = identity
        self._pid = os.getpid()
        _registry[identity] = self
        return True

    def _unlock(self) -> None:
        """Drop the lock and close its descriptor, unless a program has closed it and its number is another file's.

        Never raises, since it runs at exits and in forked children.
        """
        identity = self._identity
        self._identity = None
        if identity is not None and _registry.get(identity) is self:
            del _registry[identity]
        fd = self._fd
        self._fd = -1
        # After a program closed all descriptors, the number may belong to another file.
        if identity is not None and identity_of(fd) == identity:
            with contextlib.suppress(OSError):
                os.close(fd)


def probe(path: Path) -> bool:
    """Return whether any process, this one included, holds the lock on *path*, without locking it.

    Takes about 5 us.

    ``False`` also when the file does not exist.

    It asks the kernel and takes no lock, because taking it would shut out another process for a
    moment.

    Raises:
        LockUnsupportedError: The file system has no record locks.
        JournalError: The file cannot be opened.
    """
    with _mutex:
        file_identity = identity_of(path)
        if file_identity is None:
            return False
        if file_identity in _registry:
            return True
        return _owner_of(path) is not None


def holder_pid(path: Path) -> int:
    """Return the id of the process that holds the lock on *path*, as the kernel knows it.

    0 when none does, or this process does, and for one of a pid namespace that is not seen from
    here. Raises as `probe` does.
    """
    with _mutex:
        file_identity = identity_of(path)
        if file_identity is None or file_identity in _registry:
            return 0
        return max(_owner_of(path) or 0, 0)


def content(path: Path) -> bytes:
    """Return the content that a lock's holder wrote; empty for a file that is gone or cannot be read.

    The file must not be opened while this process holds the lock: closing it again would drop the
    lock.
    """
    with _mutex:
        file_identity = identity_of(path)
        holder = None
        if file_identity is not None:
            holder = _registry.get(file_identity)
        try:
            if holder is not None:
                return holder.read()
            return read_regular(path)[:CONTENT_BYTES].strip()
        except OSError:
            return b""


def _open(path: Path, flags: int) -> int:
    try:
        return open_regular(path, flags)
    except OSError as exc:
        raise JournalError(
            f"{path} cannot be opened: {exc.strerror}; expected a folder of your own"
        ) from exc


def _lock_error(exc: OSError, path: Path) -> JournalError:
    if exc.errno in _UNSUPPORTED:
        return LockUnsupportedError(
            f"{path} cannot be locked: {exc.strerror}; its file system has no record locks, "
            "set OTEL_BRIDGE_DIR to a local folder"
        )
    return JournalError(f"{path} cannot be locked: {exc.strerror}")


# struct flock. F_GETLK only queries the lock; locking and unlocking would shut out another process
# for a moment.
_FLOCK = struct.Struct("@qqihh" if sys.platform == "darwin" else "@hhqqi4x")


def _owner_of(path: Path) -> int | None:
    """Return the id of the process that locks the file at *path*; ``None`` when no other one does.

    0 or less for a process that has no id here. The fields of the kernel's structure have another
    order on macOS. Raises as `probe` does.
    """
    if sys.platform == "darwin":
        query = _FLOCK.pack(0, 0, 0, fcntl.F_WRLCK, os.SEEK_SET)
        pid_index = 2
        type_index = 3
    else:
        query = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        pid_index = 4
        type_index = 0
    fd = _open(path, os.O_RDONLY)
    try:
        answer = cast(
            "tuple[int, ...]", _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, query))
        )
    except OSError as exc:
        raise _lock_error(exc, path) from exc
    finally:
        os.close(fd)
    if answer[type_index] == fcntl.F_UNLCK:
        return None
    return answer[pid_index]


def _forget_all() -> None:
    """Empty the registry in a forked child, which has none of its parent's locks."""
    global _mutex  # noqa: PLW0603  # a thread that does not exist in this child may hold the parent's mutex
    _mutex = threading.RLock()
    for lock in list(_registry.values()):
        lock.release()
    _registry.clear()


os.register_at_fork(after_in_child=_forget_all)
