"""What goes first when the limit of a directory is near, before a trainer has to drop anything.

First records that only a destination no longer named has not got, then those that a tracker's store will not vouch for
(W&B offline). Never a record that an exporter of the run has not written.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from otel_bridge.bridge.ledger import Ledger
from otel_bridge.bridge.view import View
from otel_bridge.bridge.worker import Lane
from otel_bridge.journal.quota import Quota

NEAR: Final = 0.9
"""Share of the limit at which records go; at the whole limit trainers drop."""
LOOK_POLLS: Final = 100
"""Polls between two looks at how full the directory is: five seconds."""


class Bound:
    """Keeps one run's part of a directory within the limit. One thread.

    Args:
        base: The directory of all run folders.
        max_bytes: Its limit.
        look_s: How often it is looked at, at most.
    """

    def __init__(self, base: Path, max_bytes: int, *, look_s: float) -> None:
        self._quota, self._look_s = Quota(base, max_bytes), look_s
        self._again_s = 0.0

    def near(self) -> bool:
        """Say whether room is needed; counted seldom."""
        now = time.monotonic()
        if now < self._again_s:
            return False
        used = self._quota.used_bytes()
        # Counting takes at most a hundredth of the time.
        self._again_s = time.monotonic() + max(self._look_s, 100 * (time.monotonic() - now))
        return used >= NEAR * self._quota.limit_bytes(used)

    def make_room(self, ledger: Ledger, view: View, lanes: Iterable[Lane]) -> str:
        """Let the oldest half of what may go, go; return what was done, empty when nothing could be."""
        oldest, destinations = view.oldest(), view.destinations()
        named = [item for item in destinations if item.named]
        written = min((item.written for item in named), default=ledger.position)
        safe = min((item.safe for item in named), default=ledger.position)
        if (through := _half(oldest, safe)) and any(item.safe < through for item in destinations if not item.named):
            ledger.take_from_unnamed(through)
            return f"records up to {through} go although exporters that are no longer named have not got them"
        if through := _half(oldest, written):
            ledger.take_from_unnamed(through)
            for lane in lanes:
                lane.let_go(through)
            return f"records up to {through} go although not every tracker's store is known to hold them"
        return ""


def _half(oldest: int, through: int) -> int:
    return 0 if through < oldest else oldest + (through - oldest) // 2
