"""Locks a directory of run folders for one service."""

from __future__ import annotations

import os
from pathlib import Path

from otel_bridge.cli.directory import made
from otel_bridge.errors import ConfigError
from otel_bridge.journal.locks import RecordLock, content, probe

_NAME = "serve.lock"


class ServiceLock:
    """Locks a directory for one service, because two would take each other's runs.

    Args:
        base: The directory; created when it is missing.

    Raises:
        ConfigError: The directory cannot be created or written, or another user owns it.
    """

    def __init__(self, base: Path) -> None:
        self._base = made(base)
        self._lock = RecordLock(base / _NAME)

    def __enter__(self) -> None:
        """Take the lock.

        Raises:
            ConfigError: Another service holds the lock.
            JournalError: The file system has no record locks, or the lock's file cannot be used.
        """
        if not self._lock.acquire():
            raise ConfigError(
                f"{self._base} is already served by {service_of(self._base) or 'another process'}; "
                "stop that one, or give this one another directory (--dir)"
            )
        self._lock.write(f"process {os.getpid()}".encode())

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def service_of(base: Path) -> str:
    """Return which process of this machine serves the directory *base*, as text.

    It is empty when none does.

    Raises:
        JournalError: Whether the lock is held cannot be asked, as on a file system without locks.
    """
    path = base / _NAME
    # The file of a service that was killed stays; only its lock shows whether one runs.
    if not path.is_file() or not probe(path):
        return ""
    return content(path).decode("utf-8", "replace").strip("\0 \n") or "another process"
