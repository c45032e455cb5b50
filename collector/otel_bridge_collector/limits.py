"""Limits connections, concurrent requests and bytes per second.

A request above a limit is asked to come again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from otel_bridge.bridge.serving.process_limits import descriptor_limit
from otel_bridge_collector.error_table import ThrottledError

HEAD_BYTES = 64 << 10
"""Most bytes of the head of an HTTP request."""
HEAD_S = 30.0
"""Most time that the head of an HTTP request may take."""
CONNECTIONS = 1024
_FEWEST = 8


def max_connections() -> int:
    """Return how many connections a server may have: a quarter of the descriptors, `CONNECTIONS` at most.

    The rest is for segments, syncs and files of the bridge.
    """
    return min(CONNECTIONS, max(descriptor_limit() // 4, _FEWEST))


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """Holds the limits of the receiver, for all clients together.

    Attributes:
        requests: Most concurrent requests.
        bytes_per_s: Most bytes per second, averaged over two seconds; ``None`` for no limit.
    """

    requests: int
    bytes_per_s: int | None = None


class ReceiverLimits:
    """Counts running requests and bytes, and enforces the limits. For the event loop's thread.

    Args:
        settings: The limits.
    """

    def __init__(self, settings: LimitSettings) -> None:
        self._settings = settings
        self.under_way = 0
        # Full at the start: two seconds' bytes may come at once, which is the average's window.
        self._room = float(2 * (settings.bytes_per_s or 0))
        self._filled_s = time.monotonic()

    def enter(self) -> None:
        """Begin a request; `leave` ends it, also after an error of `charge`.

        Raises:
            ThrottledError: Too many requests are running; nothing was begun.
        """
        if self.under_way >= self._settings.requests:
            raise ThrottledError(
                f"{self.under_way} requests are under way (OTEL_BRIDGE_MAX_REQUESTS); send it again"
            )
        self.under_way += 1

    def charge(self, size_bytes: int) -> None:
        """Count the bytes of a request.

        Raises:
            ThrottledError: The rate is used up. A request larger than a second's bytes passes after
                a pause.
        """
        rate = self._settings.bytes_per_s
        if rate is None:
            return
        now_s = time.monotonic()
        self._room = min(self._room + (now_s - self._filled_s) * rate, 2.0 * rate)
        self._filled_s = now_s
        # A request larger than a second's bytes needs a full second of room only, else it never
        # passed.
        if self._room < min(size_bytes, rate):
            raise ThrottledError(
                f"more than {rate} bytes a second come in (OTEL_BRIDGE_MAX_RATE); send it again"
            )
        # May fall below zero: what a large request took beyond the room is waited for afterwards.
        self._room -= size_bytes

    def leave(self) -> None:
        """End a request."""
        self.under_way -= 1
