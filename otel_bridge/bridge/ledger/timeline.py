"""Timeline of a run: phases, rollouts, marks of steps and rates, kept in the ledger within a limit of bytes.

A part is what one batch brought of one role and step. When the limit is reached, whole steps are
deleted: half of the room is for the newest steps, the other half for the slowest of the others.
What has no step is one step a part, and only its age counts.
"""

from __future__ import annotations

import functools
import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from otel_bridge.bridge.ledger.codec import decode_value, encode_value
from otel_bridge.bridge.ledger.database import DatabaseReader
from otel_bridge.records import Record, RolloutRecord, Row, axis_of
from otel_bridge.translation.phases.step_times import TimelineEvent, TimelinePhase
from otel_bridge.values.mappings import present

_ROW_BYTES = 80
"""Bytes that SQLite needs for a part beside its data."""
_SPARE = 0.9
"""Share of the limit to which steps are deleted, so that not every batch deletes some."""
_RATES = re.compile(
    r"throughput|tokens?_?(per|/)_?s|tok/s|queue|gpu.*util", re.IGNORECASE
)
_MAX_RATES = 64
"""Most rates of one row."""
_MAX_SPANS = 400
"""Most spans of a rollout on the timeline."""
_MAX_NAME_CHARS = 128
_NO_STEP = -1
"""Step of rollouts and rows without one."""
_BEYOND = """
WITH steps AS (
    SELECT role, step, min(id) AS first_id, max(id) AS last_id, sum(size) AS size,
        max(end_ns) - min(start_ns) AS duration_ns
    FROM timeline GROUP BY role, step, CASE step WHEN :no_step THEN id ELSE 0 END),
newest AS (SELECT *, sum(size) OVER (ORDER BY last_id DESC) AS used FROM steps WHERE size <= :room),
older AS (SELECT * FROM newest WHERE used > :room),
slowest AS (
    SELECT *, sum(size) OVER (ORDER BY step = :no_step, duration_ns DESC, last_id DESC) AS used_later FROM older)
SELECT role, step, first_id, last_id FROM steps WHERE size > :room
UNION ALL SELECT role, step, first_id, last_id FROM slowest WHERE used_later > :room
"""
"""Selects the steps to delete, or parts without a step. Room is for the newest steps, and as much
for the slowest of the others. What has no step is not a slow step either: it comes last. A step that
is too large alone does not push out all that follow."""


@dataclass(frozen=True, slots=True)
class TimelineStep:
    """Holds the events of one step of a role."""

    role: str
    step: int
    events: list[TimelineEvent]


class TimelineStore:
    """Stores the timeline of one ledger. Nothing is stored before the first phase or rollout with times.

    Args:
        sql: Connection of the ledger.
        limit_bytes: Most bytes of the timeline; 0: there is none.
    """

    def __init__(self, sql: sqlite3.Connection, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._size = _stored_bytes(sql)

    def add(
        self,
        sql: sqlite3.Connection,
        phases: Iterable[TimelinePhase],
        records: Sequence[Record],
    ) -> None:
        """Store what a batch brought, in the transaction of *sql*; nothing with a limit of 0.

        Raises:
            sqlite3.Error: The caller rolls the batch back, which is stored again later. The size
                counts it twice then: some steps are deleted too early, and `_evict` counts anew.
        """
        if not self._limit:
            return
        events = [*phases, *_rollouts(records)]
        # A run without phases and rollouts has no timeline, so its rows mark nothing.
        if self._size or events:
            events += _marks(records)
        parts: dict[tuple[str, int], list[TimelineEvent]] = {}
        for role, step, event in events:
            parts.setdefault((role, step), []).append(event)
        for (role, step), of_step in parts.items():
            self._insert(sql, role, step, of_step)
        if self._size > self._limit:
            self._evict(sql)

    def _insert(
        self, sql: sqlite3.Connection, role: str, step: int, events: list[TimelineEvent]
    ) -> None:
        """Store *events*, at least one, as a part of the step; `_evict` restores the limit."""
        data = encode_value([list(event) for event in events])
        start_ns = min(event.start_ns for event in events)
        end_ns = max(event.end_ns for event in events)
        size = len(data) + _ROW_BYTES
        statement = "INSERT INTO timeline (role, step, start_ns, end_ns, size, data) VALUES (?, ?, ?, ?, ?, ?)"
        sql.execute(statement, (role, step, start_ns, end_ns, size, data))
        self._size += size

    def _evict(self, sql: sqlite3.Connection) -> None:
        """Delete whole steps until the timeline is within its limit.

        Whole ones, because a step that lacks some ranks would show another slow one.
        """
        room = self._limit * _SPARE / 2
        steps = sql.execute(_BEYOND, {"no_step": _NO_STEP, "room": room}).fetchall()
        sql.executemany(
            "DELETE FROM timeline WHERE role = ? AND step = ? AND id BETWEEN ? AND ?",
            steps,
        )
        self._size = _stored_bytes(sql)


def _stored_bytes(sql: sqlite3.Connection) -> int:
    """Return the size of the stored timeline, as `_insert` counts it."""
    (total,) = sql.execute("SELECT coalesce(sum(size), 0) FROM timeline").fetchone()
    return int(total)


def _marks(records: Iterable[Record]) -> Iterator[TimelinePhase]:
    """Yield a mark for each row of a step and for each row with a rate, with its role and step."""
    for record in records:
        # A derived row does not mark a step.
        if type(record) is not Row or record.is_derived:
            continue
        rates = _rates_of(record)
        step = record.step
        if step is None and rates:
            step = record.steps.get(axis_of(record.role), _NO_STEP)
        if step is not None:
            time_ns = record.time_unix_ns
            mark = TimelineEvent("mark", "", "", time_ns, time_ns, rates)
            yield record.role or "", step, mark


def _rates_of(row: Row) -> dict[str, float]:
    """Return the numbers of *row* whose keys name a rate, a queue or the use of a GPU, the first `_MAX_RATES`."""
    rates: dict[str, float] = {}
    for key, value in row.values.items():
        if (
            isinstance(value, (int, float))
            and _is_rate(key)
            and len(rates) < _MAX_RATES
        ):
            rates[key] = value
    return rates


@functools.lru_cache(4096)
def _is_rate(key: str) -> bool:
    return _RATES.search(key) is not None


def _rollouts(records: Iterable[Record]) -> Iterator[TimelinePhase]:
    """Yield the event of each rollout, and of its first spans behind the root, which has the same times."""
    kinds = {"generation": "turn", "tool": "tool"}
    for record in records:
        if not isinstance(record, RolloutRecord) or not record.timed:
            continue
        role = record.role or ""
        step = _NO_STEP if record.step is None else record.step
        facts = {"reward": record.reward, "group": record.group, "error": record.error}
        event = TimelineEvent(
            "rollout",
            record.id,
            "",
            record.start_unix_ns,
            record.end_unix_ns,
            present(facts),
        )
        yield role, step, event
        for span in record.spans[1:_MAX_SPANS]:
            event = TimelineEvent(
                kinds.get(span.kind, "span"),
                span.name[:_MAX_NAME_CHARS],
                record.id,
                span.start_unix_ns,
                span.end_unix_ns,
                {},
            )
            yield role, step, event


def read_timeline(reader: DatabaseReader, first: int, last: int) -> list[TimelineStep]:
    """Return the events of the steps from *first* to *last* of every role, in the order of roles and steps."""
    steps: dict[tuple[str, int], TimelineStep] = {}
    with reader.snapshot() as sql:
        rows = sql.execute(
            "SELECT role, step, data FROM timeline WHERE step BETWEEN ? AND ? ORDER BY role, step, id",
            (first, last),
        )
        for role, step, data in cast("Iterable[tuple[str, int, bytes]]", rows):
            part = steps.setdefault((role, step), TimelineStep(role, step, []))
            events = cast("list[list[Any]]", decode_value(data))
            part.events.extend(TimelineEvent(*event) for event in events)
    return list(steps.values())
