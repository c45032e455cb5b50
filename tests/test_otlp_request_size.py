from __future__ import annotations

import pytest

from otel_bridge.errors import PermanentError, RetryableError
from otel_bridge.otlp.request_size import RequestSize
from otel_bridge.testing import MemoryTable


def timed_out(size: RequestSize, items: int) -> None:
    with pytest.raises(RetryableError), size.request(items):
        raise RetryableError("timed out", timed_out=True)


def went_through(size: RequestSize, items: int, times: int) -> None:
    for _ in range(times):
        with size.request(items):
            pass


def test_requests_that_time_out_are_halved_down_to_the_smallest() -> None:
    size = RequestSize(50, least=2)
    seen: list[int] = []

    for _ in range(6):
        seen.append(size.now)
        timed_out(size, size.now)

    assert (seen, size.now) == ([50, 25, 12, 6, 3, 2], 2)


def test_a_smaller_request_that_times_out_is_halved_from_what_it_held() -> None:
    size = RequestSize(1000)

    timed_out(size, 40)

    assert size.now == 20


def test_the_size_doubles_after_sixteen_requests_that_were_half_full_and_went_through() -> (
    None
):
    size = RequestSize(50)
    seen: list[int] = []
    timed_out(size, 50)
    timed_out(size, 25)

    for _ in range(3):
        went_through(size, 5, 16)  # they say nothing of larger ones
        went_through(size, (size.now + 1) // 2, 15)
        seen.append(size.now)
        went_through(size, size.now, 1)
        seen.append(size.now)

    assert seen == [12, 24, 24, 48, 48, 50]


def test_other_failures_change_nothing() -> None:
    size = RequestSize(50)

    for error in (RetryableError("503"), PermanentError("400")):
        with pytest.raises(type(error)), size.request(50):
            raise error

    assert size.now == 50


def test_a_size_is_kept_for_the_next_writer_until_it_is_the_largest_again() -> None:
    memory = MemoryTable()
    first = RequestSize(50, memory=memory, key="size")
    timed_out(first, 50)

    second = RequestSize(50, memory=memory, key="size")
    kept = second.now
    went_through(second, 25, 16)

    assert (kept, second.now, list(memory.items())) == (25, 50, [])


@pytest.mark.parametrize("kept", [b"1000", b"?"])
def test_a_kept_size_is_within_the_bounds_of_today(kept: bytes) -> None:
    memory = MemoryTable()
    memory.put("size", kept)

    assert RequestSize(50, memory=memory, key="size").now == 50
