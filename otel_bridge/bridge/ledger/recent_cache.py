"""Keeps the records committed last in memory, so that a writer that keeps up does not read them from the disk.

The ledger decides: records that are not in memory are read from the ledger. Only rows are kept as
objects, because no reader changes them. Other kinds are kept as the ledger's bytes, so that each
exporter gets its own object. Memory is limited for each run, and for all runs of the process
together. Thread-safe.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from otel_bridge.bridge.ledger.codec import decode
from otel_bridge.bridge.ledger.queries import RecordPage
from otel_bridge.errors import InvalidRecordError
from otel_bridge.records import Position, Record, Row

LIMIT_BYTES = 16 << 20
"""Limit of one run."""
ALL_BYTES = 64 << 20
"""Limit of all runs in the process."""
_OBJECT_FACTOR = 4
"""Approximate ratio of a row's size as an object to its size in the ledger."""

Encoded = tuple[Position, int, bytes]
"""Position, kind and bytes of a record as the ledger stores it."""


class CacheBudget:
    """Limits the bytes that several `RecentRecords` share. Thread-safe."""

    def __init__(self, limit_bytes: int) -> None:
        self._left = limit_bytes
        self._lock = threading.Lock()

    def take(self, size_bytes: int) -> bool:
        """Reserve *size_bytes*; return whether there was enough room."""
        with self._lock:
            if size_bytes > self._left:
                return False
            self._left -= size_bytes
            return True

    def give_back(self, size_bytes: int) -> None:
        """Return *size_bytes* to the budget."""
        with self._lock:
            self._left += size_bytes


ROOM = CacheBudget(ALL_BYTES)


@dataclass(slots=True)
class _Chunk:
    """Holds the records of one commit; both lists have shape (n,)."""

    first: Position
    last: Position
    rows: list[Row | None]
    encoded: list[Encoded]
    size_bytes: int


class RecentRecords:
    """Holds the last records of one run, without a gap between them.

    Args:
        limit_bytes: Most bytes to keep; the oldest commit is removed first.
        room: Budget shared with other runs.
    """

    def __init__(
        self, limit_bytes: int = LIMIT_BYTES, room: CacheBudget = ROOM
    ) -> None:
        self._limit = limit_bytes
        self._room = room
        self._chunks: deque[_Chunk] = deque()
        self._size_bytes = 0
        self._lock = threading.Lock()

    def add(self, records: Sequence[Record], encoded: Sequence[Encoded]) -> None:
        """Add the records of a commit: *records*, shape (n,), with positions, and *encoded*, the same as stored."""
        if not records:
            return
        size = _OBJECT_FACTOR * sum(len(data) for _, _, data in encoded)
        rows = [record if isinstance(record, Row) else None for record in records]
        chunk = _Chunk(encoded[0][0], encoded[-1][0], rows, list(encoded), size)
        with self._lock:
            # A gap would be read as if its records did not exist, so the older ones go.
            if self._chunks and chunk.first != self._chunks[-1].last + 1:
                self._drop(len(self._chunks))
            # Oldest first: exporters that are further behind read from the ledger anyway.
            while self._chunks and self._size_bytes + size > self._limit:
                self._drop(1)
            if size > self._limit or not self._room.take(size):
                self._drop(len(self._chunks))
                return
            self._chunks.append(chunk)
            self._size_bytes += size

    def records(
        self, position: Position, kinds: Sequence[int], *, limit: int, limit_bytes: int
    ) -> RecordPage | None:
        """Return the same page as `LedgerView.records`.

        ``None`` when records after *position* are not in memory.
        """
        with self._lock:
            if (
                not self._chunks
                or not self._chunks[0].first <= position + 1 <= self._chunks[-1].last
            ):
                return None
            # Copied under the lock, read outside it: decoding would hold up the next commit.
            chunks = list(self._chunks)
        return _picked(chunks, position, kinds, limit=limit, limit_bytes=limit_bytes)

    def forget(self, through: Position) -> None:
        """Remove the commits that hold no record after *through*."""
        with self._lock:
            while self._chunks and self._chunks[0].last <= through:
                self._drop(1)

    def close(self) -> None:
        """Remove all records."""
        with self._lock:
            self._drop(len(self._chunks))

    def _drop(self, number: int) -> None:
        """Remove the oldest *number* commits; the caller holds the lock."""
        for _ in range(number):
            chunk = self._chunks.popleft()
            self._size_bytes -= chunk.size_bytes
            self._room.give_back(chunk.size_bytes)


def _picked(
    chunks: Sequence[_Chunk],
    start: Position,
    kinds: Sequence[int],
    *,
    limit: int,
    limit_bytes: int,
) -> RecordPage | None:
    records: list[Record] = []
    size = 0
    last = start
    total = chunks[-1].last
    for chunk in chunks:
        index = max(start + 1 - chunk.first, 0)
        for row, (position, kind, data) in zip(  # noqa: B905  # of one length
            islice(chunk.rows, index, None), islice(chunk.encoded, index, None)
        ):
            if kind not in kinds:
                continue
            size += len(data)
            if records and size > limit_bytes:
                return RecordPage(records, last, total)
            try:
                records.append(decode(kind, data, position) if row is None else row)
            except InvalidRecordError:
                return None  # the ledger's reader reports the broken record
            last = position
            if len(records) == limit:
                return RecordPage(records, last, total)
    return RecordPage(records, total, total)
