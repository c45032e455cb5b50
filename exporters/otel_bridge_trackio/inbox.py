"""Trackio's inbox: files that its dashboard imports, for folders where several machines may not share a database.

A file is one call's entries, written aside, synced and renamed; its name is the time, since files are imported in
the order of their names and the last config counts. An entry that comes again is recognised by its id. Source:
trackio/fragments.py.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from otel_bridge.errors import BlockedError, PermanentError, RetryableError
from otel_bridge_trackio.encoding import encoded
from otel_bridge_trackio.payload import Payload
from otel_bridge_trackio.store import Entry

_TRIES: Final = 3


class Inbox:
    """One run of one project in the inbox of one Trackio folder; no Trackio is imported.

    Args:
        directory: Trackio's folder.
        project: Trackio project.
        run_id: Id of the run.
        name: Display name of the run.
    """

    def __init__(self, directory: Path, project: str, run_id: str, name: str) -> None:
        self._folder = directory / "inbox" / f"otel-bridge-{run_id}"
        self._fields: Payload = {"v": 1, "kind": "metric", "project": project, "run": name, "run_id": run_id}

    def rows(self) -> int:
        """Return 0: what the dashboard has imported is not looked at."""
        return 0

    def config(self) -> Payload:
        """Return nothing: what the dashboard has imported is not looked at."""
        return {}

    def write(self, entries: Sequence[Entry], config: Payload | None = None) -> None:
        """Put *entries* into one file, and *config* with them.

        Raises:
            RetryableError: The file cannot be written now: nothing was.
            BlockedError: The folder cannot be written by us.
            PermanentError: One entry can never be stored; those before it are.
        """
        lines: list[bytes] = []
        refused: PermanentError | None = None
        for entry in entries:
            fields: Payload = {**self._fields, "timestamp": entry.timestamp}
            if config is not None and not lines:
                fields["config"] = config
            try:
                lines.append(encoded(entry, fields))
            except PermanentError as exc:
                refused = exc
                break
        if lines:
            self._put(f"{time.time_ns():020d}.jsonl", b"\n".join(lines) + b"\n", entries[0].position)
        if refused is not None:
            raise refused

    def close(self) -> None:
        """Do nothing: no file stays open."""

    def _put(self, name: str, data: bytes, position: int) -> None:
        path, aside = self._folder / name, self._folder / f"{name}.tmp"
        for attempt in range(_TRIES):
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                with aside.open("wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                aside.replace(path)
            except FileNotFoundError as exc:  # noqa: PERF203  # the importer removes a folder that it has emptied
                if attempt == _TRIES - 1:
                    raise RetryableError(f"Trackio's inbox: {exc}", position=position) from exc
            except (PermissionError, NotADirectoryError) as exc:
                raise BlockedError(
                    f"Trackio's inbox: {exc}", position=position, help="make TRACKIO_DIR writable for this user"
                ) from exc
            except OSError as exc:
                with contextlib.suppress(OSError):
                    aside.unlink()
                raise RetryableError(f"Trackio's inbox: {exc}", position=position) from exc
            else:
                return
