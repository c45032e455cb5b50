from __future__ import annotations

import asyncio
import threading
from queue import Queue

import pytest

from otel_bridge.bridge.delivery.context import DeliveryRequests
from otel_bridge.bridge.delivery.worker import ExporterWorker
from otel_bridge.bridge.ledger.exporter_state import ExporterState


class Steps(ExporterWorker):
    """A worker whose steps return what they are given; `made` gets an item for each."""

    def __init__(
        self,
        *waits: tuple[float | None, bool] | BaseException,
        requested_s: float = 0.0,
    ) -> None:
        super().__init__("steps", DeliveryRequests(()), lambda: None)
        self.made: Queue[int] = Queue()
        self.ended = threading.Event()
        self._waits = iter(waits)
        self._count = 0
        self._rests = False
        self._requested_s = requested_s
        self.failures: list[str] = []

    @property
    def exporter_state(self) -> ExporterState:
        return ExporterState(exporter="steps")

    @property
    def requested_wait_s(self) -> float:
        return self._requested_s

    def close(self) -> None:
        self.ended.set()

    @property
    def rests(self) -> bool:
        return self._rests

    def step(self) -> float | None:
        self._count += 1
        self.made.put(self._count)
        wait = next(self._waits, (None, True))
        if isinstance(wait, BaseException):
            raise wait
        self._rests = not wait[1]
        return wait[0]

    def failed(self, exc: BaseException) -> float:
        self.failures.append(type(exc).__name__)
        return 0.0


def test_steps_follow_one_another_until_one_waits_and_news_end_that() -> None:
    steps = Steps((0, True), (0.0, True), (None, True))
    steps.start()
    first = [steps.made.get(timeout=5) for _ in range(3)]

    steps.notify()

    assert (first, steps.made.get(timeout=5)) == ([1, 2, 3], 4)
    steps.stop()
    assert steps.join(5) is True
    assert steps.ended.is_set()


@pytest.mark.parametrize(("retry", "woken"), [(False, False), (True, True)])
def test_new_records_do_not_cut_a_wait_for_a_retry_short_but_a_request_to_retry_does(
    retry: bool, woken: bool
) -> None:
    steps = Steps((3600.0, False))
    steps.start()
    steps.made.get(timeout=5)

    steps.notify(retry=retry)
    made = not woken or steps.made.get(timeout=5) == 2
    steps.stop()

    assert (made, steps.join(5), steps.made.empty()) == (True, True, True)


@pytest.mark.parametrize(
    ("requested_s", "woken"), [(0.0, True), (0.05, True), (3000.0, False)]
)
def test_a_flush_retries_as_soon_as_the_tracker_allows_and_a_poke_to_retry_at_once(
    requested_s: float, woken: bool
) -> None:
    steps = Steps((3600.0, False), (3600.0, False), requested_s=requested_s)
    steps.start()
    steps.made.get(timeout=5)

    steps.notify(flush=True)
    made = not woken or steps.made.get(timeout=5) == 2
    steps.notify(retry=True)
    by_retry = steps.made.get(timeout=5)
    steps.stop()

    assert (made, by_retry) == (True, 3 if woken else 2)
    assert steps.join(5) is True


def test_a_wait_ends_by_itself() -> None:
    steps = Steps((0.001, False))

    steps.start()

    assert [steps.made.get(timeout=5) for _ in range(2)] == [1, 2]
    steps.stop()
    assert steps.join(5) is True


@pytest.mark.parametrize(
    "raised",
    [OSError("no more files"), SystemExit(1), asyncio.CancelledError(), MemoryError()],
)
def test_nothing_that_a_step_raises_ends_the_thread(raised: BaseException) -> None:
    steps = Steps(raised, (None, True))

    steps.start()

    assert [steps.made.get(timeout=5) for _ in range(2)] == [1, 2]
    steps.stop()
    assert steps.join(5) is True
    assert (steps.failures, steps.ended.is_set()) == ([type(raised).__name__], True)
