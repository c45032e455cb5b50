"""Create the SQLite file of a store in one transaction, and refuse one whose tables another MLflow made.

MLflow creates its tables in many small steps. A process killed between two of them leaves a file
that no MLflow opens again (``duplicate column name``, ``table _alembic_tmp_… already exists``). So
MLflow creates the tables in a temporary folder, and one transaction copies them. SQLite undoes a
killed transaction by itself. Its lock also keeps out another process that creates the same file: a
second bridge, a training script that calls ``mlflow.set_experiment``, or ``mlflow ui``.

MLflow also migrates an older store without asking when a table is missing. A bridge never does that
to a user's data: it blocks with the command.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
import shlex
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from otel_bridge.errors import BlockedError, RetryableError
from otel_bridge.journal.machine import network_file_system
from otel_bridge_mlflow.settings import MlflowSettings

_log = logging.getLogger(__name__)
# As in `connection`: while this waits, the bridge cannot stop.
_SQLITE_WAIT_S = 5.0
_TEMPORARY = "_alembic_tmp_"
# Id of "Default", which MLflow makes with every store.
_DEFAULT_EXPERIMENT = 0
_REVISION = re.compile(r"^revision\b[^=\n]*= *[\"']([^\"']+)[\"']", re.MULTILINE)
_PARENTS = re.compile(r"^down_revision\b[^=\n]*= *(.+)$", re.MULTILINE)
_QUOTED_NAME = re.compile(r"[\"']([^\"']+)[\"']")

MakeStore = Callable[[str], None]
"""Opens MLflow's store of an address, which creates its tables, and closes it again."""


@dataclass(frozen=True, slots=True)
class Revisions:
    """Holds the schema revisions that the installed MLflow knows.

    Attributes:
        newest: Revision of its own stores, ``None`` when unknown.
        names: All revisions.
        version: Version of MLflow, for messages.
    """

    newest: str | None
    names: frozenset[str]
    version: str


@dataclass(frozen=True, slots=True)
class _Tables:
    """Describes the tables of a file.

    Attributes:
        revision: Schema revision, ``None`` before the first migration is complete.
        names: Names of its tables.
        experiments: Whether there is an experiment. MLflow creates the first one after its last
            migration.
    """

    revision: str | None
    names: frozenset[str]
    experiments: bool

    @property
    def of_mlflow(self) -> bool:
        return bool({"experiments", "runs"} & self.names)

    @property
    def left_over(self) -> list[str]:
        """Return the copies of tables that an interrupted migration left."""
        return sorted(name for name in self.names if name.startswith(_TEMPORARY))


@functools.cache
def revisions_of(migrations: Path, version: str) -> Revisions:
    """Return the revisions of the folder *migrations* of the installed MLflow.

    Reads the files as text: Alembic imports all of them, which costs half a second. From a folder
    that cannot be read, or has no single newest revision, `Revisions.newest` is ``None``.
    """
    names: set[str] = set()
    parents: set[str] = set()
    with contextlib.suppress(OSError):
        for path in migrations.glob("*.py"):
            text = path.read_text(errors="replace")
            names.update(_REVISION.findall(text))
            for line in _PARENTS.findall(text):
                parents.update(_QUOTED_NAME.findall(line))
    # More than one head, or none: not a chain that is understood, so MLflow decides by itself.
    heads = names - parents
    return Revisions(
        heads.pop() if len(heads) == 1 else None, frozenset(names), version
    )


def require_writable(path: Path) -> None:
    """Check that the database *path* can be written, and make its folder: MLflow tries for minutes before it reports.

    Raises:
        BlockedError: The folder cannot be made, or it or the file is read-only.
    """
    folder = path.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise BlockedError(
            f"{folder}: {exc.strerror}",
            help="make the database's folder exist and writable",
        ) from exc
    for existing in (folder, path):
        if existing.exists() and not os.access(existing, os.W_OK):
            raise BlockedError(
                f"{existing} is not writable",
                help="make it writable for this user, or set MLFLOW_TRACKING_URI",
            )


def prepare(
    settings: MlflowSettings,
    path: Path,
    revisions: Revisions,
    make: MakeStore,
) -> None:
    """Leave a database at *path* that MLflow opens without changing its tables.

    Args:
        settings: Settings of the store.
        path: The database.
        revisions: Revisions of the installed MLflow.
        make: Lets MLflow create a store elsewhere.

    Raises:
        RetryableError: Another process is creating the database.
        BlockedError: Its tables are those of another version, or a migration of them was
            interrupted.
        sqlite3.Error: SQLite's own errors.
    """
    # Without known revisions (an MLflow that keeps its migrations elsewhere) MLflow decides by
    # itself.
    if revisions.newest is not None:
        tables = _look(path)
        if tables is None or not tables.of_mlflow:
            _create(path, revisions, make)
        elif tables.revision != revisions.newest:
            raise _unusable(path, tables, revisions)
    if settings.wal:
        write_ahead(path)


def write_ahead(path: Path) -> None:
    """Put the database into write-ahead mode, unless it is on a network file system, where that destroys it.

    There a warning is logged, and the mode stays. Raises `sqlite3.Error`, e.g. when the file is
    locked; the opening is then tried again.
    """
    shared = network_file_system(path)
    if shared is not None:
        _log.warning(
            "OTEL_BRIDGE_MLFLOW_WAL is ignored: %s is on %s, and write-ahead mode needs a local disk",
            path,
            shared,
        )
        return
    # The mode is kept in the file, so that it holds for every later connection of any program.
    with closing(_connected(path, create=True)) as database:
        database.execute("PRAGMA journal_mode=WAL")


def _look(path: Path) -> _Tables | None:
    """Return the tables of the file, ``None`` without a file; raises `sqlite3.Error`."""
    if not path.exists():
        return None
    with closing(_connected(path)) as database:
        return _tables(database)


def _tables(database: sqlite3.Connection) -> _Tables:
    """Return the tables of an open file; an empty file has none. Raises `sqlite3.Error`."""
    tables = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    names = frozenset(str(name) for (name,) in tables)
    rows: list[tuple[object]] = []
    if "alembic_version" in names:
        rows = database.execute("SELECT version_num FROM alembic_version").fetchall()
    return _Tables(
        str(rows[0][0]) if rows else None,
        names,
        "experiments" in names and _has_rows(database),
    )


def _unusable(
    path: Path, tables: _Tables, revisions: Revisions
) -> RetryableError | BlockedError:
    """Return the error for a store whose tables are not those of the installed MLflow.

    Retryable while another process may be creating it, else blocked: a migration of a user's data
    is a person's decision (decision 0027).
    """
    address = shlex.quote(f"sqlite:///{path}")
    if tables.revision is not None and tables.revision not in revisions.names:
        return BlockedError(
            f"{path} has tables of another MLflow than {revisions.version} (schema {tables.revision})",
            help="install the newer mlflow that made it where the bridge runs, or set MLFLOW_TRACKING_URI",
        )
    # MLflow creates the first experiment last: without one no run can have been written.
    if not tables.experiments:
        aside = shlex.quote(f"{path}.unfinished")
        return RetryableError(
            f"{path} is being created by another process, or was left unfinished by one that was killed: "
            f"then move it away, mv {shlex.quote(str(path))} {aside}",
            retry_after_s=1.0,
        )
    if tables.left_over:
        return BlockedError(
            f"{path}: an upgrade of its tables was interrupted (left over: {', '.join(tables.left_over)})",
            help="restore a backup made before the upgrade; without one, copy the file, then: "
            f"sqlite3 {shlex.quote(str(path))} 'DROP TABLE {tables.left_over[0]}' && mlflow db upgrade {address}",
        )
    return BlockedError(
        f"{path} has an out-of-date database schema: an MLflow older than {revisions.version} made it",
        help=f"back up the file, then: mlflow db upgrade {address}",
    )


def _create(path: Path, revisions: Revisions, make: MakeStore) -> None:
    """Let MLflow create a store in a temporary folder, and copy its tables to *path* in one transaction.

    Nothing is changed if another process has created the whole store meanwhile.

    Raises:
        RetryableError: Another process began to create it meanwhile.
        sqlite3.Error: Another process holds the lock of the file for long.
    """
    with tempfile.TemporaryDirectory(prefix="otel-bridge-") as folder:
        template = Path(folder, path.name)
        # Before the transaction: MLflow creates tables in hundreds of commits, outside of any lock.
        make(f"sqlite:///{template}")
        with closing(_connected(path, create=True)) as database:
            database.execute("ATTACH DATABASE ? AS template", (str(template),))
            # Everything in the block is one transaction: a kill leaves the file as it was.
            with database:
                is_new = _copy(database, path, revisions)
    if is_new:
        _log.info("created the MLflow store %s (schema %s)", path, revisions.newest)


def _copy(database: sqlite3.Connection, path: Path, revisions: Revisions) -> bool:
    """Copy the tables of the attached template, under the lock of the file; the caller commits.

    Return ``False`` if another process has created them meanwhile.

    Raises:
        RetryableError: Another process is creating the tables in steps, as MLflow does.
    """
    database.execute("BEGIN EXCLUSIVE")
    # Looked at again under the lock: another process may have created it since.
    tables = _tables(database)
    if tables.experiments and tables.revision == revisions.newest:
        return False
    if tables.of_mlflow:
        raise RetryableError(
            f"{path} is being created by another process", retry_after_s=1.0
        )
    _copy_tables(database)
    database.execute(
        # MLflow wrote the folder of the template there, which is deleted.
        "UPDATE main.experiments SET artifact_location = ? WHERE experiment_id = ?",
        (
            str(path.parent / "mlruns" / str(_DEFAULT_EXPERIMENT)),
            _DEFAULT_EXPERIMENT,
        ),
    )
    return True


def _copy_tables(database: sqlite3.Connection) -> None:
    """Copy all tables of the attached template with their rows, then what is built on them.

    As SQL and not as a file, so that it is one transaction of the file that others may have open.
    Raises `sqlite3.Error`; the transaction is then undone, and the file is as before.
    """
    parts: list[tuple[str, str, str]] = database.execute(
        "SELECT type, name, sql FROM template.sqlite_master WHERE sql IS NOT NULL AND substr(name, 1, 7) != 'sqlite_'"
    ).fetchall()
    for kind, name, sql in parts:
        if kind != "table":
            continue
        database.execute(sql)
        # Without generated columns, such as the duration of spans, which table_info does not list.
        listed = database.execute(
            "SELECT name FROM pragma_table_info(?, 'template')", (name,)
        )
        columns = ", ".join(_quoted(column) for (column,) in listed)
        table = _quoted(name)
        database.execute(
            f"INSERT INTO main.{table} ({columns}) SELECT {columns} FROM template.{table}"  # noqa: S608
        )
    # Indexes, views and triggers last, because their tables must exist.
    for kind, _, sql in parts:
        if kind != "table":
            database.execute(sql)


def _has_rows(database: sqlite3.Connection) -> bool:
    query = "SELECT 1 FROM experiments LIMIT 1"
    return database.execute(query).fetchone() is not None


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _connected(path: Path, *, create: bool = False) -> sqlite3.Connection:
    """Open the file, in which each statement is a transaction; it is created only with *create*.

    Raises `sqlite3.OperationalError` for a file that cannot be opened.
    """
    # "rw" creates no file: looking at a store must not leave an empty one.
    mode = "rwc" if create else "rw"
    return sqlite3.connect(
        f"{path.as_uri()}?mode={mode}",
        uri=True,
        timeout=_SQLITE_WAIT_S,
        isolation_level=None,
    )
