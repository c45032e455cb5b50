"""Defines the rows of the ledger's small tables as values: the position of each process and of each destination."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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
class Destination:
    """Describes one exporter with where it delivers: a plain value, with a field for each column of the table.

    Attributes:
        variables: Its variables of the destination, which together name it.
        named: Whether the run has the destination now; else its records are kept until room is needed.
        written: Position up to which the tracker's calls have returned.
        durable: Position up to which the tracker's store is known to hold the records.
        counted: Last position that `rows` and `rollouts` count; a record that is written again is not counted again.
        evicted: Number of records that were evicted before they were durable here.
        opened: Whether a writer was opened at least once.
        ended: Position of the last end that was acted on, 0 without one.
        tracker_run_id: The tracker's own id of the run, if its writer reports one.
        missed: Number of records that were deleted before this destination was first named.
        degraded: One sentence for each ability that its tracker lacked when it was last opened.
        left_out: Records that its writers left out because the tracker lacks an ability: reason to count.
    """

    id: int
    exporter: str
    variables: Mapping[str, str]
    named: bool = True
    written: Position = 0
    durable: Position = 0
    counted: Position = 0
    rows: int = 0
    rollouts: int = 0
    evicted: int = 0
    opened: bool = False
    ended: Position = 0
    end_status: Status | None = None
    url: str | None = None
    dead_letters: int = 0
    tracker_run_id: str | None = None
    missed: int = 0
    degraded: tuple[str, ...] = ()
    left_out: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def settled(self) -> bool:
        """Return whether the tracker's run has ended or was never opened, so that no written record is in doubt."""
        return bool(self.ended) or not self.opened

    @property
    def delivered(self) -> Position:
        """Return the position up to which no record must be written again."""
        return self.written if self.settled else min(self.durable, self.written)


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
    found = sql.execute("SELECT value FROM meta WHERE key = 'position'").fetchone()
    return 0 if found is None else int(found[0])


def ahead_key(instance_id: str) -> str:
    """Return the key of the fact that holds how far ``otlp`` has forwarded the faster signals of a process."""
    return f"forwarded_ahead/{instance_id}"


def put_source(sql: sqlite3.Connection, source: SegmentPosition) -> None:
    """Store the position up to which a process is read."""
    # Only the forwarder moves the forwarded offsets.
    sql.execute(
        "INSERT INTO sources (instance_id, number, offset, header, ended) VALUES (?, ?, ?, ?, ?) "
        "ON CONFLICT (instance_id) DO UPDATE SET number = excluded.number, offset = excluded.offset, "
        "header = excluded.header, ended = excluded.ended",
        (source.instance_id, source.number, source.offset, source.header, int(source.ended)),
    )


def sources_of(sql: sqlite3.Connection) -> list[SegmentPosition]:
    """Return the position up to which each process is read."""
    found = sql.execute(
        "SELECT instance_id, number, offset, header, ended, forwarded_number, forwarded_offset FROM sources"
    )
    return [
        SegmentPosition(name, number, offset, bytes(header), bool(ended), forwarded_number, forwarded_offset)
        for name, number, offset, header, ended, forwarded_number, forwarded_offset in found
    ]


def destinations_of(sql: sqlite3.Connection) -> list[Destination]:
    """Return every destination."""
    found = sql.execute(
        "SELECT id, exporter, variables, named, written, durable, counted, rows, rollouts, evicted, dead, opened, "
        "ended, end_status, url, tracker_run_id, missed, degraded, left_out FROM destinations ORDER BY id"
    )
    return [_destination(tuple(row)) for row in found]


def dead_letter_of(sql: sqlite3.Connection, ids: Sequence[int] | None) -> list[StoredDeadLetter]:
    """Return dead letters, oldest first: all, or those of *ids*."""
    wanted = "" if ids is None else f"WHERE dead_letters.id IN ({','.join('?' * len(ids))})"
    found = sql.execute(
        "SELECT dead_letters.id, destination, exporter, position, kind, record_id, reason, time_unix_ns, data "  # noqa: S608
        f"FROM dead_letters JOIN destinations ON destinations.id = destination {wanted} ORDER BY dead_letters.id",
        tuple(ids or ()),
    )
    return [StoredDeadLetter(*row) for row in found]


def _destination(row: tuple[Any, ...]) -> Destination:
    number, exporter, variables, named, written, durable, counted, rows, rollouts, evicted = row[:10]
    dead, opened, ended, status, url, tracker_run_id, missed, degraded, left_out = row[10:]
    return Destination(
        id=number, exporter=exporter, variables=json.loads(variables), named=bool(named), written=written,
        durable=durable, counted=counted, rows=rows, rollouts=rollouts, evicted=evicted, dead_letters=dead,
        opened=bool(opened), ended=ended, end_status=Status(status) if status else None, url=url,
        tracker_run_id=tracker_run_id, missed=missed,
        degraded=tuple(json.loads(degraded)), left_out=json.loads(left_out),
    )  # fmt: skip
