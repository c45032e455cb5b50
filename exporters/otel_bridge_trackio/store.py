"""Writes to Trackio's store through ``SQLiteStorage.bulk_log``, which accepts event times and ids and raises errors.

``bulk_log`` is internal to Trackio, though its server, its importers and third parties call it. Its
signature is probed when the store is opened. A redelivery changes nothing because of ``log_id``
(``INSERT OR IGNORE``).
"""

from __future__ import annotations

import errno
import importlib
import os
import sqlite3
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from otel_bridge.capabilities import accepts
from otel_bridge.errors import (
    BlockedError,
    ExporterError,
    PermanentError,
    RetryableError,
)
from otel_bridge.records import Alert, Evaluation, Position
from otel_bridge_trackio.late_values import add_late_values
from otel_bridge_trackio.media import Put, local_put
from otel_bridge_trackio.names import listed_name, rename_rows
from otel_bridge_trackio.payload import Payload, encodable, timestamp
from otel_bridge_trackio.sink import EntrySink, StoreEntry
from otel_bridge_trackio.versions import TrackioAbilities, storage_of, unusable

OTHER_PROJECT = "set TRACKIO_PROJECT to another name"
WRITABLE = "make TRACKIO_DIR writable for this user"
_BUSY = ("locked", "busy", "disk i/o", "full", "interrupted")
_REFUSALS = (
    sqlite3.InterfaceError, sqlite3.IntegrityError, sqlite3.DataError, sqlite3.ProgrammingError,
)  # fmt: skip
"""SQLite's errors about a record, which it never stores."""
_import_lock = threading.Lock()


class LocalStore(EntrySink):
    """Writes one run of one project to one Trackio folder.

    Args:
        directory: Trackio's folder; only one per process, because Trackio reads it once at import.
        project: Trackio project.
        run_id: Id of the run.
        name: Display name of the run.

    Attributes:
        abilities: Abilities of the installed Trackio.

    Raises:
        BlockedError: Trackio lacks a needed call, uses another folder, or refuses the project's
            name.
    """

    def __init__(self, directory: Path, project: str, run_id: str, name: str) -> None:
        self._storage, self.abilities = _load(directory, project)
        self._project = project
        self._run_id = run_id
        self._name = name

    def rows(self) -> int:
        """Return how many records the store holds of the run.

        Raises:
            RetryableError: The store is locked.
            BlockedError: The store cannot be read.
        """
        with _as_bridge_errors():
            return int(
                self._storage.get_log_count(
                    project=self._project, run=self._name, run_id=self._run_id
                )
            )

    def config(self) -> Payload:
        """Return the run's config as it is stored, empty when there is none.

        Raises:
            RetryableError: The store is locked.
            BlockedError: The store cannot be read.
        """
        with _as_bridge_errors():
            stored_config: Payload | None = self._storage.get_run_config(
                project=self._project, run=self._name, run_id=self._run_id
            )
        return stored_config or {}

    def name_held(self) -> str:
        """Return the name of the run's rows, empty when it has none.

        Raises:
            RetryableError: The store is locked.
            BlockedError: The store cannot be read.
        """
        with _as_bridge_errors():
            return listed_name(self._database(), self._run_id)

    def rename(self, name: str) -> bool:
        """Give the run's rows another name.

        Raises:
            RetryableError: The store is locked; nothing was changed.
            BlockedError: This user cannot write to the store.
        """
        with _as_bridge_errors():
            rename_rows(self._database(), self._run_id, name)
        return True

    def _database(self) -> Path:
        """Return the project's database file, which Trackio makes with the first record."""
        return Path(str(self._storage.get_project_db_path(project=self._project)))

    def write(
        self, entries: Sequence[StoreEntry], config: Payload | None = None
    ) -> None:
        """Store *entries* in one transaction, and *config* with them.

        Raises:
            RetryableError: The store is locked or the disk is full; nothing was written.
            BlockedError: This user cannot write to the store.
            PermanentError: One entry can never be stored; the entries before it are stored.
        """
        try:
            with _as_bridge_errors(entries[0].position):
                self._write(entries, config)
        except (PermanentError, TypeError, ValueError, OverflowError) as exc:
            _raise_if_unusable(exc)
            self._write_one_by_one(entries, config)
        except (ImportError, AttributeError) as exc:
            _raise_if_unusable(exc)
            raise

    def add_late_values(self, values: Sequence[Evaluation]) -> Sequence[Evaluation]:
        """Add *values* to the traces of their rollouts.

        Return the values that must be written as separate traces. That is all of them when the
        database does not exist: opening it here would create one that Trackio did not set up.

        Raises:
            RetryableError: The store is locked or the disk is full; nothing was written.
            BlockedError: This user cannot write to the store.
        """
        path = self._database()
        if not values or not path.exists():
            return values
        with _as_bridge_errors(values[0].position):
            return add_late_values(path, self._run_id, values)

    def alert(self, alerts: Sequence[Alert]) -> bool:
        """Store *alerts*, each once by its id; return ``True``: every Trackio has alerts.

        One call for each, so that an error names the first that is not stored.

        Raises:
            RetryableError: The store is locked or the disk is full; those before the position are
                stored.
            BlockedError: This user cannot write to the store.
        """
        for alert in alerts:
            with _as_bridge_errors(alert.position):
                self._storage.bulk_alert(
                    project=self._project,
                    run=self._name,
                    titles=[alert.title],
                    texts=[alert.text or None],
                    levels=[alert.level],
                    steps=[alert.step],
                    timestamps=[timestamp(alert.time_unix_ns)],
                    alert_ids=[f"{self._run_id}:{alert.id}"],
                    run_id=self._run_id,
                )
        return True

    def media(self) -> Put | None:
        """Return what stores the files of media, ``None`` when this Trackio has no folder for them.

        What it returns raises `OSError` for a file that cannot be written.
        """
        return local_put(self._project, self._name)

    def _write_one_by_one(
        self, entries: Sequence[StoreEntry], config: Payload | None
    ) -> None:
        """Store each of *entries* alone, so that an error names the one that Trackio refuses.

        The config goes with each of them: Trackio stores one only with a record, and the first may
        be the refused one.
        """
        for entry in entries:
            with _as_bridge_errors(entry.position):
                self._write_alone(entry, config)

    def _write_alone(self, entry: StoreEntry, config: Payload | None) -> None:
        """Store *entry*, with a lone surrogate in a text replaced.

        Only after a first try without that: nearly no entry has one.

        Raises:
            PermanentError: Trackio can never store it.
        """
        try:
            try:
                self._write([entry], config)
            except (
                TypeError,
                ValueError,
            ):  # a text has a lone surrogate, which JSON cannot hold
                self._write([entry._replace(metrics=encodable(entry.metrics))], config)
        except (TypeError, ValueError, OverflowError) as exc:
            raise PermanentError(
                f"Trackio cannot store {entry.log_id}: {exc}", position=entry.position
            ) from exc

    def _write(self, entries: Sequence[StoreEntry], config: Payload | None) -> None:
        """Store *entries* in one call of Trackio.

        Raises what Trackio, SQLite and the file system raise. Nothing is stored then, since a call
        is one transaction.
        """
        _, log_ids, steps, timestamps, metrics = zip(*entries, strict=True)
        self._storage.bulk_log(
            project=self._project,
            run=self._name,
            metrics_list=[*metrics],
            steps=[*steps],
            timestamps=[*timestamps],
            config=config,
            log_ids=[*log_ids],
            run_id=self._run_id,
        )


def count(directory: Path, project: str, run_id: str, name: str) -> tuple[int, int]:
    """Return how many numbers and traces the store shows of a run.

    Raises:
        RetryableError: The store is locked.
        BlockedError: As `LocalStore` does, or the store cannot be read.
    """
    storage, _ = _load(directory, project)
    with _as_bridge_errors():
        rows = storage.get_logs(project=project, run=name, run_id=run_id)
        traces = storage.get_traces(project=project, run_id=run_id)
    numbers = 0
    for row in rows:
        for key, value in row.items():
            if key != "step" and isinstance(value, (int, float)):
                numbers += 1
    return numbers, len(traces)


def abilities_in(directory: Path) -> TrackioAbilities:
    """Import Trackio and return what it can do.

    Raises:
        BlockedError: As `LocalStore` does.
    """
    return _imported(directory)[1]


def _load(directory: Path, project: str) -> tuple[Any, TrackioAbilities]:
    """Return Trackio's storage and what it can do.

    Raises:
        BlockedError: As `_imported`, or Trackio refuses the name of the project.
    """
    storage, abilities = _imported(directory)
    # Trackio's own init(), which is not called here, checks the name; older ones do not.
    if accepts(storage, "validate_project_name", "project"):
        try:
            storage.validate_project_name(project=project)
        except ValueError as exc:
            raise BlockedError(
                f"Trackio refuses the project: {exc}",
                help=OTHER_PROJECT,
            ) from exc
    return storage, abilities


def _imported(directory: Path) -> tuple[Any, TrackioAbilities]:
    """Import Trackio with its folder set, and return its storage and what it can do.

    One thread at a time: Trackio reads its folder from the environment of the process, once.

    Raises:
        BlockedError: Trackio cannot be imported, lacks a call, or was imported with another folder.
    """
    with _import_lock:
        os.environ["TRACKIO_DIR"] = str(
            directory
        )  # Trackio reads it once, while it is imported
        # A hub that never answers must not block the writer.
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        try:
            storage_and_abilities = storage_of(importlib.import_module("trackio"))
            used = Path(str(importlib.import_module("trackio.utils").TRACKIO_DIR))
        except (ImportError, AttributeError, TypeError) as exc:
            _raise_if_unusable(exc)
            raise
    if used != directory:
        raise BlockedError(
            f"this process writes to Trackio's folder {used} and can know but one; wanted {directory}",
            help="run `otel-bridge drain` for this run once the other one has ended",
        )
    return storage_and_abilities


def _raise_if_unusable(exc: Exception) -> None:
    """Raise `BlockedError` if *exc* shows that this Trackio lacks something: no record is at fault then."""
    blocked = unusable(exc)
    if blocked is not None:
        raise blocked from exc


@contextmanager
def _as_bridge_errors(position: Position = 0) -> Generator[None]:
    """Raise errors of the file system and of SQLite as those of a writer, for the record at *position*.

    Other exceptions pass unchanged.
    """
    try:
        yield
    except (OSError, sqlite3.Error) as exc:
        raise _as_bridge_error(exc, position) from exc


def _as_bridge_error(exc: OSError | sqlite3.Error, position: Position) -> ExporterError:
    """Return the error for *exc*.

    Retryable while the store is busy, permanent if a record is at fault, else blocked. The words of
    SQLite's message decide, because Python 3.10 does not give its codes.
    """
    message = f"Trackio's store: {exc}"
    if isinstance(exc, PermissionError) or "readonly" in str(exc).replace("-", ""):
        return BlockedError(message, position=position, help=WRITABLE)
    if isinstance(exc, OSError) and exc.errno == errno.ENAMETOOLONG:
        # Trackio names the file of its database by the project.
        return BlockedError(message, position=position, help=OTHER_PROJECT)
    if isinstance(exc, OSError):
        return RetryableError(message, position=position)
    is_busy = any(word in str(exc).lower() for word in _BUSY)
    if isinstance(exc, sqlite3.OperationalError) and is_busy:
        return RetryableError(message, position=position)
    if isinstance(exc, _REFUSALS):
        return PermanentError(message, position=position)
    return BlockedError(
        message,
        position=position,
        help="look at Trackio's database file; move it away to start a new one",
    )
