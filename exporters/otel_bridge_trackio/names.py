"""Chooses the one name under which Trackio lists a run.

Trackio lists a run twice when its rows have two names.

If the name is generated, the name that Trackio has is used. A given name replaces a generated one
in the local database. A server and an inbox cannot rename: there the run keeps the name that it was
first written under.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from otel_bridge.exporter import RunInfo, WriterMemory
from otel_bridge_trackio.sink import EntrySink

_NAME = "name"
_GENERATED = "name/generated"
_TABLES = ("metrics", "configs", "traces", "system_metrics", "alerts")
# As long as Trackio 0.43 itself waits for a lock (its connections have timeout=30).
LOCK_WAIT_S = 30.0


def name_of(store: EntrySink, run: RunInfo, memory: WriterMemory) -> str:
    """Return the name to write *run* under, and store it in *memory*.

    Args:
        store: Store of the run.
        run: The run as its processes name it.
        memory: Keeps the name for a store that cannot be read.

    Raises:
        RetryableError: The store is locked or cannot be reached; nothing was changed.
        BlockedError: This user may not read or write the store.
    """
    remembered_name = _text_in(memory, _NAME)
    row_name = store.name_held() or remembered_name
    name = run.name
    if (
        row_name
        and row_name != run.name
        and not _rename_generated(store, run, row_name, memory)
    ):
        name = row_name
    if name != remembered_name:
        # For the inbox, whose rows cannot be read: a renamed run keeps the name of its first rows.
        memory.put(_NAME, name.encode("utf-8", "replace"))
    if run.name_generated and name == run.name:
        memory.put(_GENERATED, name.encode("utf-8", "replace"))
    return name


def _rename_generated(
    store: EntrySink, run: RunInfo, row_name: str, memory: WriterMemory
) -> bool:
    """Give rows with a generated name the name that a user gave; return whether they have it now.

    ``False`` when a user gave *row_name*, when the new name is generated too, and when the store
    cannot rename. Raises as `name_of`.
    """
    # A process that knows only the id uses the id as the generated name.
    is_generated = row_name in {run.id, _text_in(memory, _GENERATED)}
    return is_generated and not run.name_generated and store.rename(run.name)


def _text_in(memory: WriterMemory, key: str) -> str:
    """Return the text under *key*, empty without one."""
    return (memory.get(key) or b"").decode()


def listed_name(path: Path, run_id: str) -> str:
    """Return the name of the run's rows in the database at *path*, empty without one.

    Read without Trackio, which has no call for the name of a run id.

    Raises:
        sqlite3.Error: The database cannot be read.
    """
    if not path.exists():
        return ""
    with closing(sqlite3.connect(path, timeout=LOCK_WAIT_S)) as database:
        # Before Trackio's first write, and in databases older than run ids (0.24), there is nothing
        # to read.
        if "metrics" not in _tables_with_names(database):
            return ""
        # The newest row, because another bridge may have renamed the run meanwhile.
        row = database.execute(
            "SELECT run_name FROM metrics WHERE run_id = ? ORDER BY id DESC LIMIT 1",
            [run_id],
        ).fetchone()
    if row:
        return str(row[0])
    return ""


def rename_rows(path: Path, run_id: str, name: str) -> None:
    """Set the name of all rows of a run to *name*, in one transaction; nothing without rows.

    Trackio's own call for this loses the ids of the rows, by which a redelivery is recognised.

    Raises:
        sqlite3.Error: The database cannot be written; nothing was changed.
    """
    # "with database" alone would commit and leave the connection open.
    with closing(sqlite3.connect(path, timeout=LOCK_WAIT_S)) as database, database:
        for table in _tables_with_names(database):
            renaming = f"UPDATE {table} SET run_name = ? WHERE run_id = ?"  # noqa: S608  our own names of tables
            database.execute(renaming, [name, run_id])


def _tables_with_names(database: sqlite3.Connection) -> Sequence[str]:
    """Return the tables of this Trackio whose rows have the name and the id of their run.

    None of a new database.
    """
    tables: list[str] = []
    for table in _TABLES:
        listed = database.execute("SELECT name FROM pragma_table_info(?)", [table])
        columns = {str(name) for (name,) in listed}
        if columns >= {"run_id", "run_name"}:
            tables.append(table)
    return tables
