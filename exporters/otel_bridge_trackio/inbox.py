"""Writes to Trackio's inbox: files that its dashboard imports, for folders where machines must not share a database.

A file holds the entries of one call. It is written under another name, synced and renamed. Its name
is the time, because files are imported in the order of their names and the last config counts.
Trackio recognises a redelivered entry by its id. What the dashboard has imported is neither read
nor changed, and it imports no alerts and no files of media. Source: trackio/fragments.py.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from otel_bridge.errors import PermanentError, RetryableError
from otel_bridge.exporter import file_errors
from otel_bridge.media_files import put_synced
from otel_bridge_trackio.encoding import encoded
from otel_bridge_trackio.payload import Payload
from otel_bridge_trackio.sink import EntrySink, StoreEntry
from otel_bridge_trackio.store import WRITABLE
from otel_bridge_trackio.versions import of_inbox

# Each try makes the folder again: Trackio 0.43 removes a writer's folder once it is empty.
_TRIES = 3


class Inbox(EntrySink):
    """Writes one run of one project to the inbox of one Trackio folder; Trackio is not imported.

    Args:
        directory: Trackio's folder.
        project: Trackio project.
        run_id: Id of the run.
        name: Display name of the run.

    Raises:
        BlockedError: The installed Trackio imports no inbox.
    """

    def __init__(self, directory: Path, project: str, run_id: str, name: str) -> None:
        self.abilities = of_inbox()
        self._folder = directory / "inbox" / f"otel-bridge-{run_id}"
        self._fields: Payload = {
            # Trackio 0.43 ignores the version of a record.
            "v": 1,
            "kind": "metric",
            "project": project,
            "run": name,
            "run_id": run_id,
        }

    def write(
        self, entries: Sequence[StoreEntry], config: Payload | None = None
    ) -> None:
        """Put *entries* into one file, and *config* with them.

        Raises:
            RetryableError: The file cannot be written now; nothing was written.
            BlockedError: This user cannot write to the folder.
            PermanentError: One entry can never be stored; the entries before it are stored.
        """
        lines: list[bytes] = []
        refused: PermanentError | None = None
        for entry in entries:
            fields: Payload = {**self._fields, "timestamp": entry.timestamp}
            # With the first line only: the importer takes one config for all records of a run.
            if config is not None and not lines:
                fields["config"] = config
            try:
                lines.append(encoded(entry, fields))
            except PermanentError as exc:
                # The lines before it are still stored, because the error names this entry as the
                # first bad one.
                refused = exc
                break
        if lines:
            self._put(
                f"{time.time_ns():020d}.jsonl",
                b"\n".join(lines) + b"\n",
                entries[0].position,
            )
        # Only now: the entries before the refused one are in the inbox.
        if refused is not None:
            raise refused

    def _put(self, name: str, data: bytes, position: int) -> None:
        """Put a whole file under *name* into the inbox; raises as `file_errors`, with *position*.

        The importer may delete the folder between its making and the file, so that this tries
        again.
        """
        for attempt in range(_TRIES):
            try:
                with file_errors("Trackio's inbox", WRITABLE, position):
                    self._folder.mkdir(parents=True, exist_ok=True)
                    # Under a name that the importer does not list ("*.jsonl") until it is whole.
                    # The umask decides, because others may run the dashboard on this folder.
                    put_synced(self._folder / name, data, mode=0o666)
            except RetryableError as exc:  # noqa: PERF203  # the importer deletes a folder that it has emptied
                is_gone = isinstance(exc.__cause__, FileNotFoundError)
                if not is_gone or attempt == _TRIES - 1:
                    raise
            else:
                return
