"""Trackio's store, through the one call of it that takes event times, ids of our own and raises on failure.

``SQLiteStorage.bulk_log`` is internal to Trackio, though its server, its importers and third parties call it; its
signature is checked when the store is opened. ``log_id`` makes a redelivery change nothing (``INSERT OR IGNORE``).
"""

from __future__ import annotations

import importlib
import os
import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from otel_bridge.errors import BlockedError, ExporterError, PermanentError, RetryableError
from otel_bridge.records import Position
from otel_bridge_trackio.payload import Payload, encodable
from otel_bridge_trackio.versions import INSTALL, require_calls, require_supported

_BUSY: Final = ("locked", "busy", "disk i/o", "full", "interrupted")
_import_lock = threading.Lock()


class Entry(NamedTuple):
    """One row of the store: its metrics or traces, with the step, ISO time and id they are kept under."""

    position: Position
    log_id: str
    step: int
    timestamp: str
    metrics: Payload


class Store:
    """One run of one project in one Trackio folder.

    Args:
        directory: Trackio's folder; one for a process, since Trackio reads it once at import.
        project: Trackio project.
        run_id: Id of the run.
        name: Display name of the run.

    Raises:
        BlockedError: Trackio is of a version we do not know, serves another folder, or refuses the project's name.
    """

    def __init__(self, directory: Path, project: str, run_id: str, name: str) -> None:
        self._bulk_log = _load(directory, project)
        self._project, self._run_id, self._name = project, run_id, name

    def rows(self) -> int:
        """Return how many records the store holds of the run.

        Raises:
            RetryableError: The store is locked.
            BlockedError: The store cannot be read.
        """
        storage = importlib.import_module("trackio.sqlite_storage").SQLiteStorage
        try:
            return int(storage.get_log_count(project=self._project, run=self._name, run_id=self._run_id))
        except (OSError, sqlite3.Error) as exc:
            raise _as_bridge_error(exc, 0) from exc

    def config(self) -> Payload:
        """Return the run's config as it is stored, empty when there is none.

        Raises:
            RetryableError: The store is locked.
            BlockedError: The store cannot be read.
        """
        storage = importlib.import_module("trackio.sqlite_storage").SQLiteStorage
        try:
            found: Payload | None = storage.get_run_config(project=self._project, run=self._name, run_id=self._run_id)
        except (OSError, sqlite3.Error) as exc:
            raise _as_bridge_error(exc, 0) from exc
        return found or {}

    def write(self, entries: Sequence[Entry], config: Payload | None = None) -> None:
        """Store *entries* in one transaction, and *config* with them.

        Raises:
            RetryableError: The store is locked or the disk full: nothing was written.
            BlockedError: The store cannot be written by us.
            PermanentError: One entry can never be stored; those before it are.
        """
        try:
            self._write(entries, config)
        except (OSError, sqlite3.Error) as exc:
            error = _as_bridge_error(exc, entries[0].position)
            if not isinstance(error, PermanentError):
                raise error from exc
            self._write_one_by_one(entries, config)
        except (TypeError, ValueError, OverflowError):
            self._write_one_by_one(entries, config)

    def close(self) -> None:
        """Do nothing: the store holds nothing open between calls."""

    def _write_one_by_one(self, entries: Sequence[Entry], config: Payload | None) -> None:
        for entry in entries:
            self._write_alone(entry, config)

    def _write_alone(self, entry: Entry, config: Payload | None) -> None:
        try:
            try:
                self._write([entry], config)
            except (TypeError, ValueError):  # half a surrogate pair in a text, which no JSON can hold
                self._write([entry._replace(metrics=encodable(entry.metrics))], config)
        except (OSError, sqlite3.Error) as exc:
            raise _as_bridge_error(exc, entry.position) from exc
        except (TypeError, ValueError, OverflowError) as exc:
            raise PermanentError(f"Trackio cannot store {entry.log_id}: {exc}", position=entry.position) from exc

    def _write(self, entries: Sequence[Entry], config: Payload | None) -> None:
        _, log_ids, steps, timestamps, metrics = zip(*entries, strict=True)
        self._bulk_log(
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
        BlockedError: As `Store` does.
    """
    _load(directory, project)
    storage = importlib.import_module("trackio.sqlite_storage").SQLiteStorage
    rows: list[dict[str, object]] = storage.get_logs(project, name, run_id=run_id)
    traces: list[object] = storage.get_traces(project, run_id=run_id)
    numbers = sum(isinstance(value, (int, float)) for row in rows for key, value in row.items() if key != "step")
    return numbers, len(traces)


def _load(directory: Path, project: str) -> Callable[..., None]:
    with _import_lock:
        os.environ["TRACKIO_DIR"] = str(directory)  # Trackio reads it once, while it is imported
        os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a hub that never answers must not hold the writer
        try:
            version = str(importlib.import_module("trackio").__version__)
            require_supported(version)
            storage = importlib.import_module("trackio.sqlite_storage").SQLiteStorage
            used = Path(str(importlib.import_module("trackio.utils").TRACKIO_DIR))
        except (ImportError, AttributeError) as exc:
            raise BlockedError(f"Trackio cannot be imported: {exc}", help=INSTALL) from exc
    if used != directory:
        raise BlockedError(
            f"this process writes to Trackio's folder {used} and can know but one; wanted {directory}",
            help="run `otel-bridge drain` for this run once the other one has ended",
        )
    require_calls(storage, version)
    try:
        storage.validate_project_name(project=project)
    except ValueError as exc:
        raise BlockedError(f"Trackio refuses the project: {exc}", help="set TRACKIO_PROJECT to another name") from exc
    bulk_log: Callable[..., None] = storage.bulk_log
    return bulk_log


def _as_bridge_error(exc: OSError | sqlite3.Error, position: Position) -> ExporterError:
    message = f"Trackio's store: {exc}"
    if isinstance(exc, PermissionError) or "readonly" in str(exc).replace("-", ""):
        return BlockedError(message, position=position, help="make TRACKIO_DIR writable for this user")
    if isinstance(exc, OSError) or (
        isinstance(exc, sqlite3.OperationalError) and any(word in str(exc).lower() for word in _BUSY)
    ):
        return RetryableError(message, position=position)
    if isinstance(exc, (sqlite3.InterfaceError, sqlite3.IntegrityError, sqlite3.DataError, sqlite3.ProgrammingError)):
        return PermanentError(message, position=position)
    return BlockedError(
        message, position=position, help="look at Trackio's database file; move it away to start a new one"
    )
