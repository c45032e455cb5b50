"""Manages the directory of an offline run, which each new writer writes again from the ledger.

An offline directory cannot be continued (a kill loses its unflushed tail), and two directories of
one run overwrite each other when they are synced. So its records are never *durable*: each new
writer gets all of them again, and with its first record the previous directory is deleted. The
previous directory stays, as a second one, when it has W&B's ``.synced`` mark, or when it holds
records that retention has deleted from the ledger.
"""

from __future__ import annotations

import importlib
import json
import logging
import re
import shutil
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from otel_bridge.errors import RetryableError
from otel_bridge.exporter import WriterMemory
from otel_bridge.records import Position
from otel_bridge_wandb.offline.log_file import BLOCK_BYTES, HEADER_BYTES, records
from otel_bridge_wandb.sdk import staging_in

_KEY = "offline/directories"
_FLUSH_S = 10.0
"""Seconds that wandb's service may take to write the end of a run's file."""
_log = logging.getLogger("otel_bridge.wandb")


@dataclass(frozen=True, slots=True)
class _Directory:
    """Describes one offline directory of the run.

    Attributes:
        path: Absolute path.
        first: Position of its first record; ``None`` when it has none.
        is_permanent: Whether it cannot be replaced, and a warning has reported that.
    """

    path: Path
    first: Position | None = None
    is_permanent: bool = False

    @property
    def synced(self) -> bool:
        """Return whether W&B has uploaded the directory."""
        return any(self.path.glob("*.synced"))

    def stored(self) -> Mapping[str, object]:
        """Return the entry from which `of` makes the directory again."""
        return {
            "path": str(self.path),
            "first": self.first,
            "kept": self.is_permanent,
        }

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> _Directory:
        """Return the directory that an earlier writer stored as *entry*."""
        return cls(Path(str(entry["path"])), entry["first"], bool(entry["kept"]))


class OfflineStore:
    """Tracks the records of an offline run: none is durable, and each new writer gets all of them again.

    Args:
        memory: Memory that keeps the directories.
        root: Folder in which wandb creates them.
        run_id: W&B run id.
        oldest: Position of the oldest record that can still be delivered again.
    """

    def __init__(
        self, memory: WriterMemory, root: Path, run_id: str, *, oldest: Position = 1
    ) -> None:
        self._oldest = oldest
        self._memory = memory
        self._root = root
        self._run_id = run_id
        self._known: list[_Directory] = []
        for directory in map(_Directory.of, json.loads(memory.get(_KEY) or "[]")):
            # One that a user deleted meanwhile is forgotten.
            if directory.path.is_dir():
                self._known.append(directory)
        self._current: _Directory | None = None

    def before_init(self) -> None:
        """Store the existing directories, so that one made just before a kill is recognised by the next writer.

        A directory that is there now, and was not when an earlier ``init()`` began, is one that its
        killed writer made. Directories of a user were there before, and are never replaced.
        """
        stored = self._memory.get("offline/opening")
        if stored is not None:
            known_paths = {Path(path) for path in json.loads(stored)}
            known_paths.update(directory.path for directory in self._known)
            strays = sorted(self._present() - known_paths)
            self._known += [_Directory(path) for path in strays]
            # First: the list below holds them, so a second kill before after_init() would hide
            # them.
            self._save()
        # Before init(), so that a directory made by an init() that is killed is known as new.
        paths = [str(path) for path in self._present()]
        self._memory.put("offline/opening", json.dumps(paths).encode())

    def after_init(self, path: Path) -> None:
        """Remember the directory of the run just opened."""
        self._current = _Directory(path)
        self._save()
        # After the list is stored: a kill in between finds the directory in both.
        self._memory.delete("offline/opening")

    def due(self, positions: Sequence[Position]) -> Sequence[Position]:
        """Return the positions that must be written: all.

        A new writer fills an empty directory, so that nothing is held yet.
        """
        return positions

    @contextmanager
    def lines(
        self,
        positions: Sequence[Position],
        _table: str = "",
        *,
        has_files: bool = False,
    ) -> Generator[list[object]]:
        """Make room for lines of the records at *positions*, which the block logs.

        Files that wandb writes for them stay in the directory, if it *has_files*. Raises what the
        block raises, and `JournalError` before it when the memory cannot be written.
        """
        self._replace_older(positions)
        staging: AbstractContextManager[None] = nullcontext()
        if has_files and self._current is not None:
            staging = staging_in(self._current.path)
        with staging:
            yield []

    def _replace_older(self, positions: Sequence[Position]) -> None:
        """Replace the older directories before the first records are logged; later calls change nothing.

        One that cannot be replaced becomes permanent, so that its warning comes once and it stays.
        """
        # Once for each writer. Until its first record the older directory is the better one.
        if self._current is None or self._current.first is not None or not positions:
            return
        self._current = _Directory(self._current.path, first=positions[0])
        # Before the list is stored: after a kill in between, directories that are gone leave it by
        # themselves.
        former = self._known
        self._known = []
        for directory in former:
            if not self._replaced(directory):
                self._known.append(replace(directory, is_permanent=True))
        self._save()

    def passed(self, _position: Position) -> None:
        """Do nothing.

        No record is durable here, so that none waits for another.
        """

    def timed_out(self) -> None:
        """Do nothing.

        Nothing is uploaded, so that no wait can be too short.
        """

    def ended(self) -> Position | None:
        """Wait until the directory is whole; it may still be replaced by a later one.

        Raises:
            RetryableError: Its exit record is not there after `_FLUSH_S` seconds; the bridge ends
                the run again, through a new writer.
        """
        if self._current is not None and not wait_for_exit(
            self._current.path, _FLUSH_S
        ):
            raise RetryableError(f"W&B did not write the end of {self._current.path}")
        return self.durable()

    def left(self) -> Position | None:
        """Do the same as `ended`.

        ``finish()`` returns before the file is whole, whether the run ends or is left open. Raises
        as `ended`.
        """
        return self.ended()

    def close(self) -> None:
        """Do nothing: nothing is open."""

    def durable(self) -> Position | None:
        """Return 0: no record of an offline directory is durable."""
        return 0

    def _replaced(self, directory: _Directory) -> bool:
        """Delete *directory* if all of its records are delivered again.

        Return whether it is deleted.

        It stays when W&B has synced it, and when retention has deleted some of its records, which
        are nowhere else; also when it cannot be deleted. A warning names the reason.
        """
        if directory.is_permanent:
            return False
        if directory.first is None or (
            self._oldest <= directory.first and not directory.synced
        ):
            return _deleted(directory.path)
        reason = "holds records that are no longer kept here"
        if directory.synced:
            reason = "was synced already"
        _log.warning(
            "W&B offline: %s %s; a second directory of the run follows",
            directory.path,
            reason,
        )
        return False

    def _present(self) -> set[Path]:
        """Return the offline directories of this run that are there.

        Empty before wandb has made one.
        """
        # The whole name, because a user's run whose id contains this id must not be replaced.
        ours = re.compile(rf"offline-run-\d+_\d+-{re.escape(self._run_id)}(-\d+)?")
        present: set[Path] = set()
        for path in (self._root / "wandb").glob("offline-run-*"):
            if ours.fullmatch(path.name):
                present.add(path)
        return present

    def _save(self) -> None:
        """Store the directories of this writer and those before it, for the next writer.

        Raises `JournalError` when the memory cannot be written; the bridge makes the call again.
        """
        listed = list(self._known)
        if self._current is not None:
            listed.append(self._current)
        entries = [directory.stored() for directory in listed]
        self._memory.put(_KEY, json.dumps(entries).encode())


def _deleted(path: Path) -> bool:
    """Delete a directory; return ``False``, after a warning, if a part of it stays.

    ``True`` too for one that is gone already.
    """
    try:
        shutil.rmtree(path)
    except OSError as exc:
        # Deleted by a user meanwhile is as good; one that stays would overwrite the new one in a
        # sync.
        if path.exists():
            _log.warning(
                "W&B offline: %s cannot be deleted: %s; do so before `wandb sync`",
                path,
                exc.strerror,
            )
            return False
    return True


# Wait until an offline run's file is whole: ``run.finish()`` returns before wandb's service has
# flushed and closed it.
#
# Source: ``handleInformFinish`` in core/pkg/server/connection.go, which sends no answer.

_PAUSE_S = 0.005
"""Seconds between two looks at the file."""


def wait_for_exit(directory: Path, timeout_s: float) -> bool:
    """Wait until the run's file in *directory* ends with its exit record.

    Return ``True`` at once when it does, else ``False`` after *timeout_s*, also without a file.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        if any(map(has_exit, directory.glob("run-*.wandb"))):
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(_PAUSE_S)


def has_exit(file: Path) -> bool:
    """Return whether the last two blocks of *file* contain an exit record.

    ``False`` while it cannot be read.

    Only its end is read, because it is asked every few milliseconds.
    """
    messages: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")
    try:
        with file.open("rb") as opened:
            # Two blocks, because the exit record may begin in the last but one.
            start = max(opened.seek(0, 2) // BLOCK_BYTES - 1, 0) * BLOCK_BYTES
            opened.seek(start)
            tail = opened.read()
    except OSError:
        # Not written yet: the caller asks again.
        return False
    for record in records(tail, 0 if start else HEADER_BYTES):
        if messages.Record.FromString(record).HasField("exit"):
            return True
    return False
