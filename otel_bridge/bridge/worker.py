"""The thread of one exporter of one run. What it waits for never keeps another waiting."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from otel_bridge.bridge.delivery import Delivery
from otel_bridge.bridge.window import Progress
from otel_bridge.records import Position


class Lane(Protocol):
    """What serves one exporter of one run: a `Worker`, or for ``otlp`` what forwards the segments."""

    @property
    def progress(self) -> Progress:
        """How far it is."""
        ...

    @property
    def destination_id(self) -> int | None:
        """Its destination in the ledger, ``None`` when it has none (yet)."""
        ...

    def start(self) -> None:
        """Begin."""
        ...

    def poke(self, *, retry: bool = False) -> None:
        """Say that something new is there; with *retry* also try at once what failed."""
        ...

    def set_signals(self, signals: tuple[str, ...]) -> None:
        """Deliver these signals from now on."""
        ...

    def let_go(self, through: Position) -> None:
        """Take what is written up to *through* for safe: the bound needs its room."""
        ...

    def stop(self) -> None:
        """Ask it to let go of its tracker and end. Returns at once."""
        ...

    def join(self, timeout_s: float) -> bool:
        """Wait until it has ended; ``False``: it hangs."""
        ...


class Worker:
    """Runs a `Delivery` on a daemon thread: one that hangs in a tracker ends with the process.

    Args:
        delivery: Made, not yet used.
        progressed: Called on the thread after each step that changed something; must be quick.
    """

    def __init__(self, delivery: Delivery, *, progressed: Callable[[], None]) -> None:
        self._delivery, self._progressed = delivery, progressed
        self._wake = threading.Condition()
        self._news = self._retry = self._stopping = False
        self._let_go: Position | None = None
        self._signals: tuple[str, ...] | None = None
        self._thread = threading.Thread(target=self._run, name=f"deliver-{delivery.progress.exporter}", daemon=True)

    @property
    def progress(self) -> Progress:
        """How far it is."""
        return self._delivery.progress

    @property
    def destination_id(self) -> int | None:
        """Its destination in the ledger, ``None`` while its settings cannot be read."""
        return self._delivery.destination_id

    def start(self) -> None:
        """Begin to deliver."""
        self._thread.start()

    def poke(self, *, retry: bool = False) -> None:
        """Say that there are new records; with *retry* also try at once what failed."""
        with self._wake:
            self._news = True
            self._retry = self._retry or retry
            self._wake.notify()

    def set_signals(self, signals: tuple[str, ...]) -> None:
        """Deliver these signals from the next window on."""
        with self._wake:
            self._signals, self._retry = signals, True
            self._wake.notify()

    def let_go(self, through: Position) -> None:
        """Take what is written up to *through* for safe."""
        with self._wake:
            self._let_go, self._retry = through, True
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
            self._run_errands()
            before = self._delivery.progress
            wait = self._delivery.step()
            if self._delivery.progress is not before:
                self._progressed()
            if wait != 0:
                self._sleep(wait, failing=self._delivery.progress.failing_since_s is not None)
        self._delivery.close()
        self._progressed()

    def _run_errands(self) -> None:
        with self._wake:
            signals, self._signals = self._signals, None
            through, self._let_go = self._let_go, None
        if signals is not None:
            self._delivery.set_signals(signals)
        if through is not None:
            self._delivery.let_go(through)

    def _sleep(self, wait_s: float | None, *, failing: bool) -> None:
        """Wait; new records do not cut a failing exporter's wait short, `poke` with *retry* does."""
        deadline = None if wait_s is None else time.monotonic() + wait_s
        with self._wake:
            while not (self._stopping or self._retry or (self._news and not failing)):
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    break
                self._wake.wait(left)
            self._news = self._retry = False
