"""Records which history line of the run holds which records: from "the server has n lines" follows "durable up to p".

Every ``run.log`` is one line, and lines arrive in order. Before records are logged, their lines are
stored in the writer's memory. After a kill the server's line count shows which of them arrived, and
the next line continues after them. An increment of a table is one line too, but its rows are in an
artifact that is uploaded separately. The increment stays *pending* until the artifact is committed.
When its writer ends before that, its rollouts are *lost* and sent again.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from otel_bridge.exporter import WriterMemory
from otel_bridge.records import Position

_PREFIX = "line/"
_HELD = "held"
MAX_SENT = 10
"""Most sends of an increment. A server that never lists its artifact would get its rows for ever."""
_log = logging.getLogger("otel_bridge.wandb")


@dataclass(frozen=True, slots=True)
class LineEntry:
    """Holds consecutive lines and their records.

    Attributes:
        start: First line.
        positions: Record of each line; for the one line of a table, all of its records.
        table: Key of the table, empty for rows.
        at_unix_ms: Time before the increment was logged; its file is named by the time of logging.
        until_unix_ms: Time after it was logged; 0 when its process crashed during logging.
        sent: Number of times that these rollouts were sent, this time included.
    """

    start: int
    positions: tuple[Position, ...]
    table: str = ""
    at_unix_ms: int = 0
    until_unix_ms: int = 0
    sent: int = 1

    @property
    def end(self) -> int:
        """Return the number of the line after the last one."""
        return self.start + (1 if self.table else len(self.positions))

    def may_have(self, file_unix_ms: int) -> bool:
        """Return whether a file named by this time is this increment's."""
        return self.at_unix_ms <= file_unix_ms <= (self.until_unix_ms or math.inf)


class LineLedger:
    """Tracks the lines of one run that are not confirmed yet, oldest first. For one thread.

    Methods that change the memory raise `JournalError` when it cannot be written. The writer's call
    fails then, and its records are given again.

    Args:
        memory: Memory of this destination.
        server_lines: Lines that the server held when the run was opened.
        oldest: Position of the oldest record that can still be given again.
    """

    def __init__(
        self, memory: WriterMemory, server_lines: int, *, oldest: Position = 1
    ) -> None:
        self._memory = memory
        self._oldest = oldest
        self._entries: deque[LineEntry] = deque()
        self._pending: list[LineEntry] = []
        self._stale: list[LineEntry] = []
        """Lost increments, until their records are committed in other ones."""
        self._lost: dict[Position, LineEntry] = {}
        """Record of a lost increment, until it is logged again, to the increment."""
        self._held, self._position = _read_held(memory)
        # Zero as well: a user deleted the run, and all that is still here is sent again.
        if server_lines == 0 or server_lines < self._held:
            self._forget_more_than(server_lines)
        # After that: what was announced beyond the server's lines did not arrive, and is sent
        # again.
        self._load(server_lines)
        self.next = server_lines
        self._logged = self._position
        self._tail = self._position
        self.advance(server_lines)

    @property
    def outstanding(self) -> int:
        """Return how many lines were logged and are not confirmed."""
        return self.next - self._held

    @property
    def pending(self) -> Sequence[LineEntry]:
        """Return the increments whose line is confirmed and whose artifact is not."""
        return self._pending

    def durable(self) -> Position:
        """Return the last position up to which all records are in the store; 0 before any is."""
        # An increment whose artifact is not committed holds back all later records: positions have
        # no gaps.
        waiting: list[Position] = []
        for entry in (*self._pending, *self._stale):
            # 0 has a dead letter that was tried again: it is not in the order.
            if entry.positions[0]:
                waiting.append(entry.positions[0])
        if waiting:
            return min(min(waiting) - 1, self._position)
        # No line is awaited: records without a line, behind the last one, are durable too.
        if self.outstanding <= 0:
            return max(self._position, self._tail)
        return self._position

    def due(self, positions: Sequence[Position]) -> Sequence[Position]:
        """Return the positions of *positions* that were neither confirmed at open nor logged since.

        Those of lost increments are due again although they were logged. So is 0, the position of a
        dead letter that is tried again.
        """
        # Hot path: the usual call, in which nothing is redelivered.
        if positions and positions[0] > self._logged:
            return positions
        due: list[Position] = []
        for position in positions:
            if not position or position > self._logged or position in self._lost:
                due.append(position)
        return due

    def announce(
        self, positions: Sequence[Position], table: str = "", now_unix_ms: int = 0
    ) -> None:
        """Store in the memory that lines follow: one for each record, or one increment of *table*.

        Called before they are logged: after a kill the server's count of lines then shows which of
        them arrived. *now_unix_ms* matters for an increment alone.
        """
        sent = 0
        for position in self._lost.keys() & set(positions):
            # Only records of increments are lost: a row arrives with its line.
            sent = max(sent, self._lost[position].sent)
        self._put(
            LineEntry(
                self.next,
                tuple(positions),
                table,
                now_unix_ms,
                sent=sent + 1,
            )
        )

    def logged(self, count: int, now_unix_ms: int = 0) -> None:
        """Note that *count* of the lines just announced were logged, and the rest will not be.

        The memory forgets the rest, whose numbers are free: else it would be awaited for ever.
        """
        entry = self._entries.pop()
        self.next = entry.start + count
        # None was logged: their numbers are used by the next lines.
        if not count:
            self._memory.delete(_key(entry.start))
            return
        remaining = dataclasses.replace(entry, positions=entry.positions[:count])
        if entry.table:
            # Both times, by which the file of this increment is recognised after a kill.
            remaining = dataclasses.replace(entry, until_unix_ms=now_unix_ms)
        # Before the memory, which may raise: what was logged must not be logged again.
        self._entries.append(remaining)
        self._logged = max(self._logged, remaining.positions[-1])
        self._tail = max(self._tail, remaining.positions[-1])
        for position in remaining.positions:
            self._lost.pop(position, None)
        if remaining != entry:
            self._memory.put(_key(entry.start), _encode(remaining))

    def passed(self, position: Position) -> None:
        """Note that the record at *position* has no line."""
        self._tail = max(self._tail, position)

    def advance(self, server_lines: int) -> None:
        """Note that the server holds *server_lines* lines.

        A smaller number than before changes nothing.

        An increment whose line the server holds becomes pending: its rows are in an artifact.
        """
        arrived: list[LineEntry] = []
        while self._entries and self._entries[0].end <= server_lines:
            entry = self._entries.popleft()
            self._position = max(self._position, entry.positions[-1])
            # Its line is there, its rows may not be: they are in an artifact.
            if entry.table:
                self._pending.append(entry)
            arrived.append(entry)
        if self._entries and self._entries[0].start < server_lines:
            first = self._entries[0]
            self._position = max(
                self._position, first.positions[server_lines - first.start - 1]
            )
        # Never beyond the own lines: in shared mode, and beside a second writer, the server has
        # more.
        self._held = max(self._held, min(server_lines, self.next))
        # Only when an entry is done, so that an answer of the server costs no write otherwise.
        if arrived:
            # Before the entries go: after a kill in between, neither would say that their records
            # have arrived.
            self._memory.put(_HELD, json.dumps([self._held, self._position]).encode())
        for entry in arrived:
            if not entry.table:
                self._memory.delete(_key(entry.start))
        self._logged = max(self._logged, self._position)

    def awaited_tables(self) -> dict[str, int]:
        """Return the tables with pending increments and the time (Unix milliseconds) of the oldest.

        Empty when no artifact is awaited.
        """
        first_times: dict[str, int] = {}
        for entry in self._pending:
            first_times[entry.table] = min(
                entry.at_unix_ms, first_times.get(entry.table, entry.at_unix_ms)
            )
        return first_times

    def committed(self, times_by_table: Mapping[str, Sequence[int]]) -> None:
        """Drop pending increments whose file is committed; the others stay pending.

        Args:
            times_by_table: Keys of tables to the times (Unix milliseconds) in the names of their
                committed files.
        """

        def is_committed(entry: LineEntry) -> bool:
            times = times_by_table.get(entry.table, ())
            return any(map(entry.may_have, times))

        # One by one, because a drop also changes other increments of the same records.
        while (entry := next(filter(is_committed, self._pending), None)) is not None:
            self._drop(entry)

    def lose_pending(self, now_unix_ms: int) -> None:
        """Mark pending increments as lost, because their writer has ended: they are sent again unless committed.

        One that was sent `MAX_SENT` times counts as stored, with a warning: it would hold up the
        end of the run for ever. Records that the bridge has evicted, or tried again without a
        position, will not come again, so that they are no longer awaited either.
        """
        while (entry := next(filter(_is_given_up, self._pending), None)) is not None:
            _log.warning(
                "W&B: table %s: its artifact was not seen %d times; not sent again",
                entry.table,
                entry.sent,
            )
            self._drop(entry)
        for pending in self._pending:
            entry = self._kept_part(pending)
            if entry is None:
                continue
            self._lost |= dict.fromkeys(entry.positions, entry)
            # Its process is gone: a file with a later time is another increment's.
            until_unix_ms = entry.until_unix_ms or now_unix_ms
            self._stale.append(dataclasses.replace(entry, until_unix_ms=until_unix_ms))
            self._memory.put(_key(entry.start), _encode(self._stale[-1]))
        self._pending = []

    def _kept_part(self, entry: LineEntry) -> LineEntry | None:
        """Return *entry* without records that cannot be given again.

        ``None``, after a warning, when none is left; the memory forgets it.
        """
        positions = tuple(
            position for position in entry.positions if position >= self._oldest
        )
        if positions:
            return dataclasses.replace(entry, positions=positions)
        _log.warning(
            "W&B: table %s: its artifact was not seen, and its %d records are no longer kept here",
            entry.table,
            len(entry.positions),
        )
        self._memory.delete(_key(entry.start))
        return None

    def _put(self, entry: LineEntry) -> None:
        self._memory.put(_key(entry.start), _encode(entry))
        self._entries.append(entry)

    def _drop(self, entry: LineEntry) -> None:
        """Delete an increment that is in the store, and older increments of the same records, from the memory."""
        self._pending.remove(entry)
        self._pending = self._without(entry, self._pending)
        self._stale = self._without(entry, self._stale)
        # Last: after a kill before it, its file drops it and the older ones again.
        self._memory.delete(_key(entry.start))

    def _without(self, done: LineEntry, entries: list[LineEntry]) -> list[LineEntry]:
        """Return *entries* without the records of *done*, which are in the store, and change the memory accordingly.

        The same rollouts may have been sent in increments of other sizes, so that an entry may lose
        a part.
        """
        remaining: list[LineEntry] = []
        for entry in entries:
            # 0 names no record: each dead letter that was tried again has it.
            rest = tuple(sorted(set(entry.positions) - (set(done.positions) - {0})))
            if len(rest) == len(entry.positions):
                remaining.append(entry)
            elif rest:
                remaining.append(dataclasses.replace(entry, positions=rest))
                self._memory.put(_key(entry.start), _encode(remaining[-1]))
            else:
                self._memory.delete(_key(entry.start))
        return remaining

    def _load(self, server_lines: int) -> None:
        """Load what the previous writer announced, up to the lines that arrived, and forget the rest of it.

        Records of lines that did not arrive are not durable, so that the bridge gives them again.
        """
        for key, value in list(self._memory.items(_PREFIX)):
            entry = _decode(key, value)
            # Announced and never arrived: the numbers are free again.
            if entry.start >= server_lines:
                self._memory.delete(key)
            # A batch of rows that arrived in part: each line is one row, so that it can be cut.
            elif entry.end > server_lines:
                cut = dataclasses.replace(
                    entry, positions=entry.positions[: server_lines - entry.start]
                )
                self._put(cut)
            else:
                self._entries.append(entry)

    def _forget_more_than(self, server_lines: int) -> None:
        """Go back to *server_lines*, because the server has fewer lines than it confirmed: somebody deleted the run.

        If it has none, all records that the ledger still keeps are sent again. Otherwise those of
        lost lines are not: their identity is not stored.
        """
        if self._held > server_lines:
            _log.warning(
                "W&B holds %d lines of the run, it held %d: lines were deleted there",
                server_lines,
                self._held,
            )
        if server_lines == 0:
            # The run is new: everything that is still kept is due again.
            self._position = 0
        self._held = server_lines
        self._memory.put(_HELD, json.dumps([self._held, self._position]).encode())


def held_before(memory: WriterMemory) -> int:
    """Return how many lines were confirmed, as last stored in *memory*."""
    return _read_held(memory)[0]


def announced_before(memory: WriterMemory) -> int:
    """Return how many lines the last writer had announced; further lines are another writer's.

    Announced lines count as own, because they may have arrived just before a kill.
    """
    lines = held_before(memory)
    for key, value in memory.items(_PREFIX):
        lines = max(lines, _decode(key, value).end)
    return lines


def _is_given_up(entry: LineEntry) -> bool:
    return entry.sent >= MAX_SENT


def _key(line: int) -> str:
    return f"{_PREFIX}{line:016d}"


def _encode(entry: LineEntry) -> bytes:
    """Return an entry as JSON; consecutive positions as pairs of first and count.

    Fields of increments are left out of rows, which are nearly all entries.
    """
    # As pairs, because a call has up to thousands of positions, nearly all consecutive.
    runs: list[list[int]] = []
    for position in entry.positions:
        if runs and position == runs[-1][0] + runs[-1][1]:
            runs[-1][1] += 1
        else:
            runs.append([position, 1])
    value: dict[str, object] = {"p": runs}
    if entry.table:
        value |= {
            "t": entry.table,
            "ms": [entry.at_unix_ms, entry.until_unix_ms],
            "n": entry.sent,
        }
    return json.dumps(value, separators=(",", ":")).encode()


def _decode(key: str, value: bytes) -> LineEntry:
    """Return the entry that `_encode` stored under *key*."""
    stored = json.loads(value)
    positions: list[Position] = []
    for first, count in stored["p"]:
        positions += range(first, first + count)
    start = int(key.removeprefix(_PREFIX))
    at_unix_ms, until_unix_ms = stored.get("ms", (0, 0))
    return LineEntry(
        start,
        tuple(positions),
        stored.get("t", ""),
        at_unix_ms,
        until_unix_ms,
        stored.get("n", 1),
    )


def _read_held(memory: WriterMemory) -> tuple[int, Position]:
    """Return the confirmed lines and the last position of them, 0 and 0 at the first opening."""
    stored = memory.get(_HELD)
    lines, position = json.loads(stored) if stored else (0, 0)
    return int(lines), int(position)
