"""Which rows and cells of a table are new, although programs log a growing table whole each time. Pure."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from otel_bridge.capture.tables import is_missing
from otel_bridge.errors import any_error

_MAX_TABLES: Final = 256
MAX_ROWS: Final = 100_000
"""Most rows of a table, whose hashes are remembered."""
_Hashes: TypeAlias = "list[tuple[int | None, ...]]"
"""Hashes of the cells of each row; ``None`` for an empty cell, which any value completes."""


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
    hashes: _Hashes = field(default_factory=list["tuple[int | None, ...]"])
    ids: list[str] = field(default_factory=list[str])
    table: weakref.ref[Any] | None = None


class SeenTables:
    """Remembers the rows of the table last logged under each key, by hashes of their cells."""

    def __init__(self) -> None:
        self._logged: dict[str, _Logged] = {}
        self._prefix = os.urandom(8).hex()
        self._rows = 0

    def new_rows(self, key: str, table: Any, rows: Sequence[Sequence[Any]], step: int, *, own_step: bool) -> NewRows:
        """Return the rows and cells that were not in the table logged before.

        A row that was there stays the same row when it gets further columns, or values in empty cells.

        Args:
            key: Key of the table.
            table: The table, with its ``columns``: rows of the very table that was logged before are the same rows.
            rows: Its rows, at most `MAX_ROWS`.
            step: Step at which it is logged.
            own_step: Whether the rows hold their step, so that equal rows are one row.
        """
        columns = [str(name) for name in table.columns]
        hashes: _Hashes = [tuple(map(_hash, row)) for row in rows]
        before = self._logged.pop(key, None) or _Logged(columns, step)
        is_same = before.table is not None and before.table() is table
        start = _start(before, columns, hashes)
        is_repeated = hashes == before.hashes and columns == before.columns
        if is_repeated and not is_same and not own_step and step != before.step:
            start = None  # the same text again in a later step
        if start is None:
            # The cells of the very table may have changed; rows of any other one are new.
            start = 0 if is_same else len(before.ids)
        ids = before.ids[start : start + len(rows)]
        completed = () if is_repeated else list(_completed(before, start, columns, rows, hashes))
        new_ids = [f"{self._prefix}{self._rows + number:016x}" for number in range(len(rows) - len(ids))]
        self._rows += len(new_ids)
        if len(self._logged) >= _MAX_TABLES:
            del self._logged[next(iter(self._logged))]
        self._logged[key] = _Logged(columns, step, hashes, [*ids, *new_ids], weakref.ref(table))
        return NewRows(rows[len(ids) :], new_ids, completed)


def _start(before: _Logged, columns: Sequence[str], hashes: _Hashes) -> int | None:
    """Return which row of the table *before* is the first one now: 0 of a grown table, more of a window.

    ``None`` when the tables have no rows in common. Rows are compared in the columns that both tables have.
    """
    if before.hashes == hashes[: len(before.hashes)] and columns == before.columns:
        return 0
    common = [(before.columns.index(name), at) for at, name in enumerate(columns) if name in before.columns]
    if not common or len(common) < min(len(columns), len(before.columns)):
        return None
    count = len(before.hashes)
    last = count // 2 if count == len(hashes) else 0
    return next((start for start in range(last + 1) if _continues(before.hashes[start:], hashes, common)), None)


def _continues(earlier: _Hashes, hashes: _Hashes, common: Sequence[tuple[int, int]]) -> bool:
    """Return whether *hashes* begin with the rows *earlier*, or with as many of them as there are."""
    return all(
        old[at_old] is None or old[at_old] == new[at_new]
        for old, new in zip(earlier, hashes, strict=False)
        for at_old, at_new in common
    )


def _completed(
    before: _Logged, start: int, columns: Sequence[str], rows: Sequence[Sequence[Any]], hashes: _Hashes
) -> Iterator[CompletedCell]:
    """Yield the cells that rows have got since the table *before*, from whose row *start* on they are the same."""
    index_before = {name: index for index, name in enumerate(before.columns)}
    for row, new, old, row_id in zip(rows, hashes, before.hashes[start:], before.ids[start:], strict=False):
        for column, value, cell_hash in zip(columns, row, new, strict=False):
            index = index_before.get(column)
            is_known = index is not None and old[index] == cell_hash
            if cell_hash is not None and not is_known:
                yield CompletedCell(row_id, column, value)


def _hash(cell: Any) -> int | None:
    if is_missing(cell):
        return None
    try:
        return hash(cell)
    except any_error():  # a list of messages, an array
        return hash(repr(cell))
