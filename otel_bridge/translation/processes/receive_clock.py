"""Since when producers elsewhere could be received: what waits for them does not age while no receiver was up. Pure."""

from __future__ import annotations


class ReceiveClock:
    """One translator's time of listening to one kind of connection: rows and spans come back each by its own.

    Args:
        opened_unix_ns: When it began; what began to wait before was waited for by another, and nobody in between. 0: it
            has listened all along.
        late_ns: How long the first of them may take to come back after that.
    """

    def __init__(self, opened_unix_ns: int, late_ns: int) -> None:
        self.opened_ns = opened_unix_ns
        self._late_ns = late_ns
        self._received_ns = 0

    def receive(self, now_unix_ns: int) -> bool:
        """Note that a receiver took something *now*: what was under way when nobody listened is on its way again.

        Returns:
            Whether it is the first since listening began, so that other times are due than were before.
        """
        if self._received_ns or now_unix_ns < self.opened_ns:
            return False
        self._received_ns = now_unix_ns
        return True

    def due(self, since_ns: int, wait_ns: int) -> int:
        """Return when *wait_ns* of listening have passed for what began to wait at *since_ns*."""
        if since_ns >= self.opened_ns:
            return since_ns + wait_ns
        if self._received_ns:
            return self._received_ns + wait_ns
        return self.opened_ns + max(self._late_ns, wait_ns)
