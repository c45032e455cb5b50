"""Deletes segments that are read and forwarded; evicts records when the directory is near its limit."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from otel_bridge.bridge.delivery.requested import RequestedExporters
from otel_bridge.bridge.delivery.worker import ExporterWorker
from otel_bridge.bridge.ingest.bridge_segment import KIND
from otel_bridge.bridge.ingest.segment_reader import SegmentReader
from otel_bridge.bridge.ingest.segment_tailer import SegmentTailer
from otel_bridge.bridge.ledger.ledger import Ledger
from otel_bridge.bridge.ledger.queries import LedgerView
from otel_bridge.bridge.ledger.rows import SegmentPosition
from otel_bridge.bridge.options import BridgeOptions
from otel_bridge.errors import JournalError
from otel_bridge.exporter import OTLP
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.quota import Quota


def delete_read_segments(
    folder: RunFolder,
    ledger: Ledger,
    reader: SegmentReader,
    forwarding: Sequence[SegmentPosition] | None,
    *,
    of_all: bool = True,
) -> int:
    """Delete whole segments that no reader needs, after a sync of the ledger; return how many were deleted.

    Args:
        folder: The run folder.
        ledger: Its ledger.
        reader: Its reader, whose results are all committed.
        forwarding: Positions up to which ``otlp`` forwarded each process; ``None`` when the run has no ``otlp``.
        of_all: Whether ``otlp`` is active and reads every segment; else only processes that requested it count.

    Raises:
        OSError: A segment cannot be deleted; the others are deleted.
        JournalError: The ledger cannot be synced to the disk.
    """
    forwarded = None if forwarding is None else {item.instance_id: item for item in forwarding}
    due = {
        name: _keep_from(tail, forwarded if of_all or asks_otlp(tail) else None) for name, tail in reader.tails.items()
    }
    work = {name: keep for name, keep in due.items() if keep > reader.tails[name].first_number}
    if not work:
        return 0
    ledger.database.sync()
    deleted, failed = 0, None
    for name, keep in work.items():
        try:
            deleted += _delete_of(folder, ledger, reader, name, keep)
        except OSError as exc:  # noqa: PERF203  # the others are deleted all the same
            failed = exc
    if failed is not None:
        raise failed
    return deleted


def not_forwarded(reader: SegmentReader, forwarding: Sequence[SegmentPosition]) -> int:
    """Return the number of segments that ``otlp`` has not forwarded, of processes that requested it."""
    at = {item.instance_id: (item.forwarded_number, item.forwarded_offset) for item in forwarding}
    return sum(
        tail.data_end[0] - max(at.get(name, (0, 0))[0], tail.first_number) + 1
        for name, tail in reader.tails.items()
        if asks_otlp(tail) and at.get(name, (0, 0)) < tail.data_end
    )


def asks_otlp(tail: SegmentTailer) -> bool:
    """Return whether the process requested ``otlp``; records that a bridge wrote for such processes go there too."""
    header = tail.header
    return header is not None and (header.kind == KIND or any(OTLP in names for names in header.exporters.values()))


def forget_own(folder: RunFolder, ledger: Ledger, reader: SegmentReader, instance_id: str) -> None:
    """Delete the bridge's own segments, all read; the next bridge deletes what cannot be deleted now."""
    tail = reader.tails.get(instance_id)
    if tail is None:
        return
    with contextlib.suppress(JournalError, OSError):
        ledger.database.sync()
        for number in sorted(tail.numbers):
            folder.segment_path(instance_id, number).unlink()
        ledger.forget_source(instance_id)


def _delete_of(folder: RunFolder, ledger: Ledger, reader: SegmentReader, name: str, keep: int) -> int:
    """Delete the segments of one process before number *keep*."""
    tail, deleted = reader.tails[name], 0
    for number in sorted(number for number in tail.numbers if number < keep):
        with contextlib.suppress(FileNotFoundError):
            folder.segment_path(name, number).unlink()
            deleted += 1
        tail.deleted_before(number + 1)
    tail.deleted_before(keep)
    if keep > tail.last_number and tail.used_up:
        # The files are deleted first: a source without files is harmless, files without a source are read again.
        with contextlib.suppress(FileNotFoundError):
            folder.life_path(name).unlink()
        ledger.forget_source(name)
        del reader.tails[name]
    return deleted


def _keep_from(tail: SegmentTailer, forwarded: dict[str, SegmentPosition] | None) -> int:
    """Return the number of the first segment that is still needed."""
    if tail.refused:
        return tail.first_number
    keep = tail.source.number
    if tail.used_up and tail.ended:
        keep = tail.last_number + 1
    if forwarded is None:
        return keep
    at = forwarded.get(tail.instance_id)
    if at is None:
        return tail.first_number
    if (at.forwarded_number, at.forwarded_offset) >= tail.data_end:
        return keep
    return min(keep, at.forwarded_number)


# Decides which records are evicted when a directory is near its limit, before a trainer has to drop any.
#
# First the records that only a destination which is no longer named has not got, then those that a tracker's store does
# not confirm (W&B offline). Never a record that an exporter of the run has not written.

NEAR: Final = 0.9
"""Share of the limit at which records are evicted; at the whole limit trainers drop records."""
LOOK_POLLS: Final = 100
"""Polls between two checks of the size of the directory: five seconds."""


class Fullness:
    """Measures how near a directory is to its limit: rarely, and once for all of its runs. One thread.

    Args:
        base: The directory of all run folders.
        max_bytes: Limit of its size.
        look_s: Least seconds between two counts.
    """

    def __init__(self, base: Path, max_bytes: int, *, look_s: float) -> None:
        self._quota, self._look_s = Quota(base, max_bytes), look_s
        self._again_s = 0.0
        self._counted = 0
        self._is_near = False

    def counted(self) -> int:
        """Return the number of the newest count, 0 when the directory is not near its limit; count when it is due."""
        now = time.monotonic()
        if now >= self._again_s:
            used = self._quota.used_bytes()
            # Counting takes at most a hundredth of the time.
            self._again_s = time.monotonic() + max(self._look_s, 100 * (time.monotonic() - now))
            self._is_near = used >= NEAR * self._quota.limit_bytes(used)
            self._counted += 1
        return self._counted if self._is_near else 0


class Retention:
    """Keeps one run's part of a directory within the limit. One thread.

    Args:
        fullness: Measures the directory; shared by its runs.
    """

    def __init__(self, fullness: Fullness) -> None:
        self._fullness = fullness
        self._seen = 0

    def near(self) -> bool:
        """Return whether room is needed; at most once for each count of the directory."""
        counted = self._fullness.counted()
        news, self._seen = counted > self._seen, max(counted, self._seen)
        return news

    def make_room(
        self, ledger: Ledger, view: LedgerView, workers: Iterable[ExporterWorker], requested: RequestedExporters
    ) -> str:
        """Evict the oldest half of the evictable records; return a line about what was done, empty when nothing was."""
        oldest, destinations = view.oldest(), view.destinations()
        named = [item for item in destinations if item.named]
        written = min((item.written for item in named), default=ledger.position)
        durable = min((item.durable for item in named), default=ledger.position)
        keep_from = requested.keep_from()
        pinned = [item.durable for item in destinations if not item.named]
        pinned += [] if keep_from is None else [keep_from]
        if (through := _half(oldest, durable)) and any(position < through for position in pinned):
            ledger.take_from_unnamed(through)
            requested.evict(through)
            return f"records up to {through} are evicted, although exporters that are no longer named lack them"
        if through := _half(oldest, written):
            ledger.take_from_unnamed(through)
            requested.evict(through)
            for worker in workers:
                worker.skip_through(through)
            return f"records up to {through} are evicted, although not every tracker's store confirmed them"
        return ""


def fullness_of(folder: RunFolder, options: BridgeOptions) -> Fullness:
    """Return the fullness of the directory of *folder*."""
    return Fullness(folder.base, options.max_bytes, look_s=LOOK_POLLS * options.poll_s)


def _half(oldest: int, through: int) -> int:
    return 0 if through < oldest else oldest + (through - oldest) // 2
