"""Determines which processes are alive: a process is alive while it holds the record lock on its life file.

Without record locks or a life file, pid, start ticks and boot id are compared instead. A process of another boot
(another host on a shared file system) counts as alive until its segments have not grown for ten minutes.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import orjson

from otel_bridge.errors import JournalError
from otel_bridge.journal.files import open_regular
from otel_bridge.journal.header import SegmentHeader
from otel_bridge.journal.locks import LockUnsupportedError, RecordLock, content, probe
from otel_bridge.journal.machine import Machine, pid_namespace, start_ticks, this_host
from otel_bridge.settings import LIVENESS_TIMEOUT_S

if TYPE_CHECKING:
    from otel_bridge.journal.folder import RunFolder

__all__ = [
    "LivenessLock",
    "LockUnsupportedError",
    "Machine",
    "RecordLock",
    "alive",
    "probe",
    "start_ticks",
    "this_host",
]

_LIVENESS_TIMEOUT_NS: Final = int(LIVENESS_TIMEOUT_S.default * 1e9)


class LivenessLock:
    """Marks this process as alive in one run folder, until `release` or the end of the process."""

    def __init__(self, lock: RecordLock) -> None:
        self._lock = lock

    @classmethod
    def hold(cls, folder: RunFolder, instance_id: str) -> LivenessLock:
        """Create the life file of *instance_id* and lock it; without record locks only the file is written.

        Raises:
            JournalError: The file cannot be created, or another process holds it.
        """
        lock = RecordLock(folder.life_path(instance_id))
        try:
            if not lock.acquire():
                raise JournalError(f"{lock.path} is held by another process; every process needs an instance id")
            lock.write(_facts())
        except LockUnsupportedError:
            _write_unlocked(lock.path)
        return cls(lock)

    def held(self) -> bool:
        """Return whether the life file is still locked and was not deleted."""
        return self._lock.held()

    def release(self) -> None:
        """Release the lock, which means that this process writes no more. The bridge deletes the file."""
        self._lock.release()

    def renew(self) -> None:
        """Drop the lock in a forked child; the parent keeps its own."""
        self._lock.renew()


def alive(
    folder: RunFolder, header: SegmentHeader, now_unix_ns: int, *, liveness_timeout_ns: int = _LIVENESS_TIMEOUT_NS
) -> bool:
    """Return whether the process that wrote *header* may still append.

    Args:
        folder: Its run folder.
        header: Header of one of its segments.
        now_unix_ns: The time now.
        liveness_timeout_ns: Time that a process of another boot may append nothing and still count as alive.
    """
    if header.boot_id != this_host().boot_id:
        return _grew(folder, header.instance_id, now_unix_ns, liveness_timeout_ns)
    path = folder.life_path(header.instance_id)
    try:
        if path.exists():
            return probe(path)
    except LockUnsupportedError:
        namespace = _namespace_of(path)
        if namespace not in {0, pid_namespace()}:
            return _grew(folder, header.instance_id, now_unix_ns, liveness_timeout_ns)
    except JournalError:
        pass  # another kind of file has the life file's name: the process table decides
    ticks = start_ticks(header.pid)
    return ticks > 0 and ticks == header.start_ticks


def _grew(folder: RunFolder, instance_id: str, now_unix_ns: int, liveness_timeout_ns: int) -> bool:
    last = max((file.mtime_ns for file in folder.segments() if file.instance_id == instance_id), default=0)
    return now_unix_ns - last < liveness_timeout_ns


def _facts() -> bytes:
    host = this_host()
    pid = os.getpid()
    return orjson.dumps(
        {
            "pid": pid,
            "start_ticks": start_ticks(pid),
            "host": host.name,
            "boot_id": host.boot_id,
            "pid_namespace": pid_namespace(),
        }
    )


def _write_unlocked(path: Path) -> None:
    try:
        fd = open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        with open(fd, "wb") as file:
            file.write(_facts())
    except OSError as exc:
        raise JournalError(f"{path} cannot be written: {exc.strerror}; is the disk full?") from exc


def _namespace_of(path: Path) -> int:
    try:
        facts = cast("dict[str, object]", orjson.loads(content(path)))
        namespace = facts["pid_namespace"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return 0
    return namespace if isinstance(namespace, int) else 0
