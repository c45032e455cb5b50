"""Runs the delivery of one exporter of one run on its own thread, so that its waits delay no other exporter."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from otel_bridge.bridge.delivery.context import FinalPosition
from otel_bridge.bridge.delivery.delivery import Delivery
from otel_bridge.bridge.ledger.exporter_state import ExporterState
from otel_bridge.records import Position


class ExporterWorker(Protocol):
    """Serves one exporter of one run: a `DeliveryWorker`, or for ``otlp`` the forwarder of the segments."""

    @property
    def exporter_state(self) -> ExporterState:
        """Return the state of the exporter."""
        ...

    def start(self) -> None:
        """Begin to deliver."""
        ...

    def notify(self, *, retry: bool = False, flush: bool = False) -> None:
        """Notify the worker of new data; with *retry* it also retries failed work at once.

        With *flush* it does so too, but not before the time that the tracker requested.
        """
        ...

    def set_signals(self, signals: tuple[str, ...]) -> None:
        """Deliver these signals from now on."""
        ...

    def stop_at(self, last: FinalPosition | None) -> None:
        """Deliver records up to *last* only, and end the tracker's run there; ``None`` for all."""
        ...

    def skip_through(self, through: Position) -> None:
        """Count records written up to *through* as durable, so that they can be evicted."""
        ...

    def reopen(self) -> None:
        """Reopen the run in the tracker with its next record, because the description of the run has changed."""
        ...

    def retry_dead_letters(self, ids: Sequence[int]) -> None:
        """Retry these dead letters."""
        ...

    def dead_letters_waiting(self) -> int:
        """Return the number of dead letters that wait for a retry."""
        ...

    def stop(self) -> None:
        """Request that the worker releases its tracker and stops; return at once."""
        ...

    def join(self, timeout_s: float) -> bool:
        """Wait until the worker has stopped; return whether it has."""
        ...


class DeliveryWorker:
    """Runs a `Delivery` on a daemon thread.

    If the thread hangs in a tracker, it ends with the process.

    Args:
        delivery: The delivery, not yet used.
        progressed: Called on the thread after each step that changed something; must be quick.
    """

    def __init__(self, delivery: Delivery, *, progressed: Callable[[], None]) -> None:
        self._delivery = delivery
        self._progressed = progressed
        self._thread = DeliveryThread(
            self._step,
            failed=self._failed,
            ended=self._ended,
            name=f"deliver-{delivery.exporter_state.exporter}",
            requested_s=lambda: delivery.requested_wait_s,
        )

    @property
    def exporter_state(self) -> ExporterState:
        """Return the state of the exporter."""
        return self._delivery.exporter_state

    def start(self) -> None:
        """Begin to deliver.

        Raises:
            RuntimeError: The machine allows no more threads; the delivery is closed.
        """
        try:
            self._thread.start()
        except RuntimeError:
            self._delivery.close()
            raise

    def notify(self, *, retry: bool = False, flush: bool = False) -> None:
        """Notify the worker of new records; with *retry* or *flush* it also retries failed work."""
        self._thread.notify(retry=retry, flush=flush)

    def set_signals(self, signals: tuple[str, ...]) -> None:
        """Deliver these signals of every record that is committed from now on."""
        self._delivery.requests.set_signals(signals)
        self._thread.notify(retry=True)

    def stop_at(self, last: FinalPosition | None) -> None:
        """Deliver records up to *last* only, and end the tracker's run there; ``None`` for all."""
        if self._delivery.requests.stop_at(last):
            self._thread.notify(retry=True)

    def skip_through(self, through: Position) -> None:
        """Count records written up to *through* as durable."""
        self._delivery.requests.skip_through(through)
        self._thread.notify(retry=True)

    def reopen(self) -> None:
        """Reopen the run in the tracker with its next record."""
        self._delivery.requests.reopen()
        self._thread.notify(retry=True)

    def retry_dead_letters(self, ids: Sequence[int]) -> None:
        """Retry these dead letters."""
        self._delivery.requests.retry_dead_letters(ids)
        self._thread.notify(retry=True)

    def dead_letters_waiting(self) -> int:
        """Return the number of dead letters that wait for a retry."""
        return self._delivery.dead_letters.waiting

    def stop(self) -> None:
        """Request that the worker stops; return at once."""
        self._thread.stop()

    def join(self, timeout_s: float) -> bool:
        """Wait until the worker has stopped; return whether it has."""
        return self._thread.join(timeout_s)

    def _step(self) -> tuple[float | None, bool]:
        last_state = self._delivery.exporter_state
        wait_s = self._delivery.step()
        state = self._delivery.exporter_state
        if state != last_state:
            self._progressed()
        # New records shorten neither the wait of a failing exporter nor a pause. A flush does,
        # which finish() requests.
        return wait_s, not state.failing and not self._delivery.pausing

    def _failed(self, exc: BaseException) -> float:
        wait_s = self._delivery.failed(exc)
        self._progressed()
        return wait_s

    def _ended(self) -> None:
        self._delivery.close()
        self._progressed()


FAILED_S = 1.0
"""Pause after a step whose failure could not be reported."""


class DeliveryThread:
    """Runs *step* until it is stopped. If a step hangs in a tracker, the thread ends with the process.

    Args:
        step: Makes one step on the thread. Returns the seconds until the next one, and whether new
            records shorten that wait. 0 is at once, ``None`` until something new arrives.
        failed: Called on the thread with the exception of *step*; returns the seconds until the
            next step. No exception of a step ends the thread, not even `SystemExit` or a
            cancellation: trackers raise both.
        ended: Called on the thread when it was stopped.
        name: Name of the thread.
        requested_s: Returns the seconds after the last step that the other end requested; a flush
            waits for them too.
    """

    def __init__(
        self,
        step: Callable[[], tuple[float | None, bool]],
        *,
        failed: Callable[[BaseException], float],
        ended: Callable[[], None],
        name: str,
        requested_s: Callable[[], float],
    ) -> None:
        self._step = step
        self._failed = failed
        self._ended = ended
        self._requested_s = requested_s
        self._wake = threading.Condition()
        self._news = False
        self._retry = False
        self._flush = False
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def stopping(self) -> bool:
        """Return whether the thread was requested to stop."""
        return self._stopping

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def notify(self, *, retry: bool = False, flush: bool = False) -> None:
        """Notify the thread of new data.

        With *retry* the next step is made at once, whatever the thread waits for. With *flush* it
        is made as soon as the other end allows.
        """
        with self._wake:
            self._news = True
            self._retry = self._retry or retry
            self._flush = self._flush or flush
            self._wake.notify()

    def stop(self) -> None:
        """Request that the thread stops; return at once."""
        with self._wake:
            self._stopping = True
            self._wake.notify()

    def join(self, timeout_s: float) -> bool:
        """Wait until the thread has stopped; return whether it has."""
        self._thread.join(max(timeout_s, 0.0))
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopping:
            wait_s, for_news = self._next_step()
            if wait_s != 0:
                self._sleep(wait_s, for_news=for_news)
        self._ended()

    def _next_step(self) -> tuple[float | None, bool]:
        try:
            return self._step()
        except BaseException as exc:  # noqa: BLE001  # see `failed`
            try:
                return self._failed(exc), False
            except Exception:  # noqa: BLE001  # a report that fails must not end the thread either
                # Not at once: an error that lasts would otherwise keep a core busy.
                return FAILED_S, False

    def _sleep(self, wait_s: float | None, *, for_news: bool) -> None:
        begun_s = time.monotonic()
        due_s = math.inf
        if wait_s is not None:
            due_s = begun_s + wait_s
        # Of the beginning of the wait, because a flush must not shorten what the server asked for.
        allowed_s = begun_s + self._requested_s()
        with self._wake:
            while not (self._stopping or self._retry or (self._news and for_news)):
                if self._flush:
                    due_s = min(due_s, allowed_s)
                remaining_s = due_s - time.monotonic()
                if remaining_s <= 0:
                    break
                self._wake.wait(None if due_s == math.inf else remaining_s)
            # Cleared with the lock held: a notice that comes later belongs to the next wait.
            self._news = False
            self._retry = False
            self._flush = False
