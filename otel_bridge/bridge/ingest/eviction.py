"""Evicts records when a directory is near its limit, before a trainer has to drop any.

First the records that only a destination which is no longer named has not got. Then those that a
tracker's store does not confirm (W&B offline). Never a record that an exporter of the run has not
written.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

from otel_bridge.bridge.delivery.exporter_set import ExporterSet
from otel_bridge.bridge.ledger.exporter_state import ExporterState
from otel_bridge.bridge.ledger.queries import LedgerView
from otel_bridge.bridge.ledger.run_ledger import Ledger
from otel_bridge.bridge.options import BridgeOptions
from otel_bridge.bridge.requested_exporters import RequestedExporters
from otel_bridge.journal.quota import Quota

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


class Eviction:
    """Keeps one run's part of a directory within the limit. One thread.

    Args:
        fullness: Measures the directory; shared by its runs.
        ledger: The run's ledger.
        view: Reads the ledger.
        workers: Workers of the run's exporters.
        requested: What the run's exporters are owed.
        evicted: Called with a line about what was done when records were evicted.
    """

    def __init__(
        self,
        fullness: Fullness,
        ledger: Ledger,
        view: LedgerView,
        workers: ExporterSet,
        requested: RequestedExporters,
        *,
        evicted: Callable[[str], None],
    ) -> None:
        self._fullness = fullness
        self._ledger = ledger
        self._view = view
        self._workers = workers
        self._requested = requested
        self._evicted = evicted
        self._last_count = 0

    def evict_if_near(self) -> None:
        """Evict the oldest half of the evictable records when the directory is near its limit."""
        if self._is_near():
            sentence = self._make_room()
            if sentence:
                self._evicted(sentence)

    def _is_near(self) -> bool:
        """Return whether room is needed; at most once for each count of the directory."""
        count = self._fullness.counted()
        # All runs of a directory see one count, and each evicts at most once for it.
        is_new = count > self._last_count
        self._last_count = max(count, self._last_count)
        return is_new

    def _make_room(self) -> str:
        """Evict the oldest half of the evictable records.

        Return a line about what was done, empty when nothing could be evicted: a record that an
        exporter of the run has not written always stays. What is evicted is counted for each
        destination that lacks it. Raises `JournalError`.
        """
        oldest = self._view.oldest()
        destinations = self._view.destinations()
        named_destinations = [
            destination for destination in destinations if destination.named
        ]
        durable = min(
            (destination.durable for destination in named_destinations),
            default=self._ledger.position,
        )
        through = _half(oldest, durable)
        # First what only exporters need that are no longer named: a bridge was not given them.
        if through and self._pinned(destinations) < through:
            self._evict(through)
            return f"records up to {through} are evicted, although exporters that are no longer named lack them"
        written = min(
            (destination.written for destination in named_destinations),
            default=self._ledger.position,
        )
        through = _half(oldest, written)
        if not through:
            return ""
        self._evict(through)
        # Only then records that trackers have and did not confirm; unwritten ones always stay.
        for worker in self._workers.by_name.values():
            worker.requests.skip_through(through)
        return f"records up to {through} are evicted, although not every tracker's store confirmed them"

    def _pinned(self, destinations: Iterable[ExporterState]) -> int:
        """Return the position from which on records are kept for exporters that are no longer named.

        The ledger's last position when none is kept for such an exporter.
        """
        positions = [
            destination.durable for destination in destinations if not destination.named
        ]
        requested = self._requested.keep_from()
        if requested is not None:
            positions.append(requested)
        return min(positions, default=self._ledger.position)

    def _evict(self, through: int) -> None:
        self._ledger.evict_from_unnamed(through)
        self._requested.evict(through)


def _half(oldest: int, through: int) -> int:
    if through < oldest:
        return 0
    return oldest + (through - oldest) // 2
