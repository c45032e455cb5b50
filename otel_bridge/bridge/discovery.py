"""Which run folders have something left to do and nobody serves: new ones, and closed ones that got more.

Looking takes a fiftieth of the time at most, however many folders there are. For the host's thread.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from otel_bridge.bridge.rest import Remaining, Rest
from otel_bridge.bridge.segments_read import SegmentsRead
from otel_bridge.bridge.sleeping import Sleepers
from otel_bridge.journal.ask import is_asked
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.report import Report, read_report

DISCOVER_S: Final = 0.25
AGAIN_S: Final = 60.0
"""When a folder is tried again that was parked, handed over, locked by another or failing."""
_COST_FACTOR: Final = 50
_YOUNG_NS: Final = 2_000_000_000


@dataclass(slots=True)
class Closed:
    """A folder that was served and is not now; the run itself is let go, of thousands it would fill the memory."""

    remaining: Remaining
    read: SegmentsRead | None
    again_s: float


class Discovery:
    """Finds folders that need work.

    Args:
        folders: Lists the folders that are ours.
        served: Those that are open now.
        sleepers: Runs that sleep, and when they wake.
        named: Names of the exporters that every run is given.
        until_done: What is closed with something left to do stays closed.

    Attributes:
        closed: Folders that were served and are not now.
        next_s: `time.monotonic` when to look again.
        wake_sleepers: Runs that sleep need work too.
    """

    def __init__(
        self,
        folders: Callable[[], Iterable[RunFolder]],
        served: Container[Path],
        sleepers: Sleepers,
        *,
        named: Iterable[str],
        until_done: bool,
    ) -> None:
        self._folders, self._served, self._sleepers = folders, served, sleepers
        self._named, self._until_done = frozenset(named), until_done
        self.closed: dict[Path, Closed] = {}
        self.next_s = float("-inf")
        self.wake_sleepers = False
        self._looked: dict[Path, int] = {}

    def find(self) -> list[RunFolder]:
        """Return the folders that need work."""
        began_s = time.monotonic()
        found = [folder for folder in self._folders() if self._needs_work(folder)]
        self.next_s = began_s + max(DISCOVER_S, _COST_FACTOR * (time.monotonic() - began_s))
        return found

    def finds_any(self) -> bool:
        """Say whether a folder needs work; then it is found again at once."""
        for folder in self._folders():
            if self._needs_work(folder):
                self._looked.pop(folder.path, None)  # it was looked at and not opened
                self._look_now()
                return True
        return False

    def try_again(self, *, gone_only: bool = False) -> None:
        """Take closed folders for due, with *gone_only* those that could not be opened, for want of space, say."""
        self._look_now()
        for closed in self.closed.values():
            if not gone_only or closed.remaining.rest is Rest.GONE:
                closed.again_s = 0.0

    def _look_now(self) -> None:
        self.next_s = float("-inf")

    def _needs_work(self, folder: RunFolder) -> bool:
        """Say whether a folder that is not served now has something left to do."""
        if folder.path in self._served:
            return False
        if folder.path in self._sleepers:
            return self._sleepers.wakes(folder, now=self.wake_sleepers)
        closed = self.closed.get(folder.path)
        if closed is not None and closed.remaining.rest not in {Rest.DONE, Rest.PARKED}:
            return not self._until_done and time.monotonic() >= closed.again_s
        return is_asked(folder) or self._has_more(folder, closed)

    def _has_more(self, folder: RunFolder, closed: Closed | None) -> bool:
        changed_ns = _changed_ns(folder)
        if changed_ns != self._looked.get(folder.path):
            # Young times of change hide a further change: such a folder is looked at again.
            if time.time_ns() - changed_ns > _YOUNG_NS:
                self._looked[folder.path] = changed_ns
            if closed is None or closed.read is None:
                report = read_report(folder)
                if folder.segments() or (report is not None and (not report.ended or self._names_more(report))):
                    return True
            elif closed.read.anything_new():
                return True
        parked = closed is not None and closed.remaining.rest is Rest.PARKED
        return parked and not self._until_done and time.monotonic() >= (closed.again_s if closed is not None else 0.0)

    def _names_more(self, report: Report) -> bool:
        """Say whether an exporter is given that has got nothing of an ended run yet: its ledger may hold records."""
        return bool(self._named - report.exporters.keys())


def _changed_ns(folder: RunFolder) -> int:
    """Return when a segment was made or deleted last."""
    try:
        return os.stat(folder.segments_dir).st_mtime_ns
    except OSError:
        return 0
