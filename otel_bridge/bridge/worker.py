"""The thread of one exporter of one run. What it waits for never keeps another waiting."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from otel_bridge.bridge.delivery import Delivery
from otel_bridge.bridge.step_thread import StepThread
from otel_bridge.bridge.window import Progress
from otel_bridge.errors import OtelBridgeError
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

    def retry_letters(self, ids: Sequence[int]) -> None:
        """Try these dead letters again."""
        ...

    def letters_waiting(self) -> int:
        """Say how many of them wait to be tried."""
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
        self._errands = threading.Lock()
        self._let_go: Position | None = None
        self._signals: tuple[str, ...] | None = None
        self._thread = StepThread(self._step, ended=self._ended, name=f"deliver-{delivery.progress.exporter}")

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
        self._thread.poke(retry=retry)

    def set_signals(self, signals: tuple[str, ...]) -> None:
        """Deliver these signals from the next window on."""
        with self._errands:
            self._signals = signals
        self._thread.poke(retry=True)

    def let_go(self, through: Position) -> None:
        """Take what is written up to *through* for safe."""
        with self._errands:
            self._let_go = through
        self._thread.poke(retry=True)

    def retry_letters(self, ids: Sequence[int]) -> None:
        """Try these dead letters again."""
        self._delivery.letters.ask(ids)
        self._thread.poke(retry=True)

    def letters_waiting(self) -> int:
        """Say how many of them wait to be tried."""
        return self._delivery.letters.waiting

    def stop(self) -> None:
        """Ask it to end; returns at once."""
        self._thread.stop()

    def join(self, timeout_s: float) -> bool:
        """Wait until it has ended; ``False``: it hangs."""
        return self._thread.join(timeout_s)

    def _step(self) -> tuple[float | None, bool]:
        self._run_errands()
        before = self._delivery.progress
        wait_s = self._delivery.step()
        if self._delivery.progress is not before:
            self._progressed()
        # New records cut neither a failing exporter's wait short nor a rest; a flush does, and finish() asks for one.
        return wait_s, self._delivery.progress.failing_since_s is None and not self._delivery.resting

    def _ended(self) -> None:
        self._delivery.close()
        self._progressed()

    def _run_errands(self) -> None:
        with self._errands:
            signals, self._signals = self._signals, None
            through, self._let_go = self._let_go, None
        if signals is not None:
            self._delivery.set_signals(signals)
        if through is not None:
            with contextlib.suppress(OtelBridgeError):  # the bound asks again
                self._delivery.let_go(through)
