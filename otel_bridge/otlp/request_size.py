"""How many items go into one request: fewer after one that timed out, more again after requests that went through.

A server that needs longer than the time-out for a full request would get the same request for ever.
No I/O besides the writer's memory, which keeps the size when a writer is opened anew.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from datetime import timezone
from email.utils import parsedate_to_datetime
from typing import TypeVar

from otel_bridge.errors import RetryableError
from otel_bridge.exporter import WriterMemory

T = TypeVar("T")
E = TypeVar("E", bound=Exception)
_GROW_AFTER = 16
"""Requests that were at least half full and went through, after which the next may be twice as large.

One that is too large costs a whole time-out.
"""


class RequestSize:
    """Bounds the items of one kind of request. For one thread.

    Args:
        most: Items of the largest request.
        least: Items of the smallest request; a smaller one is not tried.
        memory: Where a size below *most* is kept; ``None``: in this object alone.
        key: Its key there.

    Raises:
        JournalError: *memory* cannot be read, or, after a request, not be written.
    """

    def __init__(
        self,
        most: int,
        *,
        least: int = 1,
        memory: WriterMemory | None = None,
        key: str = "request_size",
    ) -> None:
        self._most = most
        self._least = least
        self._memory = memory
        self._key = key
        self._size = most
        self._full = 0
        kept = memory.get(key) if memory is not None else None
        if kept is not None and kept.isdigit():
            self._size = min(max(int(kept), least), most)

    @property
    def now(self) -> int:
        """Return how many items the next request may hold."""
        return self._size

    @contextmanager
    def request(self, items: int) -> Generator[None]:
        """Observe one request of *items*; what it raises is passed on.

        Only a time-out makes requests smaller; other errors say nothing about the size.

        Args:
            items: How many it holds.
        """
        try:
            yield
        except RetryableError as exc:
            if exc.timed_out:
                self._full = 0
                # Half of what timed out, which may be less than the limit.
                self._set(min(self._size, max(items // 2, self._least)))
            raise
        # A small request that went through says nothing about a full one.
        if items * 2 < self._size or self._size == self._most:
            return
        self._full += 1
        if self._full >= _GROW_AFTER:
            self._full = 0
            self._set(min(self._size * 2, self._most))

    def _set(self, size: int) -> None:
        """Take *size* from now on, and keep it in the memory; raises what that raises."""
        if size == self._size:
            return
        self._size = size
        # At full size there is nothing to remember: a new writer begins there.
        if self._memory is not None and size == self._most:
            self._memory.delete(self._key)
        elif self._memory is not None:
            self._memory.put(self._key, str(size).encode())


def refused_items(
    items: Sequence[T], send: Callable[[Sequence[T]], object], refusal: type[E]
) -> Iterator[tuple[T, E]]:
    """Send *items*; yield each one that is refused alone, with its error, before those after it are sent.

    For a server that refuses a request as a whole and does not name the item at fault. What is sent
    again must change nothing.

    Nothing when the request goes through. One refused item of n costs about 2 log n requests.

    Args:
        items: Items of one request, at least one.
        send: Makes the request.
        refusal: Raised by *send* when the request is refused; its other errors are passed on.
    """
    try:
        send(items)
    except refusal as exc:
        if len(items) == 1:
            yield items[0], exc
            return
        middle = len(items) // 2
        yield from refused_items(items[:middle], send, refusal)
        yield from refused_items(items[middle:], send, refusal)


# The header ``Retry-After`` of a server that is busy -> how long to wait. Source: RFC 9110, section
# 10.2.3.

_SECONDS = re.compile(r"[0-9]{1,10}")


def retry_after_s(header: str | None) -> float | None:
    """Return the seconds to wait; ``None`` when *header* names none or cannot be understood.

    A header that cannot be understood must not stop the retries: their own pauses apply then.

    Args:
        header: Whole seconds, or a date, as proxies send it; one that has passed means at once.
    """
    text = (header or "").strip()
    if _SECONDS.fullmatch(text):
        return float(text)
    try:
        date = parsedate_to_datetime(text)
        # A date without a zone is UTC.
        if date.tzinfo is None:
            date = date.replace(tzinfo=timezone.utc)
        return max(date.timestamp() - time.time(), 0.0)
    except (TypeError, ValueError, OverflowError):
        return None
