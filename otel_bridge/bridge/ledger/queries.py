"""Reads the ledger, for delivery threads, the report and commands that change nothing.

The rows of its small tables are values: the position of each process and of each destination.
Functions that take a connection raise `sqlite3.Error`, which the transaction around them translates.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from otel_bridge.bridge.ledger.codec import decode, decode_value
from otel_bridge.bridge.ledger.database import DatabaseReader, open_for_reading
from otel_bridge.bridge.ledger.exporter_state import ExporterState
from otel_bridge.errors import InvalidRecordError
from otel_bridge.records import Position, Record, Status


@dataclass(frozen=True, slots=True)
class SegmentPosition:
    """Holds the position up to which one process's segments are read: all before (`number`, `offset`)."""

    instance_id: str
    number: int
    offset: int
    header: bytes
    ended: bool = False
    forwarded_number: int = 0
    forwarded_offset: int = 0


@dataclass(frozen=True, slots=True)
class StoredDeadLetter:
    """Holds a dead letter as the ledger stores it.

    Attributes:
        exporter: Exporter whose tracker refused the record.
        data: The record as `codec.encode` encodes it; empty when its content was released.
    """

    id: int
    destination_id: int
    exporter: str
    position: Position
    kind: int
    record_id: str
    reason: str
    time_unix_ns: int
    data: bytes


def after_prefix(prefix: str) -> str:
    """Return a text that sorts after every text beginning with *prefix* in SQLite's order (bytes of UTF-8)."""
    return prefix + "\U0010ffff" * 4


def position_of(sql: sqlite3.Connection) -> Position:
    """Return the position of the last record ever stored; 0 before the first."""
    row = sql.execute("SELECT value FROM meta WHERE key = 'position'").fetchone()
    if row is None:
        return 0
    return int(row[0])


def oldest_of(sql: sqlite3.Connection) -> Position | None:
    """Return the position of the oldest stored record; ``None`` without records."""
    position: Position | None = sql.execute(
        "SELECT min(position) FROM records"
    ).fetchone()[0]
    return position


def ahead_key(instance_id: str) -> str:
    """Return the key of the fact that holds how far ``otlp`` has forwarded the faster signals of a process."""
    return f"forwarded_ahead/{instance_id}"


def put_source(sql: sqlite3.Connection, source: SegmentPosition) -> None:
    """Store the position up to which a process is read; how far it is forwarded stays."""
    # Only the forwarder moves the forwarded offsets.
    sql.execute(
        "INSERT INTO sources (instance_id, number, offset, header, ended) VALUES (?, ?, ?, ?, ?) "
        "ON CONFLICT (instance_id) DO UPDATE SET number = excluded.number, offset = excluded.offset, "
        "header = excluded.header, ended = excluded.ended",
        (
            source.instance_id,
            source.number,
            source.offset,
            source.header,
            int(source.ended),
        ),
    )


def sources_of(sql: sqlite3.Connection) -> list[SegmentPosition]:
    """Return the position up to which each process is read."""
    rows = sql.execute(
        "SELECT instance_id, number, offset, header, ended, forwarded_number, forwarded_offset FROM sources"
    )
    return [
        SegmentPosition(name, number, offset, header, bool(ended), *forwarded)
        for name, number, offset, header, ended, *forwarded in rows
    ]


_COLUMNS = (
    "id", "exporter", "destination", "named", "written", "durable", "counted", "rows", "rollouts", "evicted",
    "dead_letters", "opened", "ended", "end_status", "url", "tracker_run_id", "missed", "degraded", "left_out",
)  # fmt: skip
"""Fields of an exporter's state that the ledger stores."""
_RENAMED = {"destination": "variables", "dead_letters": "dead"}
"""Fields whose column has another name."""


def destinations_of(sql: sqlite3.Connection) -> list[ExporterState]:
    """Return every destination."""
    columns = ", ".join(_RENAMED.get(name, name) for name in _COLUMNS)
    rows = sql.execute(f"SELECT {columns} FROM destinations ORDER BY id")  # noqa: S608
    return [_destination(tuple(row)) for row in rows]


def dead_letter_of(
    sql: sqlite3.Connection, ids: Sequence[int] | None
) -> list[StoredDeadLetter]:
    """Return dead letters, oldest first: all, or those of *ids*.

    Ids that do not exist are passed over.
    """
    condition = ""
    if ids is not None:
        # As one text: SQLite limits the variables of a statement, and their numbers to 64 bits.
        condition = "WHERE dead_letters.id IN (SELECT value FROM json_each(?))"
    rows = sql.execute(
        "SELECT dead_letters.id, destination, exporter, position, kind, record_id, reason, time_unix_ns, data "  # noqa: S608
        f"FROM dead_letters JOIN destinations ON destinations.id = destination {condition} ORDER BY dead_letters.id",
        () if ids is None else (json.dumps(list(ids)),),
    )
    return [StoredDeadLetter(*row) for row in rows]


def _destination(row: tuple[Any, ...]) -> ExporterState:
    """Return the state of one row of the table of destinations."""
    columns = dict(zip(_COLUMNS, row, strict=True))
    columns |= {
        name: json.loads(columns[name])
        for name in ("destination", "degraded", "left_out")
    }
    columns |= {name: bool(columns[name]) for name in ("named", "opened")}
    columns["end_status"] = (
        Status(columns["end_status"]) if columns["end_status"] else None
    )
    return ExporterState(**columns)


@dataclass(frozen=True, slots=True)
class RecordPage:
    """Holds records after a position.

    Attributes:
        records: Records of the requested kinds, in order.
        through: Position up to which `records` holds all records of those kinds.
        last: Position up to which the exporter gets records: the last one of the ledger at that
            moment, or an earlier end that was asked for.
        broken: Position, kind, bytes and reason of each record that cannot be decoded.
    """

    records: list[Record]
    through: Position
    last: Position
    broken: list[tuple[Position, int, bytes, str]] = field(
        default_factory=list[tuple[Position, int, bytes, str]]
    )


class LedgerView:
    """Reads the ledger through one connection, in one thread.

    Every method raises as `Database.transaction` does. On an exporter's thread that is a failure of
    its step, on the bridge's of the poll, and both try again; a damaged ledger is replaced.
    """

    def __init__(self, reader: DatabaseReader) -> None:
        self._reader = reader

    def position(self) -> Position:
        """Return the position of the last record; 0 without any."""
        with self._reader.snapshot() as sql:
            return position_of(sql)

    def records(
        self,
        start: Position,
        kinds: Sequence[int],
        *,
        limit: int,
        limit_bytes: int,
        end: Position | None = None,
    ) -> RecordPage:
        """Return the records of *kinds* after position *start*, at least one if there is any.

        With *end* as if the ledger ended there, but not before *start*. A record that cannot be
        decoded is among `broken`, so that its exporter can set it aside.
        """
        marks = ",".join("?" * len(kinds))
        records: list[Record] = []
        broken: list[tuple[Position, int, bytes, str]] = []
        with self._reader.snapshot() as sql:
            last = position_of(sql)
            if end is not None:
                last = min(last, max(start, end))
            through = last
            rows = sql.execute(
                "SELECT position, kind, data FROM records WHERE position > ? AND position <= ? "  # noqa: S608
                f"AND kind IN ({marks}) ORDER BY position LIMIT ?",
                (start, last, *kinds, limit),
            )
            size = 0
            last_read = start
            for position, kind, data in cast("Iterable[tuple[int, int, bytes]]", rows):
                size += len(data)
                # The first record is taken whatever its size, or the exporter would stop here.
                if size > limit_bytes and last_read > start:
                    through = last_read
                    break
                last_read = position
                try:
                    records.append(decode(kind, data, position))
                except InvalidRecordError as exc:
                    broken.append((position, kind, data, str(exc)))
            rows.close()
        # Full: more may follow. Otherwise all up to the end of the ledger were read.
        if len(records) + len(broken) == limit:
            through = last_read
        return RecordPage(records, through, last, broken)

    def oldest(self) -> Position:
        """Return the position of the oldest stored record; without records, the next position."""
        with self._reader.snapshot() as sql:
            oldest = oldest_of(sql)
            if oldest is None:
                return position_of(sql) + 1
            return oldest

    def state(self, *prefixes: str) -> tuple[Position, dict[str, object]]:
        """Return the last position and the state under *prefixes*, both of one moment.

        A config and the rows behind it are committed together: of one moment, none is missing.
        """
        with self._reader.snapshot() as sql:
            values: dict[str, object] = {}
            for prefix in prefixes:
                rows = sql.execute(
                    "SELECT key, value FROM state WHERE key >= ? AND key < ? ORDER BY key",
                    (prefix, after_prefix(prefix)),
                )
                for key, value in cast("Iterable[tuple[str, bytes]]", rows):
                    values[key] = decode_value(value)
            return position_of(sql), values

    def encoded_state(self) -> list[tuple[str, bytes]]:
        """Return every state key with its encoded value, ordered by key."""
        with self._reader.snapshot() as sql:
            rows = sql.execute("SELECT key, value FROM state ORDER BY key")
            return list(cast("Iterable[tuple[str, bytes]]", rows))

    def state_value(self, key: str) -> object | None:
        """Return one state value, ``None`` when there is none."""
        with self._reader.snapshot() as sql:
            row = sql.execute(
                "SELECT value FROM state WHERE key = ?", (key,)
            ).fetchone()
            if row is None:
                return None
            return decode_value(row[0])

    def sources(self) -> list[SegmentPosition]:
        """Return the position up to which each process's segments are read."""
        with self._reader.snapshot() as sql:
            return sources_of(sql)

    def destinations(self) -> list[ExporterState]:
        """Return every destination, including those that are no longer named."""
        with self._reader.snapshot() as sql:
            return destinations_of(sql)

    def dead_letters(self, ids: Sequence[int] | None = None) -> list[StoredDeadLetter]:
        """Return dead letters, oldest first: all, or those of *ids*."""
        with self._reader.snapshot() as sql:
            return dead_letter_of(sql, ids)

    def is_undecodable(self, destination_id: int, position: Position) -> bool:
        """Return whether a destination has the record as a dead letter that could not be decoded, without an id."""
        with self._reader.snapshot() as sql:
            row = sql.execute(
                "SELECT 1 FROM dead_letters WHERE destination = ? AND position = ? AND record_id = ''",
                (destination_id, position),
            ).fetchone()
        return row is not None

    def meta(self, key: str) -> Any:
        """Return the value that `Ledger.set_meta` stored, whose form the caller knows.

        ``None`` without one.
        """
        with self._reader.snapshot() as sql:
            row = sql.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
            if row is None:
                return None
            return json.loads(str(row[0]))

    def forwarded_ahead(self, instance_id: str) -> Mapping[str, tuple[int, int]]:
        """Return the positions of a process's signals that are forwarded further than the slowest one."""
        return self.meta(ahead_key(instance_id)) or {}

    def overview(self) -> tuple[Position, list[SegmentPosition], list[ExporterState]]:
        """Return position, sources and destinations, all of one moment."""
        with self._reader.snapshot() as sql:
            return position_of(sql), sources_of(sql), destinations_of(sql)

    def count(self, start: Position, through: Position) -> dict[int, int]:
        """Return the number of records of each kind after position *start*, up to *through*."""
        with self._reader.snapshot() as sql:
            rows = sql.execute(
                "SELECT kind, count(*) FROM records WHERE position > ? AND position <= ? GROUP BY kind",
                (start, through),
            )
            return dict(cast("Iterable[tuple[int, int]]", rows))

    def close(self) -> None:
        """Close the connection."""
        self._reader.close()


def open_view(path: Path) -> contextlib.closing[LedgerView]:
    """Return a view of the ledger at *path* for a ``with``, for commands that change nothing.

    Raises as `open_for_reading` does.
    """
    return contextlib.closing(LedgerView(open_for_reading(path)))
