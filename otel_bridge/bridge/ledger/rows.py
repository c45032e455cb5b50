"""Rows of the ledger's small tables as values: how far each process is read, how far each destination is."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from otel_bridge.records import Position, Status


@dataclass(frozen=True, slots=True)
class SegmentPosition:
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
        durable: Position up to which the tracker's store is known to hold them.
        counted: Last position that `rows` and `rollouts` count; a record written again is not counted again.
        taken: Records that the bound took before they were durable here.
        opened: A writer was opened at least once.
        ended: Position of the last end acted on, 0 for none.
        tracker_run_id: The tracker's own id of the run, where its writer says it.
        missed: Records that were deleted before this destination was first named.
        backlog: How much of what is written its writer has deferred, since records go before it.
        degraded: One sentence for each ability that its tracker lacked when it was opened last.
        left_out: What its writers did not write for want of an ability: reason to count.
    """

    id: int
    exporter: str
    place: Mapping[str, str]
    named: bool = True
    written: Position = 0
    durable: Position = 0
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
    backlog: int = 0
    degraded: tuple[str, ...] = ()
    left_out: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def settled(self) -> bool:
        """Whether its tracker's run has ended, or was never opened: nothing that is written is in doubt."""
        return bool(self.ended) or not self.opened

    @property
    def delivered(self) -> Position:
        """Position up to which no record need be written again: the end of the run decides about what is in doubt."""
        return self.written if self.settled else min(self.durable, self.written)


@dataclass(frozen=True, slots=True)
class StoredDeadLetter:
    """A dead letter as it lies in the ledger.

    Attributes:
        exporter: Who refused the record.
        data: The record as `codec.encode` makes it; empty where its content was released.
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


def put_source(sql: sqlite3.Connection, source: SegmentPosition) -> None:
    """Store how far a process is read."""
    # Only the forwarder moves the forwarded offsets.
    sql.execute(
        "INSERT INTO sources (instance_id, number, offset, header, ended) VALUES (?, ?, ?, ?, ?) "
        "ON CONFLICT (instance_id) DO UPDATE SET number = excluded.number, offset = excluded.offset, "
        "header = excluded.header, ended = excluded.ended",
        (source.instance_id, source.number, source.offset, source.header, int(source.ended)),
    )


def sources_of(sql: sqlite3.Connection) -> list[SegmentPosition]:
    """Return how far each process is read."""
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
        "SELECT id, exporter, place, named, written, durable, counted, rows, rollouts, taken, dead, opened, ended, "
        "end_status, url, tracker_run_id, missed, backlog, degraded, left_out FROM destinations ORDER BY id"
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
    number, exporter, place, named, written, durable, counted, rows, rollouts, taken, dead, opened, ended, status = row[
        :14
    ]
    url, tracker_run_id, missed, backlog, degraded, left_out = row[14:]
    return Destination(
        id=number, exporter=exporter, place=json.loads(place), named=bool(named), written=written, durable=durable,
        counted=counted, rows=rows, rollouts=rollouts, taken=taken, dead_letters=dead, opened=bool(opened),
        ended=ended, end_status=Status(status) if status else None, url=url,
        tracker_run_id=tracker_run_id, missed=missed, backlog=backlog,
        degraded=tuple(json.loads(degraded)), left_out=json.loads(left_out),
    )  # fmt: skip
