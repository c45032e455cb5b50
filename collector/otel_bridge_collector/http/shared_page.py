"""Shares a page that takes long to make among clients that request it at the same time, to limit their cost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class SharedPage:
    """Makes a page in a thread, one at a time. For the event loop.

    A request gets a page that was begun after the request arrived: requests that arrive meanwhile
    share the next page.

    Args:
        make: Makes the page; called in another thread.
    """

    def __init__(self, make: Callable[[], str | bytes]) -> None:
        self._make = make
        self._one_at_a_time = asyncio.Lock()
        self._next: asyncio.Task[str | bytes] | None = None

    async def get(self) -> str | bytes:
        """Return the present page; raise the error of *make*."""
        if self._next is None:
            self._next = asyncio.create_task(self._make_next())
        # A client that disconnects must not cancel the page for others.
        return await asyncio.shield(self._next)

    async def _make_next(self) -> str | bytes:
        async with self._one_at_a_time:
            # Before it is made: who asks from here on must get a newer page.
            self._next = None
            return await asyncio.to_thread(self._make)
