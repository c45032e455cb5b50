"""Runs that have nothing to do: writers, threads and ledger are closed, the lock stays, the next frame wakes them."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from otel_bridge.bridge.run_bridge import RunBridge
from otel_bridge.bridge.serving.lease import FolderLease
from otel_bridge.bridge.serving.outcome import Outcome, SegmentsRead
from otel_bridge.journal.control import is_asked
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.locks import RecordLock

LOOK_S: Final = 60.0
"""How often a run that sleeps is looked at: a process of it may have died, or been silent for too long."""
_EVERY_S: Final = 1.0
_ENDED_S: Final = 5.0
"""How long a run that has ended stays open; a receiver keeps its segment, and it its lock, for a minute."""


@dataclass(slots=True)
class _IdleRun:
    """What is kept of a run that sleeps.

    Attributes:
        lease: Its hold on the folder; ``None`` where there are no files left for its lock.
        look_s: `time.monotonic` when it is looked at whatever came.
        drained: The service drains, and this run has nothing left that could be delivered.
    """

    lease: FolderLease | None
    segments_read: SegmentsRead
    look_s: float
    drained: bool


class IdleRuns:
    """Says which runs may sleep, and which wake. For the host's thread.

    Args:
        idle_s: How long a run must have had nothing to do; ``None``: none sleeps by itself.
        locks: How many runs that sleep keep their lock; another bridge may take the folder of one beyond that.
    """

    def __init__(self, idle_s: float | None, locks: int) -> None:
        self._idle_s, self._locks = idle_s, locks
        self._asleep: dict[Path, _IdleRun] = {}
        self._held = 0
        self._seen: dict[Path, tuple[object, float]] = {}
        self._looked_s: dict[Path, float] = {}

    def __contains__(self, path: Path) -> bool:
        return path in self._asleep

    def tired(self, run: RunBridge) -> bool:
        """Return whether *run* read nothing and waited for nothing in the last ``idle_s``; looks once a second.

        One that has ended sleeps after a moment.
        """
        path, now_s = run.folder.path, time.monotonic()
        if self._idle_s is None or now_s - self._looked_s.get(path, 0.0) < _EVERY_S:
            return False
        self._looked_s[path] = now_s
        stands = (run.reader.known(), run.ledger.position)
        before, since_s = self._seen.get(path, (None, now_s))
        if stands != before or not has_nothing_to_do(run):
            self._seen[path] = (stands, now_s)
            return False
        ended = run.reader.translator.status() != "running"
        return now_s - since_s >= (min(self._idle_s, _ENDED_S) if ended else self._idle_s)

    def put(self, run: RunBridge, deadline_s: float, *, drained: bool = False) -> list[str]:
        """Close *run* but for its lock; returns the exporters whose writer hangs."""
        keep = self._held < self._locks
        hanging = run.close(deadline_s, keep_lock=keep)
        self.forget(run.folder.path)
        self._asleep[run.folder.path] = _IdleRun(
            run.lease if keep else None, run.segments_read, time.monotonic() + LOOK_S, drained
        )
        self._held += keep
        return hanging

    def forget(self, path: Path) -> None:
        """What was noted of a run at work: it is closed."""
        self._seen.pop(path, None)
        self._looked_s.pop(path, None)

    def wakes(self, folder: RunFolder, *, now: bool) -> bool:
        """Return whether an idle run has something to do or is due to be looked at; *now* wakes it anyway."""
        asleep = self._asleep[folder.path]
        if asleep.lease is not None:
            asleep.lease.beat()
        due = not asleep.drained and (now or time.monotonic() >= asleep.look_s)
        return due or asleep.segments_read.anything_new() or is_asked(folder)

    def take(self, path: Path) -> RecordLock | None:
        """Return the lock of a run that is to go on; ``None`` when it did not sleep, or keeps no lock."""
        asleep = self._asleep.pop(path, None)
        if asleep is None or asleep.lease is None:
            return None
        self._held -= 1
        return asleep.lease.hand_on()

    def forget_deleted(self, listed: Collection[Path]) -> list[Path]:
        """Free the locks of runs that sleep and whose folder, not among those *listed*, was deleted; return which."""
        found = deleted(self._asleep, listed)
        for path in found:
            lease = self._asleep.pop(path).lease
            if lease is not None:
                self._held -= 1
                lease.release()
        return found

    def release(self) -> None:
        """Free all locks."""
        for asleep in self._asleep.values():
            if asleep.lease is not None:
                asleep.lease.release()
        self._asleep.clear()
        self._held = 0


def deleted(noted: Iterable[Path], listed: Collection[Path]) -> list[Path]:
    """Return those of the *noted* folders that no longer exist; those *listed* just now do."""
    return [path for path in noted if path not in listed and not path.exists()]


def drained(run: RunBridge) -> bool:
    """After its `drain`: return whether every exporter that is not blocked has everything."""
    if run.rest() in {Outcome.GONE, Outcome.HANDED_OVER}:
        return True
    position, found = run.ledger.position, run.progress().values()
    if found and all(one.state == "blocked" for one in found):
        return True  # whatever is not read yet: nobody would take it
    return run.shutdown.paused and all(
        one.state == "blocked" or (one.resolved and one.has_all(position) and one.failing_since_s is None)
        for one in found
    )


def has_nothing_to_do(run: RunBridge) -> bool:
    """Return whether all of *run* is read and delivered, and nothing waits for time to pass."""
    if not run.reader.caught_up or not run.delivered()[0]:
        return False
    waiting = run.reader.translator.waiting()
    waits = waiting.rows or waiting.traces or waiting.rollouts or run.processes.has_unreported_ends()
    return not waits and not any(one.backlog for one in run.progress().values())
