"""Wakes a sleeping thread, from any thread and from a signal handler that interrupts that very thread.

``threading.Event`` would block forever. A handler that sets it while its own thread is inside ``wait`` needs a lock
that this thread holds. ``SimpleQueue.put`` is reentrant (Python documentation, ``queue``).
"""

from __future__ import annotations

from contextlib import suppress
from queue import Empty, SimpleQueue


class Wakeup:
    """Remembers that it was set until the sleeper has seen that. One sleeper."""

    def __init__(self) -> None:
        self._notified: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        """Wake the sleeper; further calls have no effect until it has woken."""
        if self._notified.empty():
            self._notified.put(None)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Sleep until `set` is called, for at most *timeout_s*; return whether it was, and clear that."""
        try:
            self._notified.get(timeout=timeout_s)
        except Empty:
            return False
        self.clear()
        return True

    def clear(self) -> None:
        """Forget earlier calls of `set`."""
        with suppress(Empty):
            while True:
                self._notified.get_nowait()
