"""Opens the ledger's SQLite file: schema, format version, connections, and translation of SQLite's errors.

One connection writes, guarded by a lock; each delivery thread reads through its own connection. In
WAL mode readers never wait. ``auto_vacuum=INCREMENTAL`` must be set before the first table is
created, else deleted pages never return to the disk.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import threading
import time
from collections.abc import Generator
from contextlib import AbstractContextManager
from pathlib import Path

from otel_bridge.errors import JournalError, JournalFullError, LedgerDamagedError
from otel_bridge.journal.files import size_of_regular
from otel_bridge.journal.folder import LEDGER_FORMAT, refuse_ledger_format

_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE records (position INTEGER PRIMARY KEY, kind INTEGER NOT NULL, data BLOB NOT NULL);
CREATE TABLE state (key TEXT PRIMARY KEY, value BLOB NOT NULL);
CREATE TABLE sources (
    instance_id TEXT PRIMARY KEY, number INTEGER NOT NULL, offset INTEGER NOT NULL, header BLOB NOT NULL,
    ended INTEGER NOT NULL DEFAULT 0, forwarded_number INTEGER NOT NULL DEFAULT 0,
    forwarded_offset INTEGER NOT NULL DEFAULT 0) WITHOUT ROWID;
CREATE TABLE destinations (
    id INTEGER PRIMARY KEY, exporter TEXT NOT NULL, variables TEXT NOT NULL, named INTEGER NOT NULL DEFAULT 1,
    written INTEGER NOT NULL DEFAULT 0, durable INTEGER NOT NULL DEFAULT 0, counted INTEGER NOT NULL DEFAULT 0,
    rows INTEGER NOT NULL DEFAULT 0, rollouts INTEGER NOT NULL DEFAULT 0, evicted INTEGER NOT NULL DEFAULT 0,
    dead INTEGER NOT NULL DEFAULT 0,
    opened INTEGER NOT NULL DEFAULT 0, ended INTEGER NOT NULL DEFAULT 0, end_status TEXT NOT NULL DEFAULT '',
    url TEXT, tracker_run_id TEXT, missed INTEGER NOT NULL DEFAULT 0,
    degraded TEXT NOT NULL DEFAULT '[]', left_out TEXT NOT NULL DEFAULT '{}',
    UNIQUE (exporter, variables));
CREATE TABLE memory (
    destination INTEGER NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL,
    PRIMARY KEY (destination, key)) WITHOUT ROWID;
CREATE TABLE dead_letters (
    id INTEGER PRIMARY KEY, destination INTEGER NOT NULL, position INTEGER NOT NULL, kind INTEGER NOT NULL,
    record_id TEXT NOT NULL, reason TEXT NOT NULL, time_unix_ns INTEGER NOT NULL, data BLOB NOT NULL);
CREATE INDEX dead_letter_positions ON dead_letters (destination, position);
CREATE TABLE timeline (
    id INTEGER PRIMARY KEY, role TEXT NOT NULL, step INTEGER NOT NULL, start_ns INTEGER NOT NULL,
    end_ns INTEGER NOT NULL, size INTEGER NOT NULL, data BLOB NOT NULL);
CREATE INDEX timeline_steps ON timeline (role, step);
"""


class Database:
    """Holds the write connection of one ledger file, and creates read connections. Thread-safe.

    Args:
        path: The file; created when missing.
        exclusive: For a shared file system: ``locking_mode=EXCLUSIVE``, no ``-shm`` file, one
            connection for all threads.

    Raises:
        FormatVersionError: Another version wrote the file.
        LedgerDamagedError: The file is damaged, as far as its header shows; other damage is found
            by the read that meets it, and leads to a new ledger then.
        JournalFullError: The disk is full.
        JournalError: The file cannot be used.
    """

    def __init__(self, path: Path, *, exclusive: bool = False) -> None:
        self.path = path
        self._exclusive = exclusive
        # Guards the write connection, which the bridge's thread and every exporter's thread use.
        self._lock = threading.RLock()
        _make_private(path)
        with sqlite_errors(path):
            # On a connection of its own: the PRAGMAs of `_connect` would already change the file.
            _refuse_other_formats(path)
            self._writer = _connect(path, exclusive=exclusive)
            try:
                self._prepare()
            except BaseException:
                self._writer.close()
                raise

    @contextlib.contextmanager
    def transaction(self) -> Generator[sqlite3.Connection]:
        """Hold the lock and one write transaction, which is committed at the end and rolled back on any error.

        Raises:
            JournalFullError: The disk is full.
            LedgerDamagedError: The file is damaged.
            JournalError: Another error of SQLite; nothing was stored.
        """
        with self._lock, sqlite_errors(self.path):
            # Takes the write lock now; a later upgrade could fail in the middle of the transaction.
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield self._writer
                self._writer.execute("COMMIT")
            except BaseException:
                # A full disk makes SQLite roll back by itself.
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")
                raise

    def connect_reader(self) -> DatabaseReader:
        """Return a read connection for one thread; raises as `transaction` does."""
        if self._exclusive:
            # The file is locked for this connection alone, so readers share it and its lock.
            return DatabaseReader(self._writer, self._lock, self.path, owned=False)
        with sqlite_errors(self.path):
            # Its PRAGMAs read the file, so that damage is found while the writer still has pages in
            # memory.
            return DatabaseReader(
                _connect(self.path), threading.RLock(), self.path, owned=True
            )

    def give_back(self, pages: int, *, keep: int = 0) -> int:
        """Return up to *pages* free pages to the disk, but keep *keep*.

        Return how many pages were released. SQLite reuses what is kept without growing the file
        again. Raises as `transaction` does.
        """
        with self._lock, sqlite_errors(self.path):
            free = self._free_pages()
            if free <= keep:
                return 0
            # The statement releases one page a step, and `execute` makes only the first step;
            # `executescript` makes all.
            self._writer.executescript(
                f"PRAGMA incremental_vacuum({min(free - keep, pages)})"
            )
            return free - self._free_pages()

    def _free_pages(self) -> int:
        return int(self._writer.execute("PRAGMA freelist_count").fetchone()[0])

    def sync(self) -> None:
        """Wait until everything committed is on the disk; before segments, the other copy, are deleted.

        Raises:
            JournalError: The disk reported an error.
        """
        # Checkpoints sync by themselves; later commits are in the WAL. SQLite's locks are on the
        # other two files, so that opening and closing the WAL drops none of them.
        try:
            fd = os.open(f"{self.path}-wal", os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        except FileNotFoundError:
            # No WAL: everything committed is in the ledger itself, and was synced by a checkpoint.
            return
        except OSError as exc:
            raise JournalError(
                f"{self.path}-wal cannot be synced: {exc.strerror}"
            ) from exc

    def close(self) -> None:
        """Close the write connection; committed records stay. May be called twice."""
        with self._lock, contextlib.suppress(sqlite3.Error):
            self._writer.close()

    def _prepare(self) -> None:
        """Create the tables of a new file; raises as `transaction` does."""
        version = int(self._writer.execute("PRAGMA user_version").fetchone()[0])
        if version == 0:
            with self.transaction() as sql:
                for statement in _SCHEMA.split(";\n"):
                    sql.execute(statement)
                # In the transaction of the tables: a kill leaves either no ledger or a whole one.
                sql.execute(f"PRAGMA user_version = {LEDGER_FORMAT}")


class DatabaseReader:
    """Holds the read connection of one thread."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        lock: AbstractContextManager[bool],
        path: Path,
        *,
        owned: bool,
    ) -> None:
        self._connection = connection
        self._lock = lock
        self._path = path
        self._owned = owned

    @contextlib.contextmanager
    def snapshot(self) -> Generator[sqlite3.Connection]:
        """Hold one read transaction, so that everything read in it belongs to one moment.

        Raises as `Database.transaction` does.
        """
        with self._lock, sqlite_errors(self._path):
            self._connection.execute("BEGIN")
            try:
                yield self._connection
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("COMMIT")

    def close(self) -> None:
        """Close the connection if it belongs to this reader alone."""
        if self._owned:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()


def open_for_reading(path: Path) -> DatabaseReader:
    """Return a read connection to the ledger at *path*, for commands that change nothing.

    Raises:
        JournalError: The ledger is missing, not a regular file, or cannot be opened.
        FormatVersionError: Another version wrote the ledger.
        LedgerDamagedError: The ledger is damaged.
    """
    if not path.exists():
        raise JournalError(f"{path}: no ledger; no bridge has worked on this run yet")
    _refuse_irregular(path)
    with sqlite_errors(path):
        connection = sqlite3.connect(
            path, isolation_level=None, timeout=5.0, check_same_thread=False
        )
        try:
            _check_version(path, connection)
        except BaseException:
            connection.close()
            raise
    return DatabaseReader(connection, threading.RLock(), path, owned=True)


def set_aside(path: Path) -> Path:
    """Rename a damaged ledger, so that a new one can be created; return the new path.

    Raises:
        JournalError: The file cannot be renamed.
    """
    aside = path.with_name(f"{path.name}.damaged-{time.time_ns()}")
    try:
        # Before the ledger: a kill in between must not leave an old WAL beside a new ledger.
        for suffix in ("-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                Path(f"{path}{suffix}").rename(f"{aside}{suffix}")
        path.rename(aside)
    except OSError as exc:
        raise JournalError(
            f"{path}: damaged, and it cannot be set aside: {exc.strerror}"
        ) from exc
    return aside


@contextlib.contextmanager
def sqlite_errors(path: Path) -> Generator[None]:
    """Translate SQLite's errors into errors of this package, by their text; others pass.

    A full disk is a `JournalFullError`, damage a `LedgerDamagedError`, anything else a `JournalError`.
    A missing table or column means damage too: the version was checked before. So does a stored text
    that is not JSON any more.
    """
    try:
        yield
    except json.JSONDecodeError as exc:
        raise LedgerDamagedError(f"{path}: the ledger is damaged: {exc}") from exc
    except sqlite3.Error as exc:
        text = str(exc)
        # sqlite_errorcode exists only from Python 3.11 on.
        if "disk is full" in text:
            raise JournalFullError(f"{path}: {text}; free space on that disk") from exc
        if (
            "malformed" in text
            or "not a database" in text
            or "no such table" in text
            or "no such column" in text
        ):
            raise LedgerDamagedError(f"{path}: the ledger is damaged: {text}") from exc
        raise JournalError(f"{path}: the ledger cannot be used: {text}") from exc


def _refuse_other_formats(path: Path) -> None:
    """Raise `FormatVersionError` for a file of another format, before the file is changed.

    Raises `sqlite3.Error` for a damaged one, which the caller translates.
    """
    connection = sqlite3.connect(path, isolation_level=None, timeout=5.0)
    try:
        _check_version(path, connection)
    finally:
        connection.close()


def _check_version(path: Path, connection: sqlite3.Connection) -> None:
    refuse_ledger_format(
        path, int(connection.execute("PRAGMA user_version").fetchone()[0])
    )


def _make_private(path: Path) -> None:
    """Create the file with mode 0600 unless it exists.

    Raises:
        JournalError: It cannot be created, or something else than a regular file is at the path.
    """
    # The umask decides the mode of a file that SQLite creates. Never open an existing file: closing
    # it would drop the locks that this process may hold on it.
    try:
        os.close(
            os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        )
    except FileExistsError:
        _refuse_irregular(path)
    except OSError as exc:
        raise JournalError(
            f"{path}: the ledger cannot be made: {exc.strerror}"
        ) from exc


def _refuse_irregular(path: Path) -> None:
    """Raise `JournalError` when a path of the ledger is not a regular file: SQLite follows links and reads FIFOs."""
    for name in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
        if os.path.lexists(name) and size_of_regular(name) is None:
            raise JournalError(
                f"{name} is not a regular file; remove it, the bridge makes a new one"
            )


def _connect(path: Path, *, exclusive: bool = False) -> sqlite3.Connection:
    """Return a connection with the settings of the ledger; the first one to a new file creates it.

    Raises `sqlite3.Error`, which callers translate.
    """
    connection = sqlite3.connect(
        path, isolation_level=None, timeout=30.0, check_same_thread=False
    )
    if exclusive:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    # Before any table exists; SQLite ignores it afterwards.
    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    # Exporters read while the bridge writes.
    connection.execute("PRAGMA journal_mode = WAL").fetchone()
    # A commit survives a kill of the process; `Database.sync` syncs what must survive a power loss.
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA wal_autocheckpoint = 2000")
    # Else the WAL keeps the size of its largest moment, which counts towards the directory.
    connection.execute("PRAGMA journal_size_limit = 16777216")
    return connection
