"""Wake a thread that sleeps, from any thread and from a signal handler that interrupts that very thread.

``threading.Event`` will not do: a handler that sets one while its own thread stands inside ``wait`` waits for a lock
that this thread holds, for ever. ``SimpleQueue.put`` is reentrant (Python documentation, ``queue``).
"""

from __future__ import annotations

from contextlib import suppress
from queue import Empty, SimpleQueue


class Wakeup:
    """Remembers that it was set until the sleeper has seen it. One sleeper."""

    def __init__(self) -> None:
        self._notified: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        """Wake the sleeper; once is enough."""
        if self._notified.empty():
            self._notified.put(None)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Sleep until it is set, *timeout_s* at most; return whether it was, and forget that."""
        try:
            self._notified.get(timeout=timeout_s)
        except Empty:
            return False
        self.clear()
        return True

    def clear(self) -> None:
        """Forget that it was set."""
        with suppress(Empty):
            while True:
                self._notified.get_nowait()
