"""Opens, polls, puts to sleep and closes the runs of a host. For the host's thread.

No run can end that thread. An exception of a run is that run's failure, retried with backoff while
others continue.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from otel_bridge.bridge.exporter_environment import by_exporter
from otel_bridge.bridge.ingest.eviction import Fullness
from otel_bridge.bridge.ingest.stray_traces import MayJoin, StrayTraces
from otel_bridge.bridge.ledger.database import set_aside
from otel_bridge.bridge.options import BridgeOptions
from otel_bridge.bridge.run_bridge import RunBridge
from otel_bridge.bridge.serving.discovery import AGAIN_S, ClosedRun, Discovery
from otel_bridge.bridge.serving.process_limits import (
    DescriptorShares,
    descriptor_limit,
    exhausted,
)
from otel_bridge.bridge.serving.rotation import Rotation
from otel_bridge.bridge.serving.run_failures import RunFailures
from otel_bridge.bridge.serving.run_outcome import Outcome, RunStatus
from otel_bridge.bridge.serving.stall_watch import StallWatch
from otel_bridge.errors import (
    FolderLockedError,
    FormatVersionError,
    JournalError,
    LedgerDamagedError,
    OtelBridgeError,
)
from otel_bridge.journal.folder import RunFolder
from otel_bridge.records import Status

CLOSE_S = 10.0
"""Seconds that the writers of a run may take to close; a tracker that hangs must not hold its place."""
CHECK_S = 60.0
"""Seconds between two checks of an idle run: one of its processes may have died, or been silent for
too long."""
_ROUND_S = 0.25
"""Most seconds in which a round opens runs, and in which it closes some, because active runs wait
meanwhile."""
_FILES_S = 0.5
"""Pause before a run is opened again after no more files could be opened."""


@dataclass(frozen=True, slots=True)
class _Leaving:
    """Holds a run whose writers were requested to close.

    Attributes:
        run: The run, which is not active any more, and whose lock this process holds.
        by_s: `time.monotonic` at which it is closed, even if its writers have not closed.
    """

    run: RunBridge
    by_s: float


class ActiveRuns:
    """Owns the active runs of a host. It has a round, the requests of the host, and what a run becomes after it.

    Fourteen attributes, because a run moves between its parts: it is found, waits in the rotation,
    runs, gives way, and is idle or has failed; only this class knows all of these places.

    Args:
        base: The directory of their folders.
        folders: Lists the folders to serve.
        options: Options of their bridge.
        until_done: Whether a run that is closed with something left to do stays closed.
        may_join: Returns whether spans of one run may move to another, by their ids; ``None``: none
            do.
        wake: Called from any thread after progress of a run.
        log_line: Takes one line for the log.
        stall_watch: Gets a sign of life with each run.

    Attributes:
        hanging: Exporters whose writer did not close.
        failures: Failures of single runs.
        rotation: The queue of runs that wait to be active.
    """

    def __init__(
        self,
        base: Path,
        folders: Callable[[], Iterable[RunFolder]],
        options: BridgeOptions,
        *,
        until_done: bool,
        may_join: MayJoin | None,
        wake: Callable[[], None],
        log_line: Callable[[str], None],
        stall_watch: StallWatch,
    ) -> None:
        self._until_done = until_done
        self._log_line = log_line
        self._stall_watch = stall_watch
        self._open_bridge = partial(
            RunBridge.open,
            options=options,
            wake=wake,
            # One for all runs: counting takes long, and the limit is that of the directory.
            fullness=Fullness(base, options),
        )
        self._strays = None
        if may_join is not None:
            self._strays = StrayTraces(may_join, self._reopen)
        shares = DescriptorShares.of(descriptor_limit())
        self._runs: dict[Path, RunBridge] = {}
        self._leaving: dict[Path, _Leaving] = {}
        self.rotation = Rotation(options.max_open_runs or shares.runs, options.idle_s)
        self.failures = RunFailures(log_line)
        self.hanging: list[str] = []
        self._max_locks = shares.locks
        self._discovery = Discovery(
            folders=folders,
            served=self._serves,
            exporters=by_exporter(options.exporters or {}).keys(),
            until_done=until_done,
            forget_deleted=self.failures.forget_deleted,
        )
        self._draining = False
        self._requests: list[Callable[[RunBridge], None]] = []

    def __len__(self) -> int:
        return len(self._runs) + len(self._leaving)

    def __iter__(self) -> Iterator[RunBridge]:
        """Return the active runs."""
        return iter(list(self._runs.values()))

    # --- one round --------------------------------------------------------------------------------
    def find(self) -> bool:
        """Look for folders that need work, when it is due, and open the next ones.

        Return whether any was opened.
        """
        if time.monotonic() >= self._discovery.next_s:
            for folder in self._discovery.find():
                self.rotation.enqueue(folder)
        return self._fill()

    def poll(self) -> bool:
        """Poll each active run once; return whether there is more to do at once.

        Raises nothing of a run: `_poll_run` makes each exception the failure of that run.
        """
        has_more = False
        # A copy: a polled run may leave the list.
        for path, run in list(self._runs.items()):
            self._stall_watch.record(run.folder.run_id)
            has_more |= self._poll_run(path, run)
        self._stall_watch.record()
        return self._move_strays() or has_more

    def read_all(self, until_s: float) -> None:
        """Read what exists now, until `time.monotonic` is *until_s*.

        Before the ends that a launcher appends, so that no run ends before its last spans. Strays
        are moved in any case, or a run would end without spans that another one received.
        """
        self._discovery.try_again()
        self.find()
        while (
            self.poll() or self._move_strays(now=True)
        ) and time.monotonic() < until_s:
            self.find()

    def write_reports(self) -> None:
        """Write the reports that are due; an error is the failure of its run alone."""
        for path, run in self._runs.items():
            try:
                run.write_report()
            except Exception as exc:  # noqa: BLE001, PERF203  # a failing run must not harm the others
                self.failures.failed(path, exc)

    def allow_leave(self) -> bool:
        """Close runs whose writers have closed, and let more runs give way.

        Return whether any was closed. A writer that hangs holds its run for `CLOSE_S` only; then
        the run is closed all the same, and its exporter is in `hanging`.
        """
        until_s = time.monotonic() + _ROUND_S
        has_closed = False
        for leaving in list(self._leaving.values()):
            # Only then is the close short, for which all other runs wait.
            if leaving.run.stopped() or time.monotonic() >= leaving.by_s:
                self._close(leaving.run)
                has_closed = True
                if time.monotonic() >= until_s:
                    break
        # With half of them on the way out, more would leave nothing that is served.
        if not self._leaving_many():
            for run in self.rotation.to_give_way(self, leaving=len(self._leaving)):
                self._leave(run)
        return has_closed

    def nothing_left(self) -> bool:
        """Return whether no folder is open, waits in the queue, or needs work."""
        return not (
            self._runs
            or self._leaving
            or self.rotation.waiting
            or self._discovery.finds_any()
        )

    def idle(self) -> bool:
        """Return whether nothing is left to do.

        While the host drains, whether nothing can be delivered now: living processes and blocked
        exporters do not count, since a shutdown must not wait for them.
        """
        if not self._draining:
            return self.nothing_left()
        if self._leaving or self.rotation.waiting:
            return False
        is_drained = all(run.drained() for run in self._runs.values())
        return is_drained and not self._discovery.finds_any()

    # --- requests to the host ---------------------------------------------------------------------
    def notify(self) -> None:
        """Look for folders, and retry failed work, at once."""
        self._discovery.try_again()
        self.failures.try_all()
        for run in self._runs.values():
            run.workers.notify(retry=True)

    def drain(self) -> None:
        """Release all waiting data, including that of idle runs, which wake for that.

        Folders that could not be opened are tried once more: a lack of space may be over.
        """
        self._draining = True
        self._discovery.wake_idle_runs()
        self._discovery.try_again(gone_only=True)
        self.failures.try_all()
        self._request(RunBridge.drain)

    def spare(self, pid: int) -> None:
        """Leave the end of process *pid* to `finish`."""
        self._request(lambda run: run.shutdown.spare(pid))

    def finish(self, status: Status) -> None:
        """End the processes that did not end themselves, also in folders that are found later."""
        self._request(lambda run: run.shutdown.finish(status))

    def _request(self, request: Callable[[RunBridge], None]) -> None:
        """Make *request* of every run, also of those that are opened later."""
        self._requests.append(request)
        for run in self._runs.values():
            request(run)

    def remaining(self) -> dict[str, RunStatus]:
        """Return the status of every run that was served since the start, by run id.

        Of a closed run as it was when it was closed. One whose ledger cannot be read now has that as
        its reason: its polls fail too, and the other runs must be shown.
        """
        statuses: dict[str, RunStatus] = {}
        for closed in self._discovery.closed.values():
            statuses[closed.remaining.run_id] = closed.remaining
        for run in self._open_runs():
            run_id = run.folder.run_id
            try:
                statuses[run_id] = run.remaining()
            except JournalError as exc:
                reason = str(exc)
                statuses[run_id] = RunStatus(run_id, Outcome.BUSY, reason=reason)
        return statuses

    def close_all(self, deadline_s: float) -> None:
        """Close every run until `time.monotonic` is *deadline_s*, and release all locks.

        All writers are asked first, so that they close beside each other. Runs that still wait are
        reported as unread. A run that fails to close is a failure of that run, and its lock is
        released.
        """
        for run in self._runs.values():
            run.stop()
        runs = self._open_runs()
        self._runs.clear()
        self._leaving.clear()
        for run in runs:
            try:
                remaining = run.remaining()
                self.hanging += run.close(deadline_s)
                remaining = replace(remaining, exporters=run.workers.states())
                self._put_off(run.folder, remaining, float("inf"))
            except Exception as exc:  # noqa: BLE001, PERF203  # the locks of the others must be released
                self._close_failed(run, exc)
        for folder, _ in self.rotation.waiting.values():
            if folder.path not in self._discovery.closed:
                remaining = RunStatus(folder.run_id, Outcome.BUSY, unread=True)
                self._put_off(folder, remaining, float("inf"))
        for closed in self._discovery.closed.values():
            closed.release()

    # --- inside -----------------------------------------------------------------------------------
    def _open_runs(self) -> list[RunBridge]:
        """Return the active runs and those whose writers close."""
        leaving_runs = [leaving.run for leaving in self._leaving.values()]
        return [*leaving_runs, *self._runs.values()]

    def _serves(self, path: Path) -> bool:
        return (
            path in self._runs or path in self._leaving or path in self.rotation.waiting
        )

    def _leaving_many(self) -> bool:
        return 2 * len(self._leaving) > len(self._runs) > 1

    def _fill(self) -> bool:
        """Open runs of the queue while there is room and time; return whether any was opened.

        For `_ROUND_S` at most: opening a run takes milliseconds, in which no active run is polled.
        """
        opened = False
        until_s = time.monotonic() + _ROUND_S
        while time.monotonic() < until_s:
            folder = self.rotation.take_next(len(self))
            if folder is None:
                break
            self._stall_watch.record(folder.run_id)
            opened |= self._open(folder)
        return opened

    def _move_strays(self, *, now: bool = False) -> bool:
        """Move spans to the runs of their rollouts; return whether any were moved.

        ``False`` too when this host never moves spans, as the bridge of one run.
        """
        if self._strays is None:
            return False
        readers = {run.folder.run_id: run.reader for run in self._runs.values()}
        owners = self._strays.move(readers, now=now)
        for run in self._runs.values():
            if run.folder.run_id in owners:
                run.on_data()
        return bool(owners)

    def _poll_run(self, path: Path, run: RunBridge) -> bool:
        """Poll one folder once; return whether there is more to do at once.

        ``False`` after an error, which is logged and counted, and for a run that waits since an
        error. A damaged ledger is replaced at once, because no later try would find it sound.
        """
        try:
            if not self.failures.due(path):
                run.write_report()
                return False
            return self._served(path, run, run.poll())
        except LedgerDamagedError as exc:
            self._rebuild(run, exc)
            return True
        except Exception as exc:  # noqa: BLE001  # a failing run must not harm the others
            self.failures.failed(path, exc)
            if exhausted(exc):
                self.rotation.files_ran_out(len(self))
            return False

    def _served(self, path: Path, run: RunBridge, has_more: bool) -> bool:
        """Let a polled run leave if it ended or may sleep; return whether there is more to do.

        While the host drains, a drained run makes room for waiting ones, which are drained next.
        """
        self.failures.works(path)
        run.write_report()
        if run.outcome() is not Outcome.BUSY:
            self._leave(run)
            return True
        if self._draining:
            sleeps = bool(self.rotation.waiting) and run.drained()
        else:
            sleeps = not has_more and self.rotation.may_sleep(run)
        if sleeps:
            self._leave(run)
        return has_more

    def _open(self, folder: RunFolder) -> bool:
        """Open the next folder of the queue.

        Return whether it was opened. A lock of another bridge or another format is expected: tried
        again after `AGAIN_S`, and logged once, without a count. Any other error is a failure of
        that run alone, tried again with backoff. Without free files the run keeps its place at the
        head of the queue.
        """
        closed = self._discovery.closed.get(folder.path)
        try:
            run = self._open_bridge(
                folder,
                log_line=lambda line: self._log_line(f"{folder.run_id}: {line}"),
                lock=None if closed is None else closed.wake(),
            )
        except (FolderLockedError, FormatVersionError) as exc:
            if (
                not self._until_done
            ):  # the plain bridge and `drain` report the reason when they end
                self.failures.report(folder.path, f"{folder.run_id}: {exc}")
            self._put_off(folder, _gone(folder, exc), AGAIN_S)
            return False
        except Exception as exc:  # noqa: BLE001  # the other runs are served in any case
            if exhausted(exc):
                self._files_ran_out(folder)
            else:
                self._failed(folder, exc)
            return False
        # Its last status is out of date from now on.
        self._discovery.closed.pop(folder.path, None)
        self._runs[folder.path] = run
        self.rotation.opened(folder.path)
        # A request holds for runs found later too, or a drain would miss those that waited.
        for request in self._requests:
            request(run)
        self._move_strays(
            now=True
        )  # before a run with nothing else to do is closed again
        return True

    def _reopen(self, folder: RunFolder) -> None:
        """Put a closed run in the queue, unless it is active or waits already."""
        if not self._serves(folder.path):
            self.rotation.enqueue(folder)

    def _failed(self, folder: RunFolder, exc: Exception) -> None:
        """Leave *folder* alone for a while after a failure, which is counted and logged."""
        wait_s = self.failures.failed(folder.path, exc)
        self._put_off(folder, _gone(folder, exc), wait_s)

    def _put_off(self, folder: RunFolder, remaining: RunStatus, wait_s: float) -> None:
        """Leave *folder*, whose status is *remaining*, alone for *wait_s*."""
        self._discovery.closed[folder.path] = ClosedRun(
            remaining, None, time.monotonic() + wait_s
        )

    def _files_ran_out(self, folder: RunFolder) -> None:
        """Keep the run's position in the queue, and allow fewer active runs."""
        self.rotation.enqueue(folder, first=True)
        if not self.rotation.limited:
            self._log_line(
                f"{folder.run_id}: no more files can be opened with {len(self)} active runs; "
                "fewer are active at a time now, raise the limit of open files (ulimit -n)"
            )
        self.rotation.files_ran_out(len(self), pause_s=_FILES_S)

    def _leave(self, run: RunBridge) -> None:
        """Ask the writers of a run to close; `_close` follows once they have, or after `CLOSE_S`."""
        run.stop()
        if self._strays is not None:
            self._strays.closed(run.folder, run.reader)
        self._runs.pop(run.folder.path, None)
        self._leaving[run.folder.path] = _Leaving(run, time.monotonic() + CLOSE_S)

    def _close(self, run: RunBridge) -> None:
        """Close a run that left, without a further wait for its writers: it has ended, or is idle from now on.

        If that fails, the run is closed as far as possible, its lock is released, and its folder is
        tried again later.
        """
        path = run.folder.path
        del self._leaving[path]
        self.rotation.closed(path)
        self._stall_watch.record(run.folder.run_id)
        try:
            remaining = run.remaining()
            if remaining.outcome is Outcome.BUSY:
                self._make_idle(run, remaining)
            else:
                self._end(run, remaining)
        except Exception as exc:  # noqa: BLE001  # a failing run must not harm the others
            self._close_failed(run, exc)

    def _end(self, run: RunBridge, remaining: RunStatus) -> None:
        """Close a folder with nothing left to do.

        Data that arrived meanwhile puts the folder in the queue again.
        """
        self.hanging += run.close(time.monotonic())
        read = run.segments_read
        again_s = time.monotonic() + AGAIN_S
        self._discovery.closed[run.folder.path] = ClosedRun(remaining, read, again_s)
        # The lock is free now. Data from before that is found here; a process that comes later
        # finds the lock free.
        is_ours = remaining.outcome in {Outcome.DONE, Outcome.PARKED}
        if is_ours and read.anything_new():
            self.rotation.enqueue(run.folder, first=True)

    def _make_idle(self, run: RunBridge, remaining: RunStatus) -> None:
        """Close a run that may continue. The idle runs take its lock, if they may hold one more, and wake it.

        A run that gave way with something left to do goes to the end of the queue.
        """
        # Asked before the close, which discards what is needed to answer. A run that was about to
        # sleep when the host began to drain was not drained: it wakes for that.
        is_drained = self._draining and run.drained()
        is_finished = is_drained or (not self._draining and run.has_nothing_to_do())
        # Each lock is an open file, of which a process may have few.
        locks = sum(closed.holds_lock() for closed in self._discovery.closed.values())
        keeps_lock = locks < self._max_locks
        self.hanging += run.close(time.monotonic(), keep_lock=keeps_lock)
        self._discovery.closed[run.folder.path] = ClosedRun(
            remaining,
            run.segments_read,
            time.monotonic() + CHECK_S,
            is_idle=True,
            lease=run.lease if keeps_lock else None,
            drained=is_drained,
        )
        if self._until_done or not is_finished:
            self.rotation.enqueue(run.folder)

    def _close_failed(self, run: RunBridge, exc: Exception) -> None:
        """Close what a failed close left open, and try the folder again later.

        The second close has nothing left to wait for; its own errors are those that are reported
        now.
        """
        with contextlib.suppress(Exception):
            run.close(time.monotonic())
        self._failed(run.folder, exc)

    def _rebuild(self, run: RunBridge, exc: LedgerDamagedError) -> None:
        """Set the damaged ledger of *run* aside, and open the run again from the segments that remain.

        If the ledger cannot be renamed, that is logged, and opening the run fails in the usual way.
        """
        folder = run.folder
        self._log_line(f"{folder.run_id}: {exc}")
        self._runs.pop(folder.path, None)
        self.rotation.closed(folder.path)
        # SQLite would go on in a renamed file that a connection has open.
        try:
            self.hanging += run.close(time.monotonic() + CLOSE_S)
        except Exception as failed:  # noqa: BLE001  # its files are closed and its lock is released all the same
            self._log_line(f"{folder.run_id}: closing failed: {failed}")
        try:
            aside = set_aside(folder.ledger_path)
            self._log_line(
                f"{folder.run_id}: the ledger was renamed to {aside}, the remaining segments are read again"
            )
        except OtelBridgeError as failed:
            self._log_line(f"{folder.run_id}: {failed}")
        self._open(folder)


def _gone(folder: RunFolder, exc: Exception) -> RunStatus:
    """Return the status of a run that cannot be served, with *exc* as the reason."""
    return RunStatus(folder.run_id, Outcome.GONE, reason=str(exc))
