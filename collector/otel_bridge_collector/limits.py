"""How much is taken at one time and in one second; whoever comes beyond it is asked to come again."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from otel_bridge_collector.answers import ThrottledError


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """Limits of the receiver, of all clients together.

    Attributes:
        requests: Requests under way at one time.
        bytes_per_s: Bytes taken in a second, on average over two; ``None``: as fast as they come.
    """

    requests: int
    bytes_per_s: int | None = None


class Limits:
    """Counts. For one thread, the event loop's.

    Args:
        settings: The limits.
        now_s: Tells the time.
    """

    def __init__(self, settings: LimitSettings, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._settings, self._now_s = settings, now_s
        self.under_way = 0
        self._room = float(2 * (settings.bytes_per_s or 0))
        self._filled_s = now_s()

    def enter(self) -> None:
        """Begin a request; `leave` ends it, also after an error of `charge`.

        Raises:
            ThrottledError: Too many are under way; nothing was begun.
        """
        if self.under_way >= self._settings.requests:
            raise ThrottledError(f"{self.under_way} requests are under way (OTEL_BRIDGE_MAX_REQUESTS); send it again")
        self.under_way += 1

    def charge(self, size_bytes: int) -> None:
        """Count the bytes of a request.

        Raises:
            ThrottledError: The rate is used up; a request larger than a second's worth passes when it has rested.
        """
        rate = self._settings.bytes_per_s
        if rate is None:
            return
        now_s = self._now_s()
        self._room = min(self._room + (now_s - self._filled_s) * rate, 2.0 * rate)
        self._filled_s = now_s
        if self._room < min(size_bytes, rate):
            raise ThrottledError(f"more than {rate} bytes a second come in (OTEL_BRIDGE_MAX_RATE); send it again")
        self._room -= size_bytes

    def leave(self) -> None:
        """End a request."""
        self.under_way -= 1
