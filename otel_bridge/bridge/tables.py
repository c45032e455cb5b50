"""Rows of the ledger's small tables as values: how far each process is read, how far each destination is."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from otel_bridge.records import Position, Status


@dataclass(frozen=True, slots=True)
class Source:
    """How far one process's segments are read: everything before (`number`, `offset`)."""

    instance_id: str
    number: int
    offset: int
    header: bytes
    ended: bool = False
    forwarded_number: int = 0
    forwarded_offset: int = 0


@dataclass(frozen=True, slots=True)
class Destination:
    """One exporter at one place.

    Attributes:
        named: The run has it now; else its records are kept until room is needed.
        written: Position up to which writes have returned.
        safe: Position up to which the tracker's store is known to hold them.
        counted: Last position that `rows` and `rollouts` count; a record written again is not counted again.
        taken: Records that the bound took before they were safe here.
        opened: A writer was opened at least once.
        ended: Position of the last end acted on, 0 for none.
        tracker_run_id: The tracker's own id of the run, where its writer says it.
        missed: Records that were deleted before this destination was first named.
        put_off: How much of what is written its writer has put off, since records go before it.
    """

    id: int
    exporter: str
    place: Mapping[str, str]
    named: bool = True
    written: Position = 0
    safe: Position = 0
    counted: Position = 0
    rows: int = 0
    rollouts: int = 0
    taken: int = 0
    opened: bool = False
    ended: Position = 0
    end_status: Status | None = None
    url: str | None = None
    dead_letters: int = 0
    tracker_run_id: str | None = None
    missed: int = 0
    put_off: int = 0


@dataclass(frozen=True, slots=True)
class Buried:
    """A dead letter as it lies in the ledger.

    Attributes:
        exporter: Who refused the record.
        data: The record as `codec.encode` makes it; empty where its content was let go.
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
    """Return a text that stands behind every text beginning with *prefix* in SQLite's order (bytes of UTF-8)."""
    return prefix + "\U0010ffff" * 4


def position_of(sql: sqlite3.Connection) -> Position:
    """Return the last position given."""
    found = sql.execute("SELECT value FROM meta WHERE key = 'position'").fetchone()
    return 0 if found is None else int(found[0])


def put_source(sql: sqlite3.Connection, source: Source) -> None:
    """Store how far a process is read."""
    # Only the forwarder moves the forwarded offsets.
    sql.execute(
        "INSERT INTO sources (instance_id, number, offset, header, ended) VALUES (?, ?, ?, ?, ?) "
        "ON CONFLICT (instance_id) DO UPDATE SET number = excluded.number, offset = excluded.offset, "
        "header = excluded.header, ended = excluded.ended",
        (source.instance_id, source.number, source.offset, source.header, int(source.ended)),
    )


def sources_of(sql: sqlite3.Connection) -> list[Source]:
    """Return how far each process is read."""
    found = sql.execute(
        "SELECT instance_id, number, offset, header, ended, forwarded_number, forwarded_offset FROM sources"
    )
    return [
        Source(name, number, offset, bytes(header), bool(ended), forwarded_number, forwarded_offset)
        for name, number, offset, header, ended, forwarded_number, forwarded_offset in found
    ]


def destinations_of(sql: sqlite3.Connection) -> list[Destination]:
    """Return every destination."""
    found = sql.execute(
        "SELECT id, exporter, place, named, written, safe, counted, rows, rollouts, taken, dead, opened, ended, "
        "end_status, url, tracker_run_id, missed, put_off FROM destinations ORDER BY id"
    )
    return [_destination(tuple(row)) for row in found]


def buried_of(sql: sqlite3.Connection, ids: Sequence[int] | None) -> list[Buried]:
    """Return dead letters, oldest first: all, or those of *ids*."""
    wanted = "" if ids is None else f"WHERE dead_letters.id IN ({','.join('?' * len(ids))})"
    found = sql.execute(
        "SELECT dead_letters.id, destination, exporter, position, kind, record_id, reason, time_unix_ns, data "  # noqa: S608
        f"FROM dead_letters JOIN destinations ON destinations.id = destination {wanted} ORDER BY dead_letters.id",
        tuple(ids or ()),
    )
    return [Buried(*row) for row in found]


def _destination(row: tuple[Any, ...]) -> Destination:
    number, exporter, place, named, written, safe, counted, rows, rollouts, taken, dead, opened, ended, status = row[
        :14
    ]
    url, tracker_run_id, missed, put_off = row[14:]
    return Destination(
        id=number, exporter=exporter, place=json.loads(place), named=bool(named), written=written, safe=safe,
        counted=counted, rows=rows, rollouts=rollouts, taken=taken, dead_letters=dead, opened=bool(opened),
        ended=ended, end_status=Status(status) if status else None, url=url,
        tracker_run_id=tracker_run_id, missed=missed, put_off=put_off,
    )  # fmt: skip
