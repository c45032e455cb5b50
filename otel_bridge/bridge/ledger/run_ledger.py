"""Stores the ledger of one run: its records in one order, and the positions of the reader and the destinations.

The reader thread commits batches (offsets, state, records in one transaction). Delivery threads
move positions, keep the memory of their writers and store dead letters. Every method is thread-safe
and raises the errors of `Database`.
"""

from __future__ import annotations

import dataclasses
import json
import sqlite3
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, cast

from otel_bridge.bridge.ledger.codec import encode
from otel_bridge.bridge.ledger.database import Database
from otel_bridge.bridge.ledger.exporter_state import ExporterState
from otel_bridge.bridge.ledger.queries import (
    LedgerView,
    SegmentPosition,
    after_prefix,
    ahead_key,
    destinations_of,
    oldest_of,
    put_source,
)
from otel_bridge.bridge.ledger.timeline import TimelineStore
from otel_bridge.records import Position, Record, RolloutRecord, Row, axis_of
from otel_bridge.translation.phases.step_times import TimelinePhase

DEAD_LETTERS_KEPT = 10_000
"""Number of dead letters whose content is kept for each destination; older ones are only
counted."""
_PRUNE_RECORDS = 20_000
_INSERT_RECORDS = 300
"""Records per statement, of three variables each; SQLite before 3.32 allows 999 variables in a
statement."""
_VACUUM_PAGES = 2_000
"""Free pages that one call returns to the disk, since it holds the lock that commits need."""
_SPARE_PAGES = 1_000
"""Free pages to keep, of 4,096 bytes each: room for about 8,000 rows of ten keys."""
_DELIVERED = (
    "CASE WHEN destinations.ended OR NOT destinations.opened"
    " THEN destinations.written ELSE destinations.durable END"
)
"""`ExporterState.delivered` in SQL."""


@dataclass(frozen=True, slots=True)
class RecordCounts:
    """Counts the records of a ledger; each field is stored under its name.

    Attributes:
        rows: Number of rows.
        rollouts: Number of rollouts.
        rows_by_axis: Axis to the number of rows that its role logged, with a step or without.
        row_times: Axis to the time of the row committed last, in ns.
        derived_rows: Number of rows that the translation made, by the data they are made of.
    """

    rows: int = 0
    rollouts: int = 0
    rows_by_axis: Mapping[str, int] = field(default_factory=dict[str, int])
    row_times: Mapping[str, int] = field(default_factory=dict[str, int])
    derived_rows: Mapping[str, int] = field(default_factory=dict[str, int])

    @classmethod
    def stored(cls, view: LedgerView) -> RecordCounts:
        """Return the counts that a ledger stores."""
        stored: dict[str, Any] = {}
        for counts in dataclasses.fields(cls):
            value = view.meta(counts.name)
            if value is not None:
                stored[counts.name] = value
        return cls(**stored)

    def plus(self, records: Iterable[Record]) -> RecordCounts:
        """Return these counts and *records* together; kinds other than rows and rollouts are not counted.

        A derived row counts by what it is made of, not by its axis: a role's own steps must not
        grow by the rows of statistics.
        """
        rows = self.rows
        rollouts = self.rollouts
        by_axis = Counter(self.rows_by_axis)
        times = dict(self.row_times)
        derived = Counter(self.derived_rows)
        for record in records:
            if isinstance(record, Row):
                rows += 1
                # A row without a step is of its role too: `status` shows the rows of each role.
                axis = record.axis or axis_of(record.role)
                times[axis] = record.time_unix_ns
                if record.is_derived:
                    derived[record.derived_from] += 1
                else:
                    by_axis[axis] += 1
            elif isinstance(record, RolloutRecord):
                rollouts += 1
        return RecordCounts(rows, rollouts, dict(by_axis), times, dict(derived))


class Ledger:
    """Holds the ledger of one run, open for writing. Only the holder of the run folder's lock may open it.

    Args:
        path: The SQLite file.
        exclusive: See `Database`.
        timeline_bytes: Limit of the timeline; 0: none is stored.

    Attributes:
        position: Position of the last record.
        counts: Counts of the records committed so far.
    """

    def __init__(
        self, path: Path, *, exclusive: bool = False, timeline_bytes: int = 0
    ) -> None:
        self.database = Database(path, exclusive=exclusive)
        with self.database.transaction() as sql:
            self._timeline = TimelineStore(sql, timeline_bytes)
        view = self.view()
        self.position: Position = view.position()
        self.counts = RecordCounts.stored(view)
        view.close()

    def view(self) -> LedgerView:
        """Return a view with a read connection of its own, for one thread."""
        return LedgerView(self.database.connect_reader())

    def commit(
        self,
        records: Sequence[Record],
        changes: Sequence[tuple[str, bytes | None]] = (),
        sources: Iterable[SegmentPosition] = (),
        phases: Sequence[TimelinePhase] = (),
    ) -> Position:
        """Store one batch of the reader in one transaction, as a whole or not at all.

        So a kill leaves either all of a batch or none, and nothing is read twice. Raises as
        `Database.transaction` does; position and counts in memory are then unchanged.

        Args:
            records: Records, which get the next positions in their order.
            changes: State keys with their encoded values; ``None`` deletes.
            sources: Positions up to which segments are read now.
            phases: Phases for the timeline.

        Returns:
            The last position.
        """
        first = self.position + 1
        counts = self.counts
        # Outside the transaction: exporters wait for its lock.
        encoded = [
            (position, *encode(record))
            for position, record in enumerate(records, first)
        ]
        with self.database.transaction() as sql:
            if encoded:
                _insert(sql, encoded)
                counts = counts.plus(records)
                facts = {"position": encoded[-1][0], **dataclasses.asdict(counts)}
                for name, fact in facts.items():
                    _put_meta(sql, name, fact)
            for key, value in changes:
                if value is None:
                    sql.execute("DELETE FROM state WHERE key = ?", (key,))
                else:
                    sql.execute(
                        "INSERT OR REPLACE INTO state VALUES (?, ?)", (key, value)
                    )
            for source in sources:
                put_source(sql, source)
            self._timeline.add(sql, phases, records)
        if encoded:
            # After the commit: an exporter that sees the position finds the records.
            self.position = encoded[-1][0]
            self.counts = counts
        return self.position

    def forget_source(self, instance_id: str) -> None:
        """Forget a process whose segments were deleted."""
        with self.database.transaction() as sql:
            sql.execute("DELETE FROM sources WHERE instance_id = ?", (instance_id,))
            sql.execute("DELETE FROM meta WHERE key = ?", (ahead_key(instance_id),))

    def forwarded(
        self,
        instance_id: str,
        number: int,
        offset: int,
        *,
        ahead: Mapping[str, tuple[int, int]] | None = None,
    ) -> bool:
        """Store how far the segments of a process are forwarded.

        Return whether the ledger knows the process: the reader may not have committed it yet.

        Args:
            instance_id: The process.
            number: Segment up to which every signal is forwarded.
            offset: Offset in that segment.
            ahead: Position of each signal that is forwarded further.
        """
        with self.database.transaction() as sql:
            updated = sql.execute(
                "UPDATE sources SET forwarded_number = ?, forwarded_offset = ? WHERE instance_id = ?",
                (number, offset, instance_id),
            )
            if ahead:
                _put_meta(sql, ahead_key(instance_id), ahead)
            else:
                sql.execute("DELETE FROM meta WHERE key = ?", (ahead_key(instance_id),))
            return updated.rowcount > 0

    def set_meta(self, key: str, value: object) -> None:
        """Store one JSON-able fact about the run's bridge."""
        with self.database.transaction() as sql:
            _put_meta(sql, key, value)

    def destination(self, exporter: str, variables: Mapping[str, str]) -> ExporterState:
        """Return the destination of *exporter* with these *variables*, and mark it as one that the run has.

        A new destination starts at the oldest record that the ledger still has; earlier ones are
        counted as missed.
        """
        text = json.dumps(dict(variables), sort_keys=True)
        with self.database.transaction() as sql:
            oldest = oldest_of(sql)
            # Older records were pruned; the new exporter counts them as missed.
            start = self.position
            if oldest is not None:
                start = oldest - 1
            sql.execute(
                "INSERT OR IGNORE INTO destinations (exporter, variables, written, durable, counted, missed) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                (exporter, text, start, start, start, start),
            )
            sql.execute(
                "UPDATE destinations SET named = 1 WHERE exporter = ? AND variables = ?",
                (exporter, text),
            )
            states = destinations_of(sql)
        identity = (exporter, dict(variables))
        return next(
            state for state in states if (state.exporter, state.destination) == identity
        )

    def name_destinations(
        self, ids: Collection[int], *, unresolved: Collection[str] = ()
    ) -> None:
        """Mark the destinations that the run has now, and unmark all others.

        Near the limit of the directory, eviction begins with records that only unmarked ones lack.

        Args:
            ids: Ids of the destinations.
            unresolved: Exporters of the run whose destination the caller does not know; theirs stay
                as they are.
        """
        with self.database.transaction() as sql:
            for state in destinations_of(sql):
                if state.exporter not in unresolved:
                    sql.execute(
                        "UPDATE destinations SET named = ? WHERE id = ?",
                        (state.id in ids, state.id),
                    )

    def save(self, destination: ExporterState) -> None:
        """Store the positions and counts of a destination.

        Not its name, marks, evictions and dead letters, which other threads write.
        """
        status = ""
        if destination.end_status is not None:
            status = destination.end_status.value
        with self.database.transaction() as sql:
            sql.execute(
                "UPDATE destinations SET written = ?, durable = ?, counted = ?, rows = ?, rollouts = ?, opened = ?, "
                "ended = ?, end_status = ?, url = ?, tracker_run_id = ?, degraded = ?, "
                "left_out = ? WHERE id = ?",
                (
                    destination.written, destination.durable, destination.counted, destination.rows,
                    destination.rollouts, int(destination.opened), destination.ended, status, destination.url,
                    destination.tracker_run_id, json.dumps(destination.degraded),
                    json.dumps(destination.left_out), destination.id,
                ),
            )  # fmt: skip

    def dead_letter(
        self,
        destination_id: int,
        position: Position,
        kind: int,
        data: bytes,
        *,
        record_id: str,
        reason: str,
    ) -> int:
        """Store a record that a destination refused for good, with *data* as `codec.encode` encodes it.

        It replaces the dead letter of the same record. Return how many more there are: 1, or 0 if
        it replaced one. Of the oldest beyond `DEAD_LETTERS_KEPT` the content is released, or a
        tracker that refuses everything would fill the disk; it stays counted.
        """
        with self.database.transaction() as sql:
            inserted = sql.execute(
                "INSERT INTO dead_letters (destination, position, kind, record_id, reason, time_unix_ns, data) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    destination_id,
                    position,
                    kind,
                    record_id,
                    reason,
                    time.time_ns(),
                    data,
                ),
            )
            # Refused again: by a new writer that gets all records again, as offline, or at a retry.
            # Deleted behind the insert, because a retry is recognised by a new and higher id.
            replaced = sql.execute(
                "DELETE FROM dead_letters WHERE destination = ? AND position = ? AND record_id = ? AND id < ?",
                (destination_id, position, record_id, inserted.lastrowid),
            )
            added = max(1 - replaced.rowcount, 0)
            sql.execute(
                "UPDATE destinations SET dead = dead + ? WHERE id = ?",
                (added, destination_id),
            )
            sql.execute(
                "UPDATE dead_letters SET data = x'' WHERE id = (SELECT id FROM dead_letters WHERE destination = ? "
                "ORDER BY position DESC LIMIT 1 OFFSET ?)",
                (destination_id, DEAD_LETTERS_KEPT),
            )
        return added

    def discard_dead_letters(
        self,
        exporter: str | None = None,
        dead_letters: Mapping[str, Sequence[int]] | None = None,
    ) -> int:
        """Delete single dead letters, or those of *exporter*, or all when it is ``None``.

        Return their number. Single ones are deleted only of the exporter that is named with their
        ids.
        """
        with self.database.transaction() as sql:
            states = destinations_of(sql)
        removed = 0
        for state in states:
            if dead_letters:
                ids = dead_letters.get(state.exporter, ())
                removed += self.remove_dead_letters(state.id, ids)
            elif exporter in {None, state.exporter}:
                removed += self.remove_dead_letters(state.id)
        return removed

    def remove_dead_letters(
        self, destination_id: int, ids: Sequence[int] | None = None
    ) -> int:
        """Delete all dead letters of one destination, or those of *ids*; return how many were deleted.

        Fewer than *ids* when some were discarded meanwhile.
        """
        statement = "DELETE FROM dead_letters WHERE destination = ?"
        with self.database.transaction() as sql:
            if ids is None:
                removed = sql.execute(statement, (destination_id,)).rowcount
            else:
                # One by one: SQLite limits the variables of a statement.
                removed = 0
                for number in ids:
                    deleted = sql.execute(
                        f"{statement} AND id = ?", (destination_id, number)
                    )
                    removed += deleted.rowcount
            sql.execute(
                "UPDATE destinations SET dead = max(dead - ?, 0) WHERE id = ?",
                (removed, destination_id),
            )
        return removed

    def prune(self, through: Position) -> int:
        """Delete records up to *through*, at most some thousands in a call.

        Return how many were deleted. Some of the freed pages are kept for the next records, and the
        others return to the disk: returning pages costs more than deleting records.
        """
        with self.database.transaction() as sql:
            oldest = oldest_of(sql)
            deleted = 0
            if oldest is not None and oldest <= through:
                # A long deletion would hold the lock that commits and exporters need.
                last = min(through, oldest + _PRUNE_RECORDS - 1)
                deleted = sql.execute(
                    "DELETE FROM records WHERE position <= ?", (last,)
                ).rowcount
        self.database.give_back(_VACUUM_PAGES, keep=_SPARE_PAGES)
        return deleted

    def give_back(self) -> None:
        """Return every free page to the disk, because no records are expected soon."""
        while self.database.give_back(_VACUUM_PAGES):
            pass

    def evict_from_unnamed(self, through: Position) -> None:
        """Give up the records up to *through* that are missing only in destinations which the run no longer has.

        Records that a tracker had not confirmed are counted too, unless the end of its run settled
        them.
        """
        with self.database.transaction() as sql:
            sql.execute(
                "UPDATE destinations SET evicted = evicted + (SELECT count(*) FROM records WHERE position <= ? AND "  # noqa: S608
                f"position > {_DELIVERED}) WHERE named = 0 AND {_DELIVERED} < ?",
                (through, through),
            )
            sql.execute(
                "UPDATE destinations SET written = max(written, ?), durable = max(durable, ?) WHERE named = 0",
                (through, through),
            )

    def pass_over(self, exporter: str, through: Position) -> None:
        """Move every destination of *exporter* past the records up to *through*, which the exporter never gets."""
        with self.database.transaction() as sql:
            sql.execute(
                "UPDATE destinations SET written = max(written, ?), durable = max(durable, ?) WHERE exporter = ?",
                (through, through, exporter),
            )

    def memory(self, destination_id: int) -> LedgerMemory:
        """Return the memory of a destination's writer."""
        return LedgerMemory(self.database, destination_id)

    def close(self) -> None:
        """Close the ledger; committed records stay. May be called twice."""
        self.database.close()


class LedgerMemory:
    """Stores a destination's key-value table; once `put` returns, the value is committed."""

    def __init__(self, database: Database, destination_id: int) -> None:
        self._database = database
        self._id = destination_id

    def get(self, key: str) -> bytes | None:
        """Return the value of *key*; ``None`` without one."""
        with self._database.transaction() as sql:
            row = sql.execute(
                "SELECT value FROM memory WHERE destination = ? AND key = ?",
                (self._id, key),
            ).fetchone()
        if row is None:
            return None
        return bytes(row[0])

    def put(self, key: str, value: bytes) -> None:
        """Store a value durably."""
        with self._database.transaction() as sql:
            sql.execute(
                "INSERT OR REPLACE INTO memory VALUES (?, ?, ?)", (self._id, key, value)
            )

    def delete(self, key: str) -> None:
        """Delete *key*, if it exists."""
        with self._database.transaction() as sql:
            sql.execute(
                "DELETE FROM memory WHERE destination = ? AND key = ?", (self._id, key)
            )

    def items(self, prefix: str = "") -> Iterator[tuple[str, bytes]]:
        """Yield the pairs whose key begins with *prefix*, ordered by key, as they are at the first step."""
        with self._database.transaction() as sql:
            rows = sql.execute(
                "SELECT key, value FROM memory WHERE destination = ? AND key >= ? AND key < ? ORDER BY key",
                (self._id, prefix, after_prefix(prefix)),
            ).fetchall()
        yield from cast("list[tuple[str, bytes]]", rows)


def _put_meta(sql: sqlite3.Connection, key: str, value: object) -> None:
    """Store one JSON-able fact. Raises `sqlite3.Error`."""
    statement = "INSERT OR REPLACE INTO meta VALUES (?, ?)"
    sql.execute(statement, (key, json.dumps(value)))


def _insert(
    sql: sqlite3.Connection, encoded: Sequence[tuple[Position, int, bytes]]
) -> None:
    """Insert encoded records, `_INSERT_RECORDS` in a statement. Raises `sqlite3.Error`."""
    # `executemany` releases the interpreter at every row; beside a busy writer each release
    # switches threads.
    for start in range(0, len(encoded), _INSERT_RECORDS):
        part = encoded[start : start + _INSERT_RECORDS]
        marks = ",".join(["(?,?,?)"] * len(part))
        sql.execute(f"INSERT INTO records VALUES {marks}", [*chain.from_iterable(part)])  # noqa: S608
