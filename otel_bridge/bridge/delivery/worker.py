"""Serves one exporter of one run on its own thread, so that its waits delay no other exporter."""

from __future__ import annotations

import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from otel_bridge.bridge.delivery.context import DeliveryRequests
from otel_bridge.bridge.ledger.exporter_state import ExporterState

FAILED_S = 1.0
"""Pause after a step whose failure could not be reported."""


@dataclass(slots=True)
class Notice:
    """Holds what a worker was notified of before a step.

    Attributes:
        news: Whether there is new data.
        retry: Whether failed work is retried at once.
        flush: Whether failed work is retried as soon as the other end allows.
    """

    news: bool = False
    retry: bool = False
    flush: bool = False


class ExporterWorker(ABC):
    """Serves one exporter of one run, in steps on a daemon thread, until it is stopped.

    If a step hangs in a tracker, the thread ends with the process.

    Args:
        name: Name of the thread.
        requests: Requests of other threads to the delivery of records.
        progressed: Called on the thread after each step that changed something; must be quick.

    Attributes:
        requests: See *Args*.
        notice: What the worker was notified of before the present step.
    """

    def __init__(
        self, name: str, requests: DeliveryRequests, progressed: Callable[[], None]
    ) -> None:
        self.requests = requests
        self.notice = Notice()
        self._progressed = progressed
        self._wake = threading.Condition()
        self._next_notice = Notice()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        # A request comes from a person or from eviction: it does not wait for the end of a backoff.
        requests.wake_by(partial(self.notify, retry=True))

    @property
    @abstractmethod
    def exporter_state(self) -> ExporterState:
        """Return the state of the exporter. May be called by any thread."""

    @property
    def requested_wait_s(self) -> float:
        """Return the seconds after the last step that the other end requested.

        A flush waits for them too.
        """
        return 0.0

    @property
    def rests(self) -> bool:
        """Return whether the wait after the last step must not be shortened by new data."""
        return False

    @abstractmethod
    def step(self) -> float | None:
        """Make one step.

        Return the seconds until the next one, 0 for at once, ``None`` until something new arrives.
        """

    @abstractmethod
    def failed(self, exc: BaseException) -> float:
        """Handle an exception of a step; return the seconds until the next one."""

    @abstractmethod
    def close(self) -> None:
        """Release the tracker, after the last step. Raises nothing."""

    def start(self) -> None:
        """Begin to deliver, on the worker's thread.

        Raises:
            RuntimeError: The machine allows no more threads; the delivery is closed, and the next
                choice of exporters makes a new worker.
            JournalError: The ledger could not be read; ``otlp`` reads its positions before it
                begins.
        """
        try:
            self._thread.start()
        except RuntimeError:
            self.close()
            raise

    def notify(self, *, retry: bool = False, flush: bool = False) -> None:
        """Notify the worker of new data; with *retry* it also retries failed work at once.

        With *flush* it does so too, but not before the time that the other end requested.
        """
        with self._wake:
            self._next_notice.news = True
            self._next_notice.retry = self._next_notice.retry or retry
            self._next_notice.flush = self._next_notice.flush or flush
            self._wake.notify()

    def dead_letters_waiting(self) -> int:
        """Return the number of dead letters that wait for a retry."""
        return 0

    def stop(self) -> None:
        """Request that the worker releases its tracker and stops; return at once."""
        with self._wake:
            self._stopping = True
            self._wake.notify()

    def join(self, timeout_s: float) -> bool:
        """Wait until the worker has stopped; return whether it has.

        ``False`` after *timeout_s*: its step hangs in a tracker, and only the end of the process
        ends it.
        """
        self._thread.join(max(timeout_s, 0.0))
        return not self._thread.is_alive()

    def _run(self) -> None:
        """Make steps until the stop, then release the tracker, and let the report show the last state."""
        while not self._stopping:
            wait_s, for_news = self._next_step()
            if wait_s != 0:
                self._sleep(wait_s, for_news=for_news)
        self.close()
        self._progressed()

    def _next_step(self) -> tuple[float | None, bool]:
        """Make one step; return the seconds to wait, and whether new data shortens that wait.

        No exception ends the thread, not even `SystemExit` or a cancellation: trackers raise both.
        """
        with self._wake:
            # Before the step: a notice that comes later belongs to the wait after it.
            self.notice = self._next_notice
            self._next_notice = Notice()
        last_state = self.exporter_state
        try:
            wait = (self.step(), not self.rests)
            if self.exporter_state != last_state:
                self._progressed()
        except BaseException as exc:  # noqa: BLE001  # see above
            try:
                wait = (self.failed(exc), False)
                self._progressed()
            except Exception:  # noqa: BLE001  # a report that fails must not end the thread either
                # Not at once: an error that lasts would otherwise keep a core busy.
                wait = (FAILED_S, False)
        return wait

    def _sleep(self, wait_s: float | None, *, for_news: bool) -> None:
        """Sleep *wait_s*, ``None`` for ever, until a stop or a retry, or with *for_news* new data.

        A flush shortens the sleep to what the other end requested: `finish` must not wait for the
        rest of a backoff, and a server that asked for time must get it. `_wake` guards the notices,
        or one that comes between the look and the sleep would be missed.
        """
        begun_s = time.monotonic()
        due_s = math.inf
        if wait_s is not None:
            due_s = begun_s + wait_s
        # Of the beginning of the wait, because a flush must not shorten what the server asked for.
        allowed_s = begun_s + self.requested_wait_s
        with self._wake:
            while not self._stopping:
                notice = self._next_notice
                if notice.retry or (notice.news and for_news):
                    break
                if notice.flush:
                    due_s = min(due_s, allowed_s)
                remaining_s = due_s - time.monotonic()
                if remaining_s <= 0:
                    break
                self._wake.wait(None if due_s == math.inf else remaining_s)
