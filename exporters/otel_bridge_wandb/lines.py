"""Which history line of the run holds which records: what makes "the server has n lines" mean "safe up to position p".

Every ``run.log`` is one line, and lines arrive in order. Before records are logged their lines are put into the
memory; after a kill the server's line count says which of them arrived, and the next one goes on right behind it.
An increment of a table is one line too, but its rows are in an artifact that is uploaded apart: it stays *pending*
until that is committed, and when its writer is gone its rollouts are *lost* and sent again.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from otel_bridge.exporter import Memory
from otel_bridge.records import Position

_PREFIX: Final = "line/"
_HELD: Final = "held"
MAX_SENT: Final = 10
"""How often an increment is sent before its artifact, never seen, is no longer asked for."""
_log: Final = logging.getLogger("otel_bridge.wandb")


@dataclass(frozen=True, slots=True)
class Entry:
    """Consecutive lines.

    Attributes:
        start: First line.
        positions: Record of each line; of a table's one line all its records.
        table: Key of the table, empty for rows.
        at_unix_ms: Before the increment was logged; its file is named by the time of the logging.
        until_unix_ms: After it was logged; 0: its process died while it logged.
        sent: How often these rollouts were sent, this time included.
    """

    start: int
    positions: tuple[Position, ...]
    table: str = ""
    at_unix_ms: int = 0
    until_unix_ms: int = 0
    sent: int = 1

    @property
    def end(self) -> int:
        """The line behind the last one."""
        return self.start + (1 if self.table else len(self.positions))

    def may_have(self, file_unix_ms: int) -> bool:
        """Tell whether a file named by this time is this increment's."""
        return self.at_unix_ms <= file_unix_ms <= (self.until_unix_ms or math.inf)


class Lines:
    """The lines of one run that are not yet known to be held, oldest first. For one thread.

    Args:
        memory: Of this destination.
        held: Lines that the server holds now, as the run was opened.
    """

    def __init__(self, memory: Memory, held: int) -> None:
        self._memory = memory
        self._entries: deque[Entry] = deque()
        self._pending: list[Entry] = []
        self._stale: list[Entry] = []  # increments to be replaced by ones that are sent again
        self._lost: dict[Position, int] = {}  # their records, until logged again, and how often they were sent
        self._held, self._position = _read_held(memory)
        if held == 0 or held < self._held:
            self._forget_more_than(held)
        self._load(held)
        self.next = held
        self._logged = self._position
        self._tail = self._position
        self.advance(held)

    @property
    def outstanding(self) -> int:
        """Lines that were logged and are not known to be held."""
        return self.next - self._held

    @property
    def pending(self) -> Sequence[Entry]:
        """Increments whose line is held and whose artifact was not seen."""
        return self._pending

    def safe(self) -> Position:
        """Return the last position up to which all is in the store."""
        waiting = [entry.positions[0] for entry in (*self._pending, *self._stale)]
        if waiting:
            return min(min(waiting) - 1, self._position)
        return max(self._position, self._tail) if self.outstanding <= 0 else self._position

    def due(self, positions: Sequence[Position]) -> Sequence[Position]:
        """Return those of *positions* that were neither held at open nor logged since."""
        if positions and positions[0] > self._logged:
            return positions
        return [position for position in positions if position > self._logged or position in self._lost]

    def announce(self, positions: Sequence[Position]) -> None:
        """Put the next lines, one a position, into the memory."""
        self._put(Entry(self.next, tuple(positions)))

    def announce_table(self, key: str, positions: Sequence[Position], at_unix_ms: int) -> None:
        """Put the next line, an increment of table *key*, into the memory."""
        sent = 1 + max(self._lost.get(position, 0) for position in positions)
        self._put(Entry(self.next, tuple(positions), key, at_unix_ms, sent=sent))

    def logged_table(self, until_unix_ms: int) -> None:
        """The increment just announced was logged."""
        entry = dataclasses.replace(self._entries.pop(), until_unix_ms=until_unix_ms)
        self._put(entry)
        self.logged(1)

    def logged(self, count: int) -> None:
        """*count* of the lines just announced were logged; the rest never will be."""
        entry = self._entries[-1]
        self.next = entry.start + count
        if count:
            done = entry.positions if entry.table else entry.positions[:count]
            self._logged = max(self._logged, done[-1])
            self._tail = max(self._tail, done[-1])
            for position in done if self._lost else ():
                self._lost.pop(position, None)
        if self.next < entry.end:
            self._cut(entry, self.next)

    def passed(self, position: Position) -> None:
        """The record at *position* has no line."""
        self._tail = max(self._tail, position)

    def advance(self, held: int) -> None:
        """The server holds *held* lines."""
        popped = False
        while self._entries and self._entries[0].end <= held:
            entry = self._entries.popleft()
            self._position = max(self._position, entry.positions[-1])
            if entry.table:
                self._pending.append(entry)
            else:
                self._memory.delete(_key(entry.start))
            popped = True
        if self._entries and self._entries[0].start < held:
            first = self._entries[0]
            self._position = max(self._position, first.positions[held - first.start - 1])
        self._held = max(self._held, min(held, self.next))
        if popped:
            self._memory.put(_HELD, json.dumps([self._held, self._position]).encode())
        self._logged = max(self._logged, self._position)

    def awaited_tables(self) -> dict[str, int]:
        """Return the tables with pending increments and the time (Unix milliseconds) of the oldest."""
        since: dict[str, int] = {}
        for entry in self._pending:
            since[entry.table] = min(entry.at_unix_ms, since.get(entry.table, entry.at_unix_ms))
        return since

    def committed(self, seen: Callable[[str], Iterable[int]]) -> None:
        """Drop pending increments whose file is there.

        Args:
            seen: From a table's key to the times (Unix milliseconds) in the names of its committed files.
        """
        for key in self.awaited_tables():
            times = list(seen(key))
            for start in [entry.start for entry in self._pending if entry.table == key]:
                entry = next((found for found in self._pending if found.start == start), None)
                if entry is not None and any(entry.may_have(at) for at in times):
                    self._drop(entry)

    def lose_pending(self, now_unix_ms: int) -> None:
        """The writer of the pending increments is gone: what is not committed now has to be sent again."""
        for entry in [entry for entry in self._pending if entry.sent >= MAX_SENT]:
            _log.warning("W&B: table %s: its artifact was not seen %d times; not sent again", entry.table, entry.sent)
            self._drop(entry)
        for entry in self._pending:
            self._lost |= {position: max(entry.sent, self._lost.get(position, 0)) for position in entry.positions}
            # Its process is gone: a file with a later time is another increment's.
            until = entry.until_unix_ms or now_unix_ms
            self._stale.append(dataclasses.replace(entry, until_unix_ms=until))
            self._memory.put(_key(entry.start), _encode(self._stale[-1]))
        self._pending = []

    def _put(self, entry: Entry) -> None:
        self._memory.put(_key(entry.start), _encode(entry))
        self._entries.append(entry)

    def _cut(self, entry: Entry, end: int) -> None:
        self._entries.pop()
        self._memory.delete(_key(entry.start))
        if end > entry.start and not entry.table:
            self._put(dataclasses.replace(entry, positions=entry.positions[: end - entry.start]))

    def _drop(self, entry: Entry) -> None:
        """An increment is in the store: it and older ones of the same records need no more remembering."""
        self._pending.remove(entry)
        self._memory.delete(_key(entry.start))
        self._pending = self._without(entry, self._pending)
        self._stale = self._without(entry, self._stale)

    def _without(self, done: Entry, entries: list[Entry]) -> list[Entry]:
        left: list[Entry] = []
        for entry in entries:
            rest = tuple(position for position in entry.positions if position not in done.positions)
            if len(rest) == len(entry.positions):
                left.append(entry)
            elif rest:
                left.append(dataclasses.replace(entry, positions=rest))
                self._memory.put(_key(entry.start), _encode(left[-1]))
            else:
                self._memory.delete(_key(entry.start))
        return left

    def _load(self, held: int) -> None:
        """Take up what the writer before announced, up to the lines that arrived; the rest is void."""
        for key, value in list(self._memory.items(_PREFIX)):
            entry = _decode(key, value)
            if entry.start >= held:
                self._memory.delete(key)
            elif entry.end > held:
                cut = dataclasses.replace(entry, positions=entry.positions[: held - entry.start])
                self._put(cut)
            else:
                self._entries.append(entry)

    def _forget_more_than(self, held: int) -> None:
        """The server holds less than it did: the run was deleted or another one has its id."""
        if self._held > held:
            _log.warning("W&B holds %d lines of the run, it held %d: lines were deleted there", held, self._held)
        if held == 0:
            self._position = 0
        self._held = held
        self._memory.put(_HELD, json.dumps([self._held, self._position]).encode())


def held_before(memory: Memory) -> int:
    """Return how many lines were known to be held when that was last put into *memory*."""
    return _read_held(memory)[0]


def announced_before(memory: Memory) -> int:
    """Return how many lines the last writer had announced: more are somebody else's."""
    entries = [_decode(key, value) for key, value in memory.items(_PREFIX)]
    return max(held_before(memory), *(entry.end for entry in entries), 0)


def _key(line: int) -> str:
    return f"{_PREFIX}{line:016d}"


def _encode(entry: Entry) -> bytes:
    """Return an entry as JSON; consecutive positions as pairs of first and count."""
    runs: list[list[int]] = []
    for position in entry.positions:
        if runs and position == runs[-1][0] + runs[-1][1]:
            runs[-1][1] += 1
        else:
            runs.append([position, 1])
    value: dict[str, object] = {"p": runs}
    if entry.table:
        value |= {"t": entry.table, "ms": [entry.at_unix_ms, entry.until_unix_ms], "n": entry.sent}
    return json.dumps(value, separators=(",", ":")).encode()


def _decode(key: str, value: bytes) -> Entry:
    stored = json.loads(value)
    positions = tuple(first + at for first, count in stored["p"] for at in range(count))
    start = int(key.removeprefix(_PREFIX))
    at_unix_ms, until_unix_ms = stored.get("ms", (0, 0))
    return Entry(start, positions, stored.get("t", ""), at_unix_ms, until_unix_ms, stored.get("n", 1))


def _read_held(memory: Memory) -> tuple[int, Position]:
    stored = memory.get(_HELD)
    lines, position = json.loads(stored) if stored else (0, 0)
    return int(lines), int(position)
