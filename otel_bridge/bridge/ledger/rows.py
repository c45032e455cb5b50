"""Defines the rows of the ledger's small tables as values: the position of each process and of each destination."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from otel_bridge.bridge.ledger.exporter_state import ExporterState
from otel_bridge.records import Position, Status


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
    """Return the position of the last record."""
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
    """Return dead letters, oldest first: all, or those of *ids*; ids that do not exist are passed over."""
    condition = ""
    if ids is not None:
        condition = f"WHERE dead_letters.id IN ({','.join('?' * len(ids))})"
    rows = sql.execute(
        "SELECT dead_letters.id, destination, exporter, position, kind, record_id, reason, time_unix_ns, data "  # noqa: S608
        f"FROM dead_letters JOIN destinations ON destinations.id = destination {condition} ORDER BY dead_letters.id",
        tuple(ids or ()),
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
