"""Finds run folders that have something left to do and are not active: new ones, and closed ones with new data.

The search takes at most a fiftieth of the time, however many folders there are. For the host's
thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Set
from dataclasses import dataclass, field
from pathlib import Path

from otel_bridge.bridge.serving.lease import FolderLease
from otel_bridge.bridge.serving.process_limits import exhausted
from otel_bridge.bridge.serving.run_outcome import Outcome, RunStatus, SegmentsRead
from otel_bridge.journal.control import is_requested
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.locks import RecordLock
from otel_bridge.journal.report import Report, read_report

DISCOVER_S = 0.25
"""Least seconds between two searches: how soon a new run is found."""
AGAIN_S = 60.0
"""Seconds until a folder is tried again that was parked, handed over, locked by another bridge, or
failing."""
_COST_FACTOR = 50


@dataclass(slots=True)
class ClosedRun:
    """Describes a folder that was served before.

    Its run is released, because thousands would fill the memory.

    Attributes:
        remaining: Status of the run when it was closed.
        read: What was read of its segments; ``None`` when it could not be opened.
        again_s: `time.monotonic` from which it is looked at again.
        is_idle: Whether it had nothing to do: new data or a request wakes it at once.
        lease: Lease of an idle run, which no other bridge may take meanwhile; ``None`` without one.
        drained: Whether the host drains, and the run has nothing left that could be delivered.
    """

    remaining: RunStatus
    read: SegmentsRead | None
    again_s: float
    is_idle: bool = False
    lease: FolderLease | None = None
    drained: bool = False

    def wakes(self, folder: RunFolder, *, now: bool) -> bool:
        """Return whether an idle run has something to do or is due for a check; *now* wakes it anyway.

        It is checked every minute, because one of its processes may have died without a word. After
        a drain it wakes for new data and requests only, or it would be drained again and again.
        """
        if self.lease is not None:
            # An idle run is held all the same, and other hosts judge that by its heartbeat.
            self.lease.heartbeat()
        is_due = not self.drained and (now or time.monotonic() >= self.again_s)
        has_more = self.read is not None and self.read.anything_new()
        return is_due or has_more or is_requested(folder)

    def wake(self) -> RecordLock | None:
        """Mark an idle run as active; return the lock that it keeps, ``None`` without one."""
        lease = self.lease
        self.is_idle = False
        self.lease = None
        if lease is None:
            return None
        return lease.hand_on()

    def holds_lock(self) -> bool:
        """Return whether the lock of its folder is held meanwhile."""
        return self.lease is not None

    def release(self) -> None:
        """Release the lock of an idle run."""
        if self.lease is not None:
            self.lease.release()
            self.lease = None


@dataclass(slots=True, kw_only=True)
class Discovery:
    """Finds folders that need work.

    Attributes:
        folders: Lists the folders to serve.
        served: Returns whether a folder is open or waits in the queue.
        exporters: Names of the exporters that every run gets.
        until_done: Whether a run that is closed with something left to do stays closed.
        forget_deleted: Called with the existing folders at each search, to forget deleted ones.
        closed: Folders that were served before and are not active now.
        next_s: `time.monotonic` of the next search.
    """

    folders: Callable[[], Iterable[RunFolder]]
    served: Callable[[Path], bool]
    exporters: Set[str]
    until_done: bool
    forget_deleted: Callable[[Collection[Path]], object]
    closed: dict[Path, ClosedRun] = field(default_factory=dict[Path, ClosedRun])
    next_s: float = float("-inf")
    _wake_idle_runs: bool = False
    _checked: dict[Path, int] = field(default_factory=dict[Path, int])

    def find(self) -> list[RunFolder]:
        """Return the folders that need work, and set when the next search is due.

        None when the directory cannot be listed: the next search looks again.
        """
        began_s = time.monotonic()
        folders = list(self.folders())
        self._forget({folder.path for folder in folders})
        with_work = [folder for folder in folders if self._needs_work(folder)]
        # A fiftieth of the time at most, however many folders there are.
        self.next_s = began_s + max(
            DISCOVER_S, _COST_FACTOR * (time.monotonic() - began_s)
        )
        return with_work

    def _forget(self, listed: Collection[Path]) -> None:
        """Forget the runs whose folder was deleted: a new folder of that name is another run."""
        for path in deleted(self.closed, listed):
            self.closed.pop(path).release()
        for path in deleted(self._checked, listed):
            del self._checked[path]
        self.forget_deleted(listed)

    def wake_idle_runs(self) -> None:
        """Find every idle run that needs work from now on."""
        self._wake_idle_runs = True

    def finds_any(self) -> bool:
        """Return whether a folder needs work; such a folder is found again at once.

        Asked before a host ends by itself, because data may have come since the last search.
        """
        for folder in self.folders():
            if self._needs_work(folder):
                self._checked.pop(folder.path, None)  # it was checked and not opened
                self._search_now()
                return True
        return False

    def try_again(self, *, gone_only: bool = False) -> None:
        """Mark closed folders as due.

        With *gone_only* only those that could not be opened, e.g. for lack of space.
        """
        self._search_now()
        for closed in self.closed.values():
            is_gone = closed.remaining.outcome is Outcome.GONE
            if not closed.is_idle and (is_gone or not gone_only):
                closed.again_s = 0.0

    def _search_now(self) -> None:
        self.next_s = float("-inf")

    def _needs_work(self, folder: RunFolder) -> bool:
        """Return whether a folder that is not active has something left to do.

        An idle run decides by itself. A run that ended needs work when it has new data or a
        request; a parked one also when its minute is over. A folder that another bridge has, that
        failed or that was handed over needs work only after its wait. With *until_done* nothing is
        served twice for time alone, or a drain with an unreachable tracker would never end.
        """
        if self.served(folder.path):
            return False
        closed = self.closed.get(folder.path)
        if closed is None:
            return is_requested(folder) or self._has_more(folder, None)
        if closed.is_idle:
            return closed.wakes(folder, now=self._wake_idle_runs)
        outcome = closed.remaining.outcome
        # Only of a run that this host read: another bridge may have the folder of any other.
        was_read = outcome in {Outcome.DONE, Outcome.PARKED}
        if was_read and (is_requested(folder) or self._has_more(folder, closed)):
            return True
        if outcome is Outcome.DONE or self.until_done:
            return False
        return time.monotonic() >= closed.again_s

    def _has_more(self, folder: RunFolder, closed: ClosedRun | None) -> bool:
        """Return whether a folder, which changed since it was last checked, has something to read or to write.

        A folder that was never read here has more if it holds segments, or a report that is not
        ended or lacks an exporter that this host was given. Without a readable report the ledger
        shows what is left.
        """
        changed_ns = folder.segments_changed_ns()
        # One `stat` for each folder: a directory may hold thousands that ended long ago.
        if changed_ns is not None and changed_ns == self._checked.get(folder.path):
            return False
        if closed is not None and closed.read is not None:
            has_more = closed.read.anything_new()
        elif folder.segments():
            has_more = True
        elif (report := read_report(folder)) is not None:
            has_more = not report.ended or self._names_more(report)
        else:
            has_more = folder.ledger_path.exists()
        # Without a free file every folder looks empty: then it is looked at again.
        if changed_ns is not None and (has_more or not exhausted()):
            self._checked[folder.path] = changed_ns
        return has_more

    def _names_more(self, report: Report) -> bool:
        """Return whether an exporter is given that has none of an ended run yet: the ledger may hold records."""
        return bool(self.exporters - report.exporters.keys())


def deleted(noted: Iterable[Path], listed: Collection[Path]) -> list[Path]:
    """Return those of the *noted* folders that no longer exist; folders *listed* just now do."""
    return [path for path in noted if path not in listed and not path.exists()]
