from __future__ import annotations

import asyncio
import threading
from queue import Queue

import pytest

from otel_bridge.bridge.delivery.worker import DeliveryThread


class Steps:
    """A thread whose steps return what they are given; `made` gets an item for each."""

    def __init__(
        self,
        *waits: tuple[float | None, bool] | BaseException,
        requested_s: float = 0.0,
    ) -> None:
        self.made: Queue[int] = Queue()
        self.ended = threading.Event()
        self._waits = iter(waits)
        self._count = 0
        self.failures: list[str] = []
        self.thread = DeliveryThread(
            self._step,
            failed=self._failed,
            ended=self.ended.set,
            name="steps",
            requested_s=lambda: requested_s,
        )

    def _step(self) -> tuple[float | None, bool]:
        self._count += 1
        self.made.put(self._count)
        wait = next(self._waits, (None, True))
        if isinstance(wait, BaseException):
            raise wait
        return wait

    def _failed(self, exc: BaseException) -> float:
        self.failures.append(type(exc).__name__)
        return 0.0


def test_steps_follow_one_another_until_one_waits_and_news_end_that() -> None:
    steps = Steps((0, True), (0.0, True), (None, True))
    steps.thread.start()
    first = [steps.made.get(timeout=5) for _ in range(3)]

    steps.thread.notify()

    assert (first, steps.made.get(timeout=5)) == ([1, 2, 3], 4)
    steps.thread.stop()
    assert steps.thread.join(5) is True
    assert steps.ended.is_set()


@pytest.mark.parametrize(("retry", "woken"), [(False, False), (True, True)])
def test_new_records_do_not_cut_a_wait_for_a_retry_short_but_a_request_to_retry_does(
    retry: bool, woken: bool
) -> None:
    steps = Steps((3600.0, False))
    steps.thread.start()
    steps.made.get(timeout=5)

    steps.thread.notify(retry=retry)
    made = not woken or steps.made.get(timeout=5) == 2
    steps.thread.stop()

    assert (made, steps.thread.join(5), steps.made.empty()) == (True, True, True)


@pytest.mark.parametrize(
    ("requested_s", "woken"), [(0.0, True), (0.05, True), (3000.0, False)]
)
def test_a_flush_retries_as_soon_as_the_tracker_allows_and_a_poke_to_retry_at_once(
    requested_s: float, woken: bool
) -> None:
    steps = Steps((3600.0, False), (3600.0, False), requested_s=requested_s)
    steps.thread.start()
    steps.made.get(timeout=5)

    steps.thread.notify(flush=True)
    made = not woken or steps.made.get(timeout=5) == 2
    steps.thread.notify(retry=True)
    by_retry = steps.made.get(timeout=5)
    steps.thread.stop()

    assert (made, by_retry) == (True, 3 if woken else 2)
    assert steps.thread.join(5) is True


def test_a_wait_ends_by_itself() -> None:
    steps = Steps((0.001, False))

    steps.thread.start()

    assert [steps.made.get(timeout=5) for _ in range(2)] == [1, 2]
    steps.thread.stop()
    assert steps.thread.join(5) is True


@pytest.mark.parametrize(
    "raised",
    [OSError("no more files"), SystemExit(1), asyncio.CancelledError(), MemoryError()],
)
def test_nothing_that_a_step_raises_ends_the_thread(raised: BaseException) -> None:
    steps = Steps(raised, (None, True))

    steps.thread.start()

    assert [steps.made.get(timeout=5) for _ in range(2)] == [1, 2]
    steps.thread.stop()
    assert steps.thread.join(5) is True
    assert (steps.failures, steps.ended.is_set()) == ([type(raised).__name__], True)
