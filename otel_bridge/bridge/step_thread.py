"""A daemon thread that makes one step after another and sleeps until there is something to do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class StepThread:
    """Runs *step* until it is stopped. A step that hangs in a tracker ends with the process.

    Args:
        step: Makes one step on the thread; raises nothing. Returns the seconds until the next one is due, 0 for at
            once, ``None`` for when something new is there; and whether new records cut that wait short.
        ended: Called on the thread when it was stopped.
        name: Of the thread.
    """

    def __init__(self, step: Callable[[], tuple[float | None, bool]], *, ended: Callable[[], None], name: str) -> None:
        self._step, self._ended = step, ended
        self._wake = threading.Condition()
        self._news = self._retry = self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def stopping(self) -> bool:
        """It was asked to end."""
        return self._stopping

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def poke(self, *, retry: bool = False) -> None:
        """Say that something new is there; with *retry* the next step is made at once, whatever it waits for."""
        with self._wake:
            self._news = True
            self._retry = self._retry or retry
            self._wake.notify()

    def stop(self) -> None:
        """Ask it to end; returns at once."""
        with self._wake:
            self._stopping = True
            self._wake.notify()

    def join(self, timeout_s: float) -> bool:
        """Wait until it has ended; ``False``: it hangs."""
        self._thread.join(max(timeout_s, 0.0))
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopping:
            wait_s, for_news = self._step()
            if wait_s != 0:
                self._sleep(wait_s, for_news=for_news)
        self._ended()

    def _sleep(self, wait_s: float | None, *, for_news: bool) -> None:
        deadline = None if wait_s is None else time.monotonic() + wait_s
        with self._wake:
            while not (self._stopping or self._retry or (self._news and for_news)):
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    break
                self._wake.wait(left)
            self._news = self._retry = False
