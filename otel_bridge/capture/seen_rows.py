"""Which rows and cells of a table are new, although programs log a growing table whole each time.

Pure.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from otel_bridge.capture.tables import is_missing
from otel_bridge.emit.media.content_key import content_key
from otel_bridge.emit.values.scalars import is_scalar, scalar_of

_MAX_TABLES = 256
MAX_ROWS = 100_000
"""Most rows of a table, whose keys are remembered."""
_Keys: TypeAlias = "list[tuple[int | float | None, ...]]"
"""Keys of the cells of each row; ``None`` for an empty cell, which any value completes."""


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
    keys: _Keys = field(default_factory=list["tuple[int | float | None, ...]"])
    ids: list[str] = field(default_factory=list[str])
    table: weakref.ref[Any] | None = None

    def is_of(self, table: Any) -> bool:
        """Return whether *table* is the very object that was logged."""
        return self.table is not None and self.table() is table


class SeenTables:
    """Remembers the rows of the table last logged under each key, by keys of their cells."""

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

        Args:
            key: Key of the table.
            table: The table, with its ``columns``: rows of the very table that was logged before
                are the same rows.
            rows: Its rows, at most `MAX_ROWS`.
            step: Step at which it is logged.
            own_step: Whether the rows hold their step, so that equal rows are one row.
        """
        columns = [str(name) for name in table.columns]
        keys: _Keys = [tuple(map(_key, row)) for row in rows]
        # Taken out, so that the key is inserted last: the first one is evicted.
        earlier = self._logged.pop(key, None) or _Logged(columns, step)
        is_repeated = (keys, columns) == (earlier.keys, earlier.columns)
        # In a later step, the same text again is another sample.
        may_continue = own_step or step == earlier.step or not is_repeated
        start = _start(earlier, columns, keys) if may_continue else None
        if start is None and earlier.is_of(table):
            start = 0  # cells of the very table may have changed
        ids = [] if start is None else earlier.ids[start : start + len(rows)]
        completed: list[CompletedCell] = []
        if start is not None and not is_repeated:
            completed = list(_completed(earlier, start, columns, rows, keys))
        new_ids = self._new_ids(len(rows) - len(ids))
        # By a weak reference: the program's table and its media are not kept in memory.
        self._remember(
            key, _Logged(columns, step, keys, [*ids, *new_ids], weakref.ref(table))
        )
        return NewRows(rows[len(ids) :], new_ids, completed)

    def _remember(self, key: str, logged: _Logged) -> None:
        """Keep what was logged under *key*, in place of that of the key logged longest ago."""
        if len(self._logged) >= _MAX_TABLES:
            del self._logged[next(iter(self._logged))]
        self._logged[key] = logged

    def _new_ids(self, count: int) -> list[str]:
        ids = [f"{self._prefix}{self._rows + number:016x}" for number in range(count)]
        self._rows += count
        return ids


def _start(earlier: _Logged, columns: Sequence[str], keys: _Keys) -> int | None:
    """Return which row of the table *earlier* is the first one now: 0 of a grown table, more of a window.

    ``None`` when the tables have no rows in common. Rows are compared in the columns that both
    tables have.
    """
    if earlier.keys == keys[: len(earlier.keys)] and columns == earlier.columns:
        return 0
    common = [
        (earlier.columns.index(name), index)
        for index, name in enumerate(columns)
        if name in earlier.columns
    ]
    if not common or len(common) < min(len(columns), len(earlier.columns)):
        return None
    count = len(earlier.keys)
    last = count // 2 if count == len(keys) else 0
    return next(
        (
            start
            for start in range(last + 1)
            if _continues(earlier.keys, start, keys, common)
        ),
        None,
    )


def _continues(
    earlier: _Keys, start: int, keys: _Keys, common: Sequence[tuple[int, int]]
) -> bool:
    """Return whether *keys* begin with the rows *earlier* from *start* on, or with as many as there are."""
    for number in range(min(len(earlier) - start, len(keys))):
        old = earlier[start + number]
        new = keys[number]
        if any(
            old[at_old] is not None and old[at_old] != new[at_new]
            for at_old, at_new in common
        ):
            return False
    return True


def _completed(
    earlier: _Logged,
    start: int,
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    keys: _Keys,
) -> Iterator[CompletedCell]:
    """Yield the cells that rows have got since the table *earlier*, from whose row *start* on they are the same."""
    index_before = {name: index for index, name in enumerate(earlier.columns)}
    for row, new, old, row_id in zip(
        rows, keys, earlier.keys[start:], earlier.ids[start:], strict=False
    ):
        for column, value, cell_key in zip(columns, row, new, strict=False):
            index = index_before.get(column)
            is_known = index is not None and old[index] == cell_key
            if cell_key is not None and not is_known:
                yield CompletedCell(row_id, column, value)


def _key(cell: Any) -> int | float | None:
    """Return a key that is equal for cells of equal content; ``None`` for an empty cell.

    A number is its own key: ``hash(-1)`` is ``hash(-2)``. The ``repr()`` of a picture holds its
    address, and that of an array a part of its numbers, so of other cells the content counts.
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
    """
    file = getattr(value, "_sha256", None) or getattr(value, "_path", None)
    if isinstance(file, str):
        return f"{file} {getattr(value, '_caption', None)}"
    return None
