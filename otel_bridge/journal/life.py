"""Who lives: a process is alive while it holds the record lock on its life file.

Where a lock cannot be asked (no record locks, no life file) pid, start ticks and boot id are; a process of another boot
(another host on a shared file system) counts as alive until its segments have not grown for ten minutes.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import orjson

from otel_bridge.errors import JournalError
from otel_bridge.journal.header import SegmentHeader
from otel_bridge.journal.host import Host, pid_namespace, start_ticks, this_host
from otel_bridge.journal.locks import LockUnsupportedError, RecordLock, content, probe
from otel_bridge.settings import SILENCE_S

if TYPE_CHECKING:
    from otel_bridge.journal.folder import RunFolder

__all__ = ["Host", "Life", "LockUnsupportedError", "RecordLock", "alive", "probe", "start_ticks", "this_host"]

_SILENCE_NS: Final = int(SILENCE_S.default * 1e9)


class Life:
    """The sign that this process lives, in one run folder. Kept open until `release` or death."""

    def __init__(self, lock: RecordLock) -> None:
        self._lock = lock

    @classmethod
    def hold(cls, folder: RunFolder, instance_id: str) -> Life:
        """Create the life file of *instance_id* and lock it; where there are no locks the file alone must do.

        Raises:
            JournalError: The file cannot be created, or another process has it.
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
        """Say whether the sign still stands: locked, and its file not deleted."""
        return self._lock.held()

    def release(self) -> None:
        """Say that this process does not write any more. The file stays, for the bridge to delete."""
        self._lock.release()

    def renew(self) -> None:
        """Forget the sign in a forked child; the parent's stays."""
        self._lock.renew()


def alive(folder: RunFolder, header: SegmentHeader, now_unix_ns: int, *, silence_ns: int = _SILENCE_NS) -> bool:
    """Say whether the process that wrote *header* may still append.

    Args:
        folder: Its run folder.
        header: Header of one of its segments.
        now_unix_ns: The time now.
        silence_ns: How long the segments of a process of another boot may stand still.
    """
    if header.boot_id != this_host().boot_id:
        return _grew(folder, header.instance_id, now_unix_ns, silence_ns)
    path = folder.life_path(header.instance_id)
    try:
        if path.exists():
            return probe(path)
    except LockUnsupportedError:
        namespace = _namespace_of(path)
        if namespace not in {0, pid_namespace()}:
            return _grew(folder, header.instance_id, now_unix_ns, silence_ns)
    ticks = start_ticks(header.pid)
    return ticks > 0 and ticks == header.start_ticks


def _grew(folder: RunFolder, instance_id: str, now_unix_ns: int, silence_ns: int) -> bool:
    last = max((file.mtime_ns for file in folder.segments() if file.instance_id == instance_id), default=0)
    return now_unix_ns - last < silence_ns


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
        path.write_bytes(_facts())
    except OSError as exc:
        raise JournalError(f"{path} cannot be written: {exc.strerror}; is the disk full?") from exc


def _namespace_of(path: Path) -> int:
    try:
        facts = cast("dict[str, object]", orjson.loads(content(path)))
        namespace = facts["pid_namespace"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return 0
    return namespace if isinstance(namespace, int) else 0
