"""Which rows and cells of a table are new, although programs log a growing table whole each time.

Pure.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from otel_bridge.capture.tables import is_missing
from otel_bridge.emit.media.content_key import content_key
from otel_bridge.values.scalars import is_scalar, scalar_of

_MAX_TABLES = 256
"""Most keys whose last table is remembered."""
MAX_ROWS = 100_000
"""Most rows of a table, whose keys are remembered."""
_MAX_COMPARED = 16
"""Most rows that the search for the begin of a window compares without success, as a multiple of the table's."""
_Row: TypeAlias = "dict[str, int | float]"
"""Keys of the cells of a row by column, without empty cells, which any value completes."""


class CompletedCell(NamedTuple):
    """Holds a cell that a recorded row has got since: the id of the row, the column and the value."""

    row_id: str
    column: str
    value: Any


class NewRows(NamedTuple):
    """Holds what a table has that it had not when it was logged before: rows with their ids, and cells."""

    rows: Sequence[Sequence[Any]]
    ids: Sequence[str]
    completed: Sequence[CompletedCell] = ()


@dataclass(slots=True)
class _Logged:
    """Holds what is remembered of the table last logged under a key: its rows with their ids."""

    columns: Sequence[str]
    step: int
    rows: list[_Row] = field(default_factory=list[_Row])
    ids: list[str] = field(default_factory=list[str])
    table: weakref.ref[Any] | None = None

    def is_of(self, table: Any) -> bool:
        """Return whether *table* is the very object that was logged."""
        return self.table is not None and self.table() is table


class SeenTables:
    """Remembers the rows of the table last logged under each key, by keys of their cells.

    Keys and not cells are kept: a program's texts and pictures must not stay in memory for this.
    """

    def __init__(self) -> None:
        self._logged: dict[str, _Logged] = {}
        self._prefix = os.urandom(8).hex()
        self._rows = 0

    def new_rows(
        self,
        key: str,
        table: Any,
        rows: Sequence[Sequence[Any]],
        step: int,
        *,
        own_step: bool,
    ) -> NewRows:
        """Return the rows and cells that were not in the table logged before.

        A row that was there stays the same row when it gets further columns, or values in empty
        cells.

        Rows of a table that does not continue the one before are all new. Cells that are empty now
        complete nothing. Raises what reading a cell of the program raises; the table of before is
        still remembered then.

        Args:
            key: Key of the table.
            table: The table, with its ``columns``: rows of the very table that was logged before
                are the same rows.
            rows: Its rows, at most `MAX_ROWS`.
            step: Step at which it is logged.
            own_step: Whether the rows hold their step, so that equal rows are one row.
        """
        columns = [str(name) for name in table.columns]
        keyed_rows = [_keyed(columns, row) for row in rows]
        # Taken out, so that the key is inserted last: the first one is evicted.
        earlier = self._logged.pop(key, None) or _Logged(columns, step)
        is_repeated = (keyed_rows, columns) == (earlier.rows, earlier.columns)
        # In a later step, the same text again is another sample.
        may_continue = own_step or step == earlier.step or not is_repeated
        start = _start(earlier, columns, keyed_rows) if may_continue else None
        if start is None and earlier.is_of(table):
            start = 0  # cells of the very table may have changed
        ids: list[str] = []
        completed: list[CompletedCell] = []
        if start is not None:
            ids = earlier.ids[start : start + len(rows)]
            for number, row_id in enumerate(ids):
                # Of a cell that is empty now nothing is new.
                changes = (
                    keyed_rows[number].items() - earlier.rows[start + number].items()
                )
                cells = dict(zip(columns, rows[number], strict=False))
                completed += [
                    CompletedCell(row_id, column, cells[column])
                    for column, _ in sorted(changes)
                ]
        new_ids = self._new_ids(len(rows) - len(ids))
        # By a weak reference: the program's table and its media are not kept in memory.
        self._remember(
            key,
            _Logged(columns, step, keyed_rows, [*ids, *new_ids], weakref.ref(table)),
        )
        return NewRows(rows[len(ids) :], new_ids, completed)

    def _remember(self, key: str, logged: _Logged) -> None:
        """Keep what was logged under *key*, in place of that of the key logged longest ago."""
        if len(self._logged) >= _MAX_TABLES:
            del self._logged[next(iter(self._logged))]
        self._logged[key] = logged

    def _new_ids(self, count: int) -> list[str]:
        """Return ids for *count* new rows, which no other process of the run gives: the prefix is random."""
        ids = [f"{self._prefix}{self._rows + number:016x}" for number in range(count)]
        self._rows += count
        return ids


def _start(
    earlier: _Logged, columns: Sequence[str], rows: Sequence[_Row]
) -> int | None:
    """Return which row of the table *earlier* is the first one now: 0 of a grown table, more of a window.

    ``None`` when the tables have no rows in common. Rows are compared in the columns that both
    tables have.

    A window is searched where both tables have as many rows, and only so far that half of the
    earlier ones are left. ``None`` too where nearly all rows are equal, as the same wrong answer to
    the same prompt: the search would take the square of their number, in the trainer's `log()`. A
    table that has lost columns is another one.
    """
    common = set(columns) & set(earlier.columns)
    if len(common) < min(len(columns), len(earlier.columns)):
        return None
    count = len(earlier.rows)
    last = count // 2 if count == len(rows) else 0
    compared = 0
    for start in range(last + 1):
        same_rows = _same_rows(earlier.rows, rows, start, common)
        if same_rows == min(count - start, len(rows)):
            return start
        compared += same_rows
        if compared > _MAX_COMPARED * count:
            return None
    return None


def _same_rows(
    earlier_rows: Sequence[_Row],
    rows: Sequence[_Row],
    start: int,
    common: Collection[str],
) -> int:
    """Return how many of the first *rows* are the *earlier_rows* from *start* on."""
    number = 0
    last = min(len(earlier_rows) - start, len(rows))
    while number < last and _is_same(
        earlier_rows[start + number], rows[number], common
    ):
        number += 1
    return number


def _is_same(earlier_row: _Row, row: _Row, common: Collection[str]) -> bool:
    """Return whether *row* is *earlier_row*, with values in cells that were empty or not."""
    return all(
        row.get(column) == cell_key
        for column, cell_key in earlier_row.items()
        if column in common
    )


def _keyed(columns: Sequence[str], row: Sequence[Any]) -> _Row:
    """Return the keys of a row's cells by column, without empty cells; raises as `_key`."""
    keys: _Row = {}
    for column, cell in zip(columns, row, strict=False):
        key = _key(cell)
        if key is not None:
            keys[column] = key
    return keys


def _key(cell: Any) -> int | float | None:
    """Return a key that is equal for cells of equal content; ``None`` for an empty cell.

    A number is its own key: ``hash(-1)`` is ``hash(-2)``. The ``repr()`` of a picture holds its
    address, and that of an array a part of its numbers, so of other cells the content counts.
    Raises what the program's object raises when it is read.
    """
    if is_missing(cell):
        return None
    if isinstance(cell, int | float):
        return cell
    if is_scalar(cell):
        return _key(scalar_of(cell))
    return hash(cell if type(cell) is str else content_key(cell, _file_key))


def _file_key(value: object) -> str | None:
    """Return the digest, or the path, of the file of an object of W&B with its caption.

    ``None`` without a file.

    W&B's media hold no content of their own: they write a file when they are made.
    """
    file = getattr(value, "_sha256", None) or getattr(value, "_path", None)
    if isinstance(file, str):
        return f"{file} {getattr(value, '_caption', None)}"
    return None
