"""Many run folders below one directory: one thread reads them all, one more for each exporter of each run.

Used by the plain bridge for one folder, by ``run``, ``serve`` and ``drain`` for many. A folder with nothing left to do
gives its writers, threads and ledger back and is opened again when something new comes.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from otel_bridge.bridge.database import set_aside
from otel_bridge.bridge.discovery import AGAIN_S, Closed, Discovery
from otel_bridge.bridge.exporters import by_exporter
from otel_bridge.bridge.options import BridgeOptions
from otel_bridge.bridge.rest import Remaining, Rest
from otel_bridge.bridge.run_bridge import RunBridge
from otel_bridge.bridge.sleeping import Sleepers, drained
from otel_bridge.bridge.wake import Wake
from otel_bridge.errors import LedgerDamagedError, OtelBridgeError
from otel_bridge.journal.folder import RunFolder, run_folders
from otel_bridge.records import Status

CLOSE_S: Final = 10.0
_FAILED_S: Final = 1.0
_SNAPSHOT_S: Final = 0.1


class Host:
    """Serves run folders until it is stopped. Its public methods may be called from any thread.

    Args:
        base: The directory of run folders; new ones are found as they come.
        options: How they are served.
        folders: Lists the folders that are ours; default: all below *base*.
        until_done: End by itself when no folder has anything left to do (the plain bridge, ``drain``).
        say: Takes one line for the log, from any thread.
    """

    def __init__(
        self,
        base: Path,
        options: BridgeOptions,
        *,
        folders: Callable[[], Iterable[RunFolder]] | None = None,
        until_done: bool = False,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._options = options
        self._until_done, self._say = until_done, say
        self._runs: dict[Path, RunBridge] = {}
        self._retry_s: dict[Path, float] = {}
        self._said: dict[Path, str] = {}
        self._wake = Wake()
        self._errands: deque[Callable[[], None]] = deque()
        self._stop_by_s: float | None = None
        self._ended = threading.Event()
        self._snapshot: dict[str, Remaining] = {}
        self._snapshot_s = self._polled_s = float("-inf")
        self._sleepers = Sleepers(options.idle_s)
        self._discovery = Discovery(
            folders or (lambda: run_folders(base)),
            self._runs,
            self._sleepers,
            named=by_exporter(options.exporters or {}),
            until_done=until_done,
        )
        self._draining = False
        self._hanging: list[str] = []
        self._spared_pid = 0
        self._finish_as: Status | None = None
        self._thread = threading.Thread(target=self.serve, name="otel-bridge", daemon=True)

    # --- for others ---------------------------------------------------------------------------------------------------
    def start(self) -> None:
        """Serve on a thread of its own."""
        self._thread.start()

    def poke(self) -> None:
        """Look for new folders and try what failed, now."""
        self._errand(self._poke)

    def spare(self, pid: int) -> None:
        """Leave the end of process *pid* to `finish`: whoever calls that has waited for it and knows how it ended."""
        self._errand(lambda: self._spare(pid))

    def finish(self, status: Status) -> None:
        """End the processes that did not end themselves, also in folders found later; what waits is let go."""
        self._errand(lambda: self._finish(status))

    def drain(self) -> None:
        """Let go of all that waits; `wait` then returns when all is written, but for blocked exporters."""
        self._errand(self._drain)

    def progress(self) -> dict[str, Remaining]:
        """Return where every run served since the start stands, by run id; at most 0.1 s old while it serves."""
        return self._snapshot

    def wait(self, timeout_s: float, *, on_progress: Callable[[dict[str, Remaining]], None] = lambda _: None) -> bool:
        """Wait until no folder has anything left to do: all is delivered and ended, or parked.

        Args:
            timeout_s: How long at most.
            on_progress: Called about five times a second.

        Returns:
            Whether that came in time.
        """
        deadline = time.monotonic() + timeout_s
        while not self._ended.is_set():
            idle: list[bool] = []
            self._errand(partial(self._say_idle, idle))
            self._ended.wait(min(0.2, max(deadline - time.monotonic(), 0.0)))
            on_progress(self._snapshot)
            if any(idle):
                return True
            if time.monotonic() >= deadline:
                return False
        return True

    def stop(self, deadline_s: float = CLOSE_S) -> dict[str, Remaining]:
        """Commit, close every writer, free the locks; return what remains, by run id.

        Args:
            deadline_s: How many seconds writers may take to close; those that hang are left.
        """
        self.request_stop(deadline_s)
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(deadline_s + CLOSE_S)
        return self._snapshot

    def request_stop(self, deadline_s: float = CLOSE_S) -> None:
        """Ask for `stop` and return at once; safe in a signal handler."""
        self._stop_by_s = time.monotonic() + deadline_s
        self._wake.set()

    @property
    def hanging(self) -> list[str]:
        """Exporters whose writer did not close; the process must be ended by force."""
        return self._hanging

    # --- the thread ---------------------------------------------------------------------------------------------------
    def serve(self) -> None:
        """Serve in this thread until stopped, or, with *until_done*, until nothing is left to do."""
        more = False
        try:
            while self._stop_by_s is None:
                more = self._round(more)
                if self._until_done and not self._runs and not self._discovery.finds_any():
                    break
                if not more:
                    self._wake.wait(max(self._polled_s + self._options.poll_s - time.monotonic(), 0.0))
                self._wake.clear()
        finally:
            self._close_all(self._stop_by_s or time.monotonic() + CLOSE_S)
            self._ended.set()

    def _round(self, more: bool) -> bool:
        now = time.monotonic()
        while self._errands:
            self._errands.popleft()()
            more = True
        if now >= self._discovery.next_s:
            for folder in self._discovery.find():
                self._open(folder)
            more = True
        if more or now - self._polled_s >= self._options.poll_s:
            self._polled_s = now
            more = False
            for path, run in list(self._runs.items()):
                more |= self._turn(path, run)
        else:
            for run in self._runs.values():  # woken by a lane that got on
                run.write_report()
        if now - self._snapshot_s >= _SNAPSHOT_S:
            self._take_snapshot()
        return more

    def _turn(self, path: Path, run: RunBridge) -> bool:
        """Serve one folder once; say whether there is more to do right away."""
        if self._retry_s.get(path, 0.0) > time.monotonic():
            run.write_report()
            return False
        try:
            more = run.turn()
        except LedgerDamagedError as exc:
            self._rebuild(run, exc)
            return True
        except Exception as exc:  # noqa: BLE001  # one bad run harms no other
            self._failed(path, exc)
            return False
        self._said.pop(path, None)
        run.write_report()
        if run.rest() is not Rest.BUSY:
            return self._end(run)
        if not more and not self._draining and self._sleepers.tired(run):
            remaining = run.remaining()
            self._runs.pop(path)
            self._hanging += self._sleepers.put(run, time.monotonic() + CLOSE_S)
            self._discovery.closed[path] = Closed(remaining, run.segments_read, float("inf"))
        return more

    def _end(self, run: RunBridge) -> bool:
        """Close a folder with nothing left to do; say whether it was opened again at once."""
        remaining = run.remaining()
        self._close(run, time.monotonic() + CLOSE_S)
        self._discovery.closed[run.folder.path] = Closed(remaining, run.segments_read, time.monotonic() + AGAIN_S)
        # The lock is free now: what came before that is found here, whoever comes after it finds the lock free.
        if remaining.rest in {Rest.DONE, Rest.PARKED} and run.segments_read.anything_new():
            return self._open(run.folder)
        return False

    def _open(self, folder: RunFolder) -> bool:
        def say(line: str) -> None:
            self._say(f"{folder.run_id}: {line}")

        lock = self._sleepers.take(folder.path)
        run = RunBridge(folder, self._options, wake=self._wake.set, say=say, lock=lock)
        try:
            run.open()
        except OtelBridgeError as exc:
            if self._said.get(folder.path) != str(exc):
                self._said[folder.path] = str(exc)
                say(str(exc))
            remaining = Remaining(folder.run_id, Rest.GONE, reason=str(exc))
            self._discovery.closed[folder.path] = Closed(remaining, None, time.monotonic() + AGAIN_S)
            return False
        self._discovery.closed.pop(folder.path, None)
        self._runs[folder.path] = run
        run.ending.spared_pid = self._spared_pid
        if self._finish_as is not None:
            run.ending.finish(self._finish_as)
        if self._draining:
            run.drain()
        return True

    def _rebuild(self, run: RunBridge, exc: LedgerDamagedError) -> None:
        """The ledger turned out to be damaged: set it aside and begin anew from the segments that remain."""
        self._say(f"{run.folder.run_id}: {exc}")
        self._close(run, time.monotonic() + CLOSE_S)
        try:
            aside = set_aside(run.folder.ledger_path)
            self._say(f"{run.folder.run_id}: it lies at {aside}, what segments remain are read again")
        except OtelBridgeError as failed:
            self._say(f"{run.folder.run_id}: {failed}")
        self._open(run.folder)

    def _failed(self, path: Path, exc: Exception) -> None:
        """Leave a folder alone for a moment; what failed is said once."""
        self._retry_s[path] = time.monotonic() + _FAILED_S
        text = f"{type(exc).__name__}: {exc}"
        if self._said.get(path) != text:
            self._said[path] = text
            known = isinstance(exc, OtelBridgeError)
            self._say(f"{path.name}: tried again: {exc if known else ''.join(traceback.format_exception(exc))}")

    def _close(self, run: RunBridge, deadline_s: float) -> None:
        self._runs.pop(run.folder.path, None)
        self._sleepers.forget(run.folder.path)
        try:
            self._hanging += run.close(deadline_s)
        except Exception as exc:  # noqa: BLE001  # the lock must be free, whatever the disk says
            self._say(f"{run.folder.run_id}: not closed well: {type(exc).__name__}: {exc}")
            run.hold.release()

    def _close_all(self, deadline_s: float) -> None:
        for run in self._runs.values():
            run.stop()
        self._take_snapshot()
        for run in list(self._runs.values()):
            remaining = run.remaining()
            self._close(run, deadline_s)
            self._discovery.closed[run.folder.path] = Closed(
                replace(remaining, exporters=run.progress()), None, float("inf")
            )
        self._sleepers.release()
        self._take_snapshot()

    def _take_snapshot(self) -> None:
        self._snapshot_s = time.monotonic()
        closed = {one.remaining.run_id: one.remaining for one in self._discovery.closed.values()}
        self._snapshot = closed | {run.folder.run_id: run.remaining() for run in self._runs.values()}

    def _errand(self, errand: Callable[[], None]) -> None:
        self._errands.append(errand)
        self._wake.set()

    def _poke(self) -> None:
        self._discovery.try_again()
        self._retry_s.clear()
        for run in self._runs.values():
            run.poke()

    def _say_idle(self, answer: list[bool]) -> None:
        over = all(map(drained, self._runs.values())) if self._draining else not self._runs
        answer.append(over and not self._discovery.finds_any())

    def _drain(self) -> None:
        self._draining = self._discovery.wake_sleepers = True
        self._discovery.try_again(gone_only=True)
        self._retry_s.clear()
        for run in self._runs.values():
            run.drain()

    def _spare(self, pid: int) -> None:
        self._spared_pid = pid
        for run in self._runs.values():
            run.ending.spared_pid = pid

    def _finish(self, status: Status) -> None:
        self._finish_as = status
        for run in self._runs.values():
            run.ending.finish(status)
