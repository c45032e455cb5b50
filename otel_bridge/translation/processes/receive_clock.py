"""Clock of receiving: what waits for remote producers does not age while no receiver is up. Pure."""

from __future__ import annotations


class ReceiveClock:
    """Measures how long one translator receives one kind of connection.

    Rows and spans reconnect separately.

    Args:
        opened_unix_ns: Unix ns when the translator began to receive. Whatever waited earlier waited
            for another translator, and no receiver was up in between. 0: it has always received.
        late_ns: Longest time until the first producer reconnects after that.
    """

    def __init__(self, opened_unix_ns: int, late_ns: int) -> None:
        self.opened_ns = opened_unix_ns
        self._late_ns = late_ns
        self._received_ns = 0

    def receive(self, now_unix_ns: int) -> bool:
        """Note that a receiver accepted data *now*: data from the time without a receiver are on their way again.

        Returns:
            Whether these are the first data since the translator began to receive, so that due
            times change. ``False`` too for data of before, which another translator received.
        """
        if self._received_ns or now_unix_ns < self.opened_ns:
            return False
        self._received_ns = now_unix_ns
        return True

    def due(self, since_ns: int, wait_ns: int) -> int:
        """Return the time at which data waiting since *since_ns* have waited *wait_ns* with a receiver up."""
        if since_ns >= self.opened_ns:
            return since_ns + wait_ns
        if self._received_ns:
            return self._received_ns + wait_ns
        return self.opened_ns + max(self._late_ns, wait_ns)
