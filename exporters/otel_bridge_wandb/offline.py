"""The directories of an offline run: one, written anew from the ledger by each new writer, then the old one goes.

An offline directory is nothing that can be gone on with (a kill loses its unflushed tail), and two directories of one
run overwrite one another when they are synced. So its records are never *safe*: each new writer is given all of them
again, and with its first record the directory before it is deleted. It stays, as a second directory, when W&B's
``.synced`` mark is on it or when records that it holds are not given again (the bound took them).
"""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from otel_bridge.errors import RetryableError
from otel_bridge.exporter import Memory
from otel_bridge.records import Position
from otel_bridge_wandb.flushed import wait_for_exit
from otel_bridge_wandb.sdk import staging_in

_KEY: Final = "offline/directories"
_FLUSH_S: Final = 10.0
_log: Final = logging.getLogger("otel_bridge.wandb")


@dataclass(frozen=True, slots=True)
class _Directory:
    """One offline directory of the run.

    Attributes:
        path: Absolute.
        first: Position of its first record; ``None``: it has none.
        kept: It was found to be beyond replacing, and that was said.
    """

    path: Path
    first: Position | None = None
    kept: bool = False

    @property
    def synced(self) -> bool:
        """W&B has uploaded it."""
        return any(self.path.glob("*.synced"))


class OfflineStore:
    """What a writer of an offline run knows of its records: nothing is safe, everything comes again.

    Args:
        memory: Where the directories are remembered.
        root: Folder in which wandb makes them.
        run_id: W&B run id.
        oldest: Position of the oldest record that can still be given again.
    """

    def __init__(self, memory: Memory, root: Path, run_id: str, *, oldest: Position = 1) -> None:
        self._oldest = oldest
        self._memory = memory
        self._root = root
        self._run_id = run_id
        self._known = [directory for directory in _read(memory) if directory.path.is_dir()]
        self._current: _Directory | None = None

    def before_init(self) -> None:
        """Note which directories there are, so that one made and not remembered (a kill between) is known as ours."""
        stored = self._memory.get("offline/opening")
        if stored is not None:
            before = {Path(path) for path in json.loads(stored)}
            strays = self._present() - before - {directory.path for directory in self._known}
            self._known += [_Directory(path) for path in sorted(strays)]
            self._save()  # first: the list below holds them, so a second kill before after_init() would hide them
        self._memory.put("offline/opening", json.dumps([str(path) for path in self._present()]).encode())

    def after_init(self, path: Path) -> None:
        """Remember the directory of the run just opened."""
        self._current = _Directory(path)
        self._save()
        self._memory.delete("offline/opening")

    def due(self, positions: Sequence[Position]) -> Sequence[Position]:
        """Return the positions that are to be written: all."""
        return positions

    def announce(self, positions: Sequence[Position]) -> None:
        """Called before records are logged; the first ones replace the older directories."""
        if self._current is None or self._current.first is not None or not positions:
            return
        self._current = _Directory(self._current.path, first=positions[0])
        kept = [directory for directory in self._known if not self._replaced(directory)]
        self._known = [_Directory(directory.path, directory.first, kept=True) for directory in kept]
        self._save()

    def announce_table(self, _key: str, positions: Sequence[Position]) -> None:
        """As `announce`."""
        self.announce(positions)

    def log_table(self, log: Callable[[], None]) -> None:
        """Log an increment; its files stay in the directory."""
        if self._current is None:
            log()
            return
        with staging_in(self._current.path):
            log()

    def logged(self, _count: int) -> None:
        """Nothing to remember."""

    def passed(self, _position: Position) -> None:
        """Nothing to remember."""

    def ran_out(self) -> None:
        """Nothing to remember."""

    def ended(self) -> Position | None:
        """Wait until the directory is whole; it may still be replaced by a later one."""
        if self._current is not None and not wait_for_exit(self._current.path, _FLUSH_S):
            raise RetryableError(f"W&B did not write the end of {self._current.path}")
        return self.safe()

    def left(self) -> Position | None:
        """As `ended`."""
        return self.ended()

    def close(self) -> None:
        """Nothing is held."""

    def safe(self) -> Position | None:
        """Return 0: an offline directory is nowhere safe."""
        return 0

    def _replaced(self, directory: _Directory) -> bool:
        """Delete *directory* when all it holds is given again; tell whether it is gone."""
        if directory.kept:
            return False
        if directory.first is None or (self._oldest <= directory.first and not directory.synced):
            return _deleted(directory.path)
        reason = "was synced already" if directory.synced else "holds records that are no longer kept here"
        _log.warning("W&B offline: %s %s; a second directory of the run follows", directory.path, reason)
        return False

    def _present(self) -> set[Path]:
        # The whole name: a run of the user's own whose id holds ours is none of ours to replace.
        ours = re.compile(rf"offline-run-\d+_\d+-{re.escape(self._run_id)}(-\d+)?")
        return {path for path in (self._root / "wandb").glob("offline-run-*") if ours.fullmatch(path.name)}

    def _save(self) -> None:
        listed = [*self._known, *([self._current] if self._current else [])]
        value: list[Mapping[str, object]] = [
            {"path": str(directory.path), "first": directory.first, "kept": directory.kept} for directory in listed
        ]
        self._memory.put(_KEY, json.dumps(value).encode())


def _deleted(path: Path) -> bool:
    try:
        shutil.rmtree(path)
    except OSError as exc:
        if path.exists():
            _log.warning("W&B offline: %s cannot be deleted: %s; do so before `wandb sync`", path, exc.strerror)
            return False
    return True


def _read(memory: Memory) -> list[_Directory]:
    stored = memory.get(_KEY)
    if stored is None:
        return []
    return [_Directory(Path(str(entry["path"])), entry["first"], bool(entry["kept"])) for entry in json.loads(stored)]
