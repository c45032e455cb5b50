"""Opens the files of a run folder safely: nothing that is stored there can stall or misdirect the process.

A name in a run folder may be a FIFO (opening it waits for a writer forever), a directory, a device
or a symbolic link. Only regular files are opened, without waiting, and never through a link at the
last name. Reads are bounded.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeAlias, TypeVar

SMALL_BYTES = 1 << 20
DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Errors of a write without space: on the disk, in the quota, by the limit of a file."""
NO_FREE_FILE = frozenset({errno.EMFILE, errno.ENFILE})
"""Errors of an open without a free file, in the process or on the machine."""
_HIGH_NUMBERS = (960, 192)
"""Lowest numbers to try, below the usual limits of 1,024 and 256: the kernel's table grows with the highest number."""
_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY


def open_regular(path: str | Path, flags: int = os.O_RDONLY) -> int:
    """Open a regular file and return its descriptor, without waiting or following a link at the last name.

    The descriptor is closed at exec, so that children hold no file of a run folder.

    Raises:
        OSError: The file cannot be opened, or is not a regular file.
    """
    try:
        descriptor = os.open(path, flags | _FLAGS, 0o600)
    except OSError as exc:
        # By the flags: a link (ELOOP), a FIFO without a reader (ENXIO), a folder (EISDIR).
        if exc.errno in {errno.ELOOP, errno.ENXIO, errno.EISDIR}:
            raise _irregular(path) from exc
        raise
    # After the open: a name that was checked before could be replaced in between.
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _irregular(path)
    return descriptor


def read_regular(path: str | Path, limit_bytes: int = SMALL_BYTES) -> bytes:
    """Return the content of a regular file.

    The limit protects the memory of a process that reads a file of somebody else.

    Raises:
        OSError: The file cannot be read, is not a regular file, or holds more than *limit_bytes*.
    """
    descriptor = open_regular(path)
    try:
        size = os.fstat(descriptor).st_size
        if size > limit_bytes:
            raise OSError(
                errno.EFBIG,
                f"{size} bytes, at most {limit_bytes} expected",
                os.fspath(path),
            )
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(
                size
            )  # not limit_bytes: Python would allocate that much memory
    finally:
        os.close(descriptor)


def create_regular(path: Path, flags: int = os.O_WRONLY, mode: int = 0o600) -> int:
    """Create a new file, replacing a file of the same name, and return its descriptor.

    Whatever lies at the name is removed, not written: it may be a link or a FIFO.

    Raises:
        OSError: The file cannot be created, or a folder lies at its name.
    """
    flags |= _FLAGS | os.O_CREAT | os.O_EXCL
    try:
        return os.open(path, flags, mode)
    except FileExistsError:
        path.unlink()
        return os.open(path, flags, mode)


def to_high_number(descriptor: int) -> int:
    """Move a descriptor that stays open to a high number, and return that number.

    A program may close all descriptors of its process. The numbers of its next files begin at the
    lowest, so that none of them gets this one, and a write fails instead of going into a file of
    the program.

    The same number when the process may not have so many descriptors.
    """
    for lowest in _HIGH_NUMBERS:
        try:
            moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, lowest)
        except OSError:  # the process may have fewer descriptors
            continue
        os.close(descriptor)
        return moved
    return descriptor


def cut(path: str | Path, size_bytes: int) -> None:
    """Truncate a regular file to *size_bytes*; raises `OSError` as `open_regular` does."""
    descriptor = open_regular(path, os.O_WRONLY)
    try:
        os.ftruncate(descriptor, size_bytes)
    finally:
        os.close(descriptor)


def names_in(folder: Path) -> list[str]:
    """Return the names in a folder, sorted; none when it does not exist or cannot be listed."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def size_of_regular(path: str | Path) -> int | None:
    """Return the size of a regular file in bytes; ``None`` when there is none."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    if stat.S_ISREG(status.st_mode):
        return status.st_size
    return None


Identity: TypeAlias = tuple[int, int]
"""Device and inode of a file."""


def identity_of(file: Path | int) -> Identity | None:
    """Return the identity of the file at a path, or of an open descriptor; ``None`` when there is none.

    A name or a number may be another file's by now: a file is replaced, or a program closes a
    descriptor and the next file gets its number.
    """
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _irregular(path: str | Path) -> OSError:
    return OSError(errno.EINVAL, "it is not a regular file; remove it", os.fspath(path))


# Values read from files. Each is kept until its files change, so that an unchanged file is read
# once.
#
# A file is identified by its stamp: time of change, size and inode (a file replaced by rename has
# another inode).

_SETTLED_NS = 100_000_000
"""Age of a change from which a stamp is trusted: a file may change twice within one tick of a file system's clock."""
_MAX_VALUES = 8_192
"""Values that a cache keeps: of more run folders than one directory usually has."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Stamp:
    """Identifies the state of a file: at least one field differs after a change."""

    mtime_ns: int
    size_bytes: int
    inode: int

    @classmethod
    def of(cls, status: os.stat_result) -> Stamp:
        """Return the stamp that *status* shows."""
        return cls(status.st_mtime_ns, status.st_size, status.st_ino)


def stamp_of(path: Path) -> Stamp | None:
    """Return the stamp of the file at *path*; ``None`` when there is none."""
    try:
        return Stamp.of(os.lstat(path))
    except OSError:
        return None


class StampedCache(Generic[K, V]):
    """Keeps values by key while the stamps of their files stay the same. Thread-safe.

    Reading is not serialised. Of too many values the least recently used one is dropped.
    """

    def __init__(self) -> None:
        self._values: dict[K, tuple[tuple[Stamp | None, ...], V]] = {}
        # Re-entrant: a signal handler of the trainer may end the run inside a wait for delivery.
        self._mutex = threading.RLock()

    def get(self, key: K, stamps: tuple[Stamp | None, ...], read: Callable[[], V]) -> V:
        """Return the value of *key*, from memory if its files have the same *stamps* as when it was read.

        What *read* raises is raised here, and nothing is kept then. A file that changed a moment
        ago is read again at the next call, since a second change may leave the same stamp.

        Args:
            key: Name of the value.
            stamps: Stamps of its files, taken before this call, so that the next call detects a
                later change.
            read: Reads the value.
        """
        with self._mutex:
            stored = self._values.pop(key, None)
            if stored is not None and stored[0] == stamps:
                self._values[key] = (
                    stored  # again, so that it is the last to be dropped
                )
                return stored[1]
        # Without the mutex: a large file must not stop the readers of others.
        value = read()
        newest_ns = 0
        for stamp in filter(None, stamps):
            newest_ns = max(newest_ns, stamp.mtime_ns)
        if newest_ns < time.time_ns() - _SETTLED_NS:
            with self._mutex:
                self._values[key] = (stamps, value)
                if len(self._values) > _MAX_VALUES:
                    del self._values[next(iter(self._values))]
        return value
