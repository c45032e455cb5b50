"""Runs that have nothing to do: writers, threads and ledger are closed, the lock stays, the next frame wakes them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from otel_bridge.bridge.rest import Rest
from otel_bridge.bridge.run_bridge import RunBridge
from otel_bridge.journal.ask import is_asked
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.locks import RecordLock

LOOK_S: Final = 60.0
"""How often a run that sleeps is looked at: a process of it may have died, or been silent for too long."""
_EVERY_S: Final = 1.0
_ENDED_S: Final = 5.0
"""How long a run that has ended stays open; a receiver keeps its segment, and it its lock, for a minute."""


class Sleepers:
    """Says which runs may sleep, and which wake. For the host's thread.

    Args:
        idle_s: How long a run must have had nothing to do; ``None``: none ever sleeps.
    """

    def __init__(self, idle_s: float | None) -> None:
        self._idle_s = idle_s
        self._asleep: dict[Path, tuple[RunBridge, float]] = {}
        self._seen: dict[Path, tuple[object, float]] = {}
        self._looked_s: dict[Path, float] = {}

    def __contains__(self, path: Path) -> bool:
        return path in self._asleep

    def tired(self, run: RunBridge) -> bool:
        """Say whether *run* read nothing and waited for nothing in the last ``idle_s``; looks once a second.

        One that has ended sleeps after a moment.
        """
        path, now_s = run.folder.path, time.monotonic()
        if self._idle_s is None or now_s - self._looked_s.get(path, 0.0) < _EVERY_S:
            return False
        self._looked_s[path] = now_s
        stands = (run.reader.known(), run.ledger.position)
        before, since_s = self._seen.get(path, (None, now_s))
        if stands != before or not _has_nothing_to_do(run):
            self._seen[path] = (stands, now_s)
            return False
        ended = run.reader.translator.status() != "running"
        return now_s - since_s >= (min(self._idle_s, _ENDED_S) if ended else self._idle_s)

    def put(self, run: RunBridge, deadline_s: float) -> list[str]:
        """Close *run* but for its lock; returns the exporters whose writer hangs."""
        hanging = run.close(deadline_s, keep_lock=True)
        self.forget(run.folder.path)
        self._asleep[run.folder.path] = (run, time.monotonic() + LOOK_S)
        return hanging

    def forget(self, path: Path) -> None:
        """What was noted of a run at work: it is closed."""
        self._seen.pop(path, None)
        self._looked_s.pop(path, None)

    def wakes(self, folder: RunFolder, *, now: bool) -> bool:
        """Say whether a run that sleeps has something to do, or is due to be looked at; with *now* it wakes anyway."""
        run, look_s = self._asleep[folder.path]
        run.hold.beat()
        return now or time.monotonic() >= look_s or run.segments_read.anything_new() or is_asked(folder)

    def take(self, path: Path) -> RecordLock | None:
        """Return the lock of a run that is to go on; ``None`` when it did not sleep."""
        run, _ = self._asleep.pop(path, (None, 0.0))
        return None if run is None else run.hold.hand_on()

    def release(self) -> None:
        """Free all locks."""
        for run, _ in self._asleep.values():
            run.hold.release()
        self._asleep.clear()


def drained(run: RunBridge) -> bool:
    """After its `drain`: say whether every exporter that is not blocked has written everything."""
    if run.rest() in {Rest.GONE, Rest.HANDED_OVER}:
        return True
    position, found = run.ledger.position, run.progress().values()
    if found and all(one.state == "blocked" for one in found):
        return True  # whatever is not read yet: nobody would take it
    return run.ending.let_go and all(
        one.state == "blocked" or (one.resolved and one.written >= position and one.failing_since_s is None)
        for one in found
    )


def _has_nothing_to_do(run: RunBridge) -> bool:
    delivered, _ = run.lanes.rest(run.ledger.position, run.options.park_s)
    waiting = run.reader.translator.waiting()
    waits = waiting.rows or waiting.traces or waiting.rollouts or run.lives.unsaid()
    put_off = any(one.put_off for one in run.progress().values())
    return run.reader.caught_up and delivered and not waits and not put_off
