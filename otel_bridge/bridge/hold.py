"""One bridge's hold on a run folder: its lock, the sign of life beside it, and whether it is lost."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Final

from otel_bridge.bridge.options import BridgeOptions
from otel_bridge.bridge.taking import take_lock
from otel_bridge.errors import JournalError
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.locks import RecordLock

BEAT_S: Final = 10.0


class Hold:
    """Holds a run folder from `take` until `release` or `hand_on`. One thread.

    Args:
        folder: The run folder.
        lock: Its lock, where this process holds it already.
        say: Takes one line for the log.

    Attributes:
        lost: The folder was deleted; what lies at its path now is another bridge's.
    """

    def __init__(self, folder: RunFolder, lock: RecordLock | None, say: Callable[[str], None]) -> None:
        self._folder, self._lock, self._say = folder, lock, say
        self._beat_s = 0.0
        self.lost = False

    def take(self, options: BridgeOptions) -> None:
        """Take the lock, from another bridge where *options* say so.

        Raises:
            FolderLockedError: Another bridge has the folder and keeps it.
            JournalError: It cannot be locked.
        """
        if self._lock is None or not self._lock.held():
            self._lock = take_lock(self._folder, options, self._say)

    def kept(self) -> bool:
        """Say whether the folder is still held; one that was deleted is said, once."""
        if self._lock is not None and self._lock.held():
            return True
        if not self.lost:
            self._say(f"{self._folder.path} was deleted or is another bridge's; this one ends")
        self.lost = True
        return False

    def beat(self) -> None:
        """Say from time to time that somebody holds the folder; also while its run sleeps."""
        if self._lock is not None and time.monotonic() - self._beat_s >= BEAT_S:
            self._beat_s = time.monotonic()
            with contextlib.suppress(JournalError):
                self._folder.beat(self._lock, time.time_ns())

    def hand_on(self) -> RecordLock | None:
        """Return the lock, for the one in this process that goes on with the folder."""
        lock, self._lock = self._lock, None
        return lock

    def release(self) -> None:
        """Free the lock."""
        if self._lock is not None and not self.lost:
            if self._beat_s:  # so that another host need not wait for this heart to grow old
                with contextlib.suppress(JournalError):
                    self._folder.beat(self._lock, 0)
            self._lock.release()
