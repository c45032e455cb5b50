from __future__ import annotations

import threading
from queue import Queue

import pytest

from otel_bridge.bridge.step_thread import StepThread


class Steps:
    """A thread whose steps return what they are told; `made` gets an item for each."""

    def __init__(self, *waits: tuple[float | None, bool]) -> None:
        self.made: Queue[int] = Queue()
        self.ended = threading.Event()
        self._waits = iter(waits)
        self._count = 0
        self.thread = StepThread(self._step, ended=self.ended.set, name="steps")

    def _step(self) -> tuple[float | None, bool]:
        self._count += 1
        self.made.put(self._count)
        return next(self._waits, (None, True))


def test_steps_follow_one_another_until_one_waits_and_news_end_that() -> None:
    steps = Steps((0, True), (0.0, True), (None, True))
    steps.thread.start()
    first = [steps.made.get(timeout=5) for _ in range(3)]

    steps.thread.poke()

    assert (first, steps.made.get(timeout=5)) == ([1, 2, 3], 4)
    steps.thread.stop()
    assert steps.thread.join(5) is True
    assert steps.ended.is_set()


@pytest.mark.parametrize(("retry", "woken"), [(False, False), (True, True)])
def test_news_do_not_cut_a_wait_for_a_retry_short_but_a_poke_to_retry_does(retry: bool, woken: bool) -> None:
    steps = Steps((3600.0, False))
    steps.thread.start()
    steps.made.get(timeout=5)

    steps.thread.poke(retry=retry)
    made = not woken or steps.made.get(timeout=5) == 2
    steps.thread.stop()

    assert (made, steps.thread.join(5), steps.made.empty()) == (True, True, True)


def test_a_wait_ends_by_itself() -> None:
    steps = Steps((0.001, False))

    steps.thread.start()

    assert [steps.made.get(timeout=5) for _ in range(2)] == [1, 2]
    steps.thread.stop()
    assert steps.thread.join(5) is True
