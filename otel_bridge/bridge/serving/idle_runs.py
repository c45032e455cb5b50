"""Keeps idle runs: their writers, threads and ledger are closed, the lock stays, and the next frame wakes them."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from otel_bridge.bridge.run_bridge import RunBridge
from otel_bridge.bridge.serving.lease import FolderLease
from otel_bridge.bridge.serving.run_outcome import Outcome, SegmentsRead
from otel_bridge.journal.control import is_requested
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.locks import RecordLock

CHECK_S = 60.0
"""Seconds between two checks of an idle run: one of its processes may have died, or been silent for
too long."""
_EVERY_S = 1.0
_ENDED_S = 5.0
"""Seconds that an ended run stays open; a receiver keeps the run's segment, and its liveness lock,
for a minute."""


@dataclass(slots=True)
class _IdleRun:
    """Describes an idle run.

    Attributes:
        lease: Its lease of the folder; ``None`` when no files were left for its lock.
        check_s: `time.monotonic` of the next check in any case.
        drained: Whether the service drains, and this run has nothing left that could be delivered.
    """

    lease: FolderLease | None
    segments_read: SegmentsRead
    check_s: float
    drained: bool


class IdleRuns:
    """Decides which runs may sleep, and which wake. For the host's thread.

    Args:
        idle_s: Seconds that a run must have had nothing to do; ``None`` when no run sleeps by
            itself.
        locks: Most idle runs that keep their lock; another bridge may take the folder of any
            further idle run.
    """

    def __init__(self, idle_s: float | None, locks: int) -> None:
        self._idle_s = idle_s
        self._locks = locks
        self._asleep: dict[Path, _IdleRun] = {}
        self._held = 0
        self._positions: dict[Path, tuple[object, float]] = {}
        self._checked_s: dict[Path, float] = {}

    def __contains__(self, path: Path) -> bool:
        return path in self._asleep

    def may_sleep(self, run: RunBridge) -> bool:
        """Return whether *run* read nothing and waited for nothing in the last ``idle_s``.

        Checks once a second.

        An ended run sleeps after a moment.
        """
        path = run.folder.path
        now_s = time.monotonic()
        if self._idle_s is None or now_s - self._checked_s.get(path, 0.0) < _EVERY_S:
            return False
        self._checked_s[path] = now_s
        position = (run.reader.offsets(), run.ledger.position)
        last_position, since_s = self._positions.get(path, (None, now_s))
        # Positions first: they are cheap, and a run that moves is not asked further.
        if position != last_position or not has_nothing_to_do(run):
            self._positions[path] = (position, now_s)
            return False
        idle_s = self._idle_s
        if run.reader.translator.status() != "running":
            idle_s = min(idle_s, _ENDED_S)
        return now_s - since_s >= idle_s

    def put(
        self, run: RunBridge, deadline_s: float, *, drained: bool = False
    ) -> list[str]:
        """Close *run* except for its lock; return the exporters whose writer hangs."""
        # Each lock is an open file, of which a process may have few.
        keep = self._held < self._locks
        hanging = run.close(deadline_s, keep_lock=keep)
        self.forget(run.folder.path)
        self._asleep[run.folder.path] = _IdleRun(
            run.lease if keep else None,
            run.segments_read,
            time.monotonic() + CHECK_S,
            drained,
        )
        self._held += keep
        return hanging

    def forget(self, path: Path) -> None:
        """Forget what was stored about an active run, because the run is closed."""
        self._positions.pop(path, None)
        self._checked_s.pop(path, None)

    def wakes(self, folder: RunFolder, *, now: bool) -> bool:
        """Return whether an idle run has something to do or is due for a check.

        *now* wakes it anyway.
        """
        asleep = self._asleep[folder.path]
        if asleep.lease is not None:
            # An idle run is held all the same, and other hosts judge that by its heartbeat.
            asleep.lease.heartbeat()
        due = not asleep.drained and (now or time.monotonic() >= asleep.check_s)
        return due or asleep.segments_read.anything_new() or is_requested(folder)

    def take(self, path: Path) -> RecordLock | None:
        """Return the lock of a run that becomes active.

        ``None`` when the run was not idle, or keeps no lock.
        """
        asleep = self._asleep.pop(path, None)
        if asleep is None or asleep.lease is None:
            return None
        self._held -= 1
        return asleep.lease.hand_on()

    def forget_deleted(self, listed: Collection[Path]) -> None:
        """Release the locks of idle runs whose folder was deleted and is not in *listed*."""
        for path in deleted(self._asleep, listed):
            lease = self._asleep.pop(path).lease
            if lease is not None:
                self._held -= 1
                lease.release()

    def release(self) -> None:
        """Release all locks."""
        for asleep in self._asleep.values():
            if asleep.lease is not None:
                asleep.lease.release()
        self._asleep.clear()
        self._held = 0


def deleted(noted: Iterable[Path], listed: Collection[Path]) -> list[Path]:
    """Return those of the *noted* folders that no longer exist; folders *listed* just now do."""
    return [path for path in noted if path not in listed and not path.exists()]


def drained(run: RunBridge) -> bool:
    """Return whether, after `drain` of *run*, every exporter that is not blocked has everything."""
    if run.outcome() in {Outcome.GONE, Outcome.HANDED_OVER}:
        return True
    states = run.exporter_states().values()
    unblocked = [state for state in states if state.state != "blocked"]
    if states and not unblocked:
        return True  # no exporter would take the data that is not read yet
    position = run.ledger.position
    return run.shutdown.paused and all(state.is_done(position) for state in unblocked)


def has_nothing_to_do(run: RunBridge) -> bool:
    """Return whether all of *run* is read and delivered, and nothing waits for a timeout."""
    if not run.reader.caught_up or not run.delivered()[0]:
        return False
    is_waiting = any(dataclasses.astuple(run.reader.translator.waiting()))
    return not (is_waiting or run.processes.has_unreported_ends())
