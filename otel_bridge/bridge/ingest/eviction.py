"""Evicts records when a directory is near its limit, before a trainer has to drop any.

First the records that are missing only in destinations which the run no longer has. Then those that
a tracker's store does not confirm (W&B offline). Never a record that an exporter of the run has not
written.
"""

from __future__ import annotations

import time
from pathlib import Path

from otel_bridge.bridge.delivery.exporter_set import ExporterSet
from otel_bridge.bridge.ledger.queries import LedgerView
from otel_bridge.bridge.ledger.run_ledger import Ledger
from otel_bridge.bridge.options import BridgeOptions
from otel_bridge.bridge.requested_exporters import RequestedExporters
from otel_bridge.journal.quota import Quota
from otel_bridge.records import Position

NEAR = 0.9
"""Share of the limit at which records are evicted; at the whole limit trainers drop records."""
COUNT_POLLS = 100
"""Polls between two checks of the size of the directory: five seconds."""


class Fullness:
    """Measures how near a directory is to its limit: rarely, and once for all of its runs. One thread.

    Args:
        base: The directory of all run folders.
        options: Options of the bridge, with the limit of its size.
    """

    def __init__(self, base: Path, options: BridgeOptions) -> None:
        self._quota = Quota(base, options.max_bytes)
        self._count_s = COUNT_POLLS * options.poll_s
        self._again_s = 0.0
        self._counted = 0
        self._is_near = False

    def counted(self) -> int:
        """Return the number of the newest count, 0 when the directory is not near its limit.

        Count when it is due: at most a hundredth of the time, since a directory may hold thousands
        of files. The same number means the same count, so that each run evicts at most once for it.
        """
        now = time.monotonic()
        if now >= self._again_s:
            used = self._quota.used_bytes()
            # Counting takes at most a hundredth of the time.
            self._again_s = time.monotonic() + max(
                self._count_s, 100 * (time.monotonic() - now)
            )
            self._is_near = used >= NEAR * self._quota.limit_bytes(used)
            self._counted += 1
        if self._is_near:
            return self._counted
        return 0


def evict(
    ledger: Ledger,
    view: LedgerView,
    workers: ExporterSet,
    requested: RequestedExporters,
) -> str:
    """Evict the oldest half of a run's evictable records, because its directory is near the limit.

    Return a line about what was done, empty when nothing could be evicted: a record that an
    exporter of the run has not written always stays. What is evicted is counted for each
    destination that lacks it. Raises `JournalError`.
    """
    oldest = view.oldest()
    durable = ledger.position
    written = ledger.position
    pinned = ledger.position
    keep_from = requested.keep_from()
    if keep_from is not None:
        pinned = min(pinned, keep_from)
    for destination in view.destinations():
        if destination.named:
            durable = min(durable, destination.durable)
            written = min(written, destination.written)
        else:
            pinned = min(pinned, destination.durable)
    through = _half(oldest, durable)
    # First what only exporters lack that are no longer named, or that this bridge was not given.
    if through and pinned < through:
        ledger.evict_from_unnamed(through)
        requested.evict(through)
        return f"records up to {through} are evicted, although exporters that are no longer named lack them"
    through = _half(oldest, written)
    if not through:
        return ""
    ledger.evict_from_unnamed(through)
    requested.evict(through)
    # Only then records that trackers have and did not confirm; unwritten ones always stay.
    for worker in workers.by_name.values():
        worker.requests.skip_through(through)
    return f"records up to {through} are evicted, although not every tracker's store confirmed them"


def _half(oldest: Position, through: Position) -> Position:
    """Return the middle of the records from *oldest* up to *through*; 0 without any.

    Half of them: that makes room for a while, and the newest stay for exporters that may still need them.
    """
    if through < oldest:
        return 0
    return oldest + (through - oldest) // 2
