"""Pages that take long: however many clients ask, one is made at a time, and nobody gets an old one."""

from __future__ import annotations

import asyncio
import threading

import pytest

from otel_bridge_collector.http.shared_page import SharedPage


class _Page:
    """Makes numbered pages, each when the test lets it; notes how many were made at once."""

    def __init__(self) -> None:
        self.made = self.at_once = self.most_at_once = 0
        self.begun, self.may_end = threading.Semaphore(0), threading.Semaphore(0)

    def make(self) -> str:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.made += 1
        page = f"page {self.made}"
        self.begun.release()
        self.may_end.acquire()
        self.at_once -= 1
        return page


def test_requests_that_come_while_a_page_is_made_share_the_next_one() -> None:
    page = _Page()

    async def ask() -> list[str | bytes]:
        shared = SharedPage(page.make)
        first = asyncio.create_task(shared.get())
        await asyncio.to_thread(page.begun.acquire)
        later = [asyncio.create_task(shared.get()) for _ in range(50)]
        await asyncio.sleep(0)
        page.may_end.release(2)
        return [await first, *[await one for one in later]]

    assert asyncio.run(ask()) == ["page 1", *["page 2"] * 50]
    assert page.most_at_once == 1


def test_a_client_that_leaves_does_not_end_the_page_of_the_others() -> None:
    page = _Page()

    async def ask() -> str | bytes:
        shared = SharedPage(page.make)
        leaving = asyncio.create_task(shared.get())
        staying = asyncio.create_task(shared.get())
        await asyncio.to_thread(page.begun.acquire)
        leaving.cancel()
        page.may_end.release()
        return await staying

    assert asyncio.run(ask()) == "page 1"


def test_a_page_that_cannot_be_made_fails_for_who_asked_and_is_tried_again() -> None:
    answers = iter([OSError("disk"), b"fine"])

    def make() -> bytes:
        found = next(answers)
        if isinstance(found, OSError):
            raise found
        return found

    async def ask() -> str | bytes:
        shared = SharedPage(make)
        with pytest.raises(OSError, match="disk"):
            await shared.get()
        return await shared.get()

    assert asyncio.run(ask()) == b"fine"
