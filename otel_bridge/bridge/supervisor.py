"""Serves many run folders of one directory: one thread reads all, and each exporter of each run has one more.

The plain bridge uses it for one folder, ``run``, ``serve`` and ``drain`` for many. A folder with
nothing left to do releases its writers, threads and ledger, and is opened again when something
arrives. An exception of a round does not end the thread. It is counted and reported once, and the
next round follows after a pause.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue

from otel_bridge.bridge.ingest.stray_traces import MayJoin
from otel_bridge.bridge.options import BridgeOptions
from otel_bridge.bridge.serving.active_runs import CLOSE_S, ActiveRuns
from otel_bridge.bridge.serving.run_outcome import RunStatus
from otel_bridge.bridge.serving.stall_watch import StallWatch
from otel_bridge.journal.folder import RunFolder, run_folders
from otel_bridge.records import Status
from otel_bridge.text.printable import shown

_SNAPSHOT_S = 0.1
"""Least seconds between two snapshots."""
_SNAPSHOT_COST = 4
"""Ratio of the pause between two snapshots to the duration of one."""
_POLL_COST = 2.0
"""Least ratio of the interval between the starts of two polls to the duration of one, with several active runs.

Polls that find nothing new take half of the time at most.
"""

_ALIVE_CHECK_S = 0.2
_NAP_S = 0.5
"""Most seconds of one sleep in `Wakeup.wait` without a limit.

A signal that another thread receives, or that comes just before the sleep, does not end the sleep:
Python runs its handler when the thread is back.
"""


@dataclass(frozen=True, slots=True)
class SupervisorState:
    """Holds the values of a host's own metrics.

    Attributes:
        runs_open: Number of active runs.
        runs_waiting: Number of runs that wait until another gives way.
        longest_wait_s: Seconds that the first of these has waited.
        heartbeat_age_s: Seconds since the thread that reads run folders served a run.
        failures: Rounds of that thread, and polls of single runs, that an exception ended.
    """

    runs_open: int
    runs_waiting: int
    longest_wait_s: float
    heartbeat_age_s: float
    failures: int


class Wakeup:
    """Wakes one sleeping thread, from any thread and from a signal handler that interrupts that very thread.

    ``threading.Event`` would block forever. A handler that sets it while its own thread is inside
    ``wait`` needs a lock that this thread holds. ``SimpleQueue.put`` is reentrant (Python
    documentation, ``queue``).
    """

    def __init__(self) -> None:
        self._notified: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        """Wake the sleeper; further calls have no effect until it has woken."""
        # One entry wakes as well as many, and a busy producer would fill the queue.
        if self._notified.empty():
            self._notified.put(None)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Sleep until `set` is called, for at most *timeout_s*, else without limit.

        Return whether it was, and clear that.
        """
        while True:
            try:
                self._notified.get(timeout=_NAP_S if timeout_s is None else timeout_s)
            except Empty:
                if timeout_s is None:
                    continue
                return False
            self.clear()
            return True

    def clear(self) -> None:
        """Forget earlier calls of `set`."""
        with contextlib.suppress(Empty):
            while True:
                self._notified.get_nowait()


class _Snapshots:
    """Keeps the status of every run, taken rarely, because thousands of runs take long. One thread takes, any reads."""

    def __init__(self) -> None:
        self.newest: dict[str, RunStatus] = {}
        self._due_s = float("-inf")

    def take(self, runs: ActiveRuns, *, now: bool = True) -> None:
        """Take the status of *runs*; without *now* only when it is due."""
        began_s = time.monotonic()
        # The pause grows with the cost, so that status takes a fifth of the thread at most.
        if now or began_s >= self._due_s:
            self.newest = runs.remaining()
            self._due_s = time.monotonic() + max(
                _SNAPSHOT_S, _SNAPSHOT_COST * (time.monotonic() - began_s)
            )


class _PollPace:
    """Determines when the runs are polled again. One thread.

    Args:
        poll_s: Seconds between the starts of two polls, at least.
    """

    def __init__(self, poll_s: float) -> None:
        self._least_s = poll_s
        self._every_s = poll_s
        self._polled_s = float("-inf")

    def wait_s(self) -> float:
        """Return the seconds until the next poll is due."""
        return max(self._polled_s + self._every_s - time.monotonic(), 0.0)

    def poll(self, runs: ActiveRuns) -> bool:
        """Poll *runs*; return whether there is more to do at once."""
        # From start to start: a long poll does not delay the next one by its own length again.
        self._polled_s = time.monotonic()
        has_more = runs.poll()
        took_s = time.monotonic() - self._polled_s
        self._every_s = max(self._least_s, _POLL_COST * took_s if len(runs) > 1 else 0)
        return has_more


class BridgeSupervisor:
    """Serves run folders until it is stopped. Its public methods may be called from any thread.

    Args:
        base: The directory of run folders; new ones are found as they are created.
        options: Options of their bridge.
        folders: Lists the folders to serve; by default all below *base*.
        until_done: Whether to end by itself when no folder has anything left to do (the plain
            bridge, ``drain``).
        may_join: Returns whether spans of one run may move to another, by their ids; ``None``: none
            do.
        log_line: Takes one line for the log, from any thread.
    """

    def __init__(
        self,
        base: Path,
        options: BridgeOptions,
        *,
        folders: Callable[[], Iterable[RunFolder]] | None = None,
        until_done: bool = False,
        may_join: MayJoin | None = None,
        log_line: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._options = options
        self._until_done = until_done
        self._print = log_line
        self._wake = Wakeup()
        self._stall_watch = StallWatch(options.stall_s, self._log_line)
        self._runs = ActiveRuns(
            base,
            folders or (lambda: run_folders(base)),
            options,
            until_done=until_done,
            may_join=may_join,
            wake=self._wake.set,
            log_line=self._log_line,
            stall_watch=self._stall_watch,
        )
        self._requests: deque[Callable[[], None]] = deque()
        self._stop_by_s: float | None = None
        self._ended = threading.Event()
        self._snapshots = _Snapshots()
        self._pace = _PollPace(options.poll_s)
        self._thread = threading.Thread(
            target=self.serve, name="otel-bridge", daemon=True
        )

    # --- for any thread ---------------------------------------------------------------------------
    def start(self) -> None:
        """Serve on a separate thread; raises `RuntimeError` if the machine allows no more."""
        self._thread.start()

    def notify(self) -> None:
        """Look for new folders and retry failed work, now."""
        self._request(self._runs.notify)

    def spare(self, pid: int) -> None:
        """Leave the end of process *pid* to `finish`, whose caller waits for the process and knows how it ended."""
        self._request(lambda: self._runs.spare(pid))

    def finish(self, status: Status) -> None:
        """End the processes that did not end themselves, also in folders found later.

        Waiting data is released.
        """
        self._request(lambda: self._runs.finish(status))

    def drain(self) -> None:
        """Release all waiting data.

        `wait` then returns when all is written, except for blocked exporters.
        """
        self._request(self._runs.drain)

    def progress(self) -> dict[str, RunStatus]:
        """Return the status of every run since the start, by run id.

        0.1 s old, older with thousands of runs.
        """
        return self._snapshots.newest

    def read_all(self, timeout_s: float) -> None:
        """Read everything that the processes have written so far, for at most about *timeout_s*.

        Returns too when the reading thread has died, or hangs for `CLOSE_S` more. Later rounds read
        the rest.
        """
        read = threading.Event()
        until_s = time.monotonic() + timeout_s

        def request() -> None:
            try:
                self._runs.read_all(until_s)
            finally:
                read.set()

        self._request(request)
        # Checked again and again: a thread that died answers no request.
        while not read.wait(_ALIVE_CHECK_S) and self.alive:
            if time.monotonic() >= until_s + CLOSE_S:
                return

    def wait(
        self,
        timeout_s: float,
        *,
        on_progress: Callable[[dict[str, RunStatus]], None] = lambda _: None,
    ) -> bool:
        """Wait until no folder has anything left to do: all is delivered and ended, or parked.

        Args:
            timeout_s: Most seconds to wait.
            on_progress: Called about five times a second.

        Returns:
            Whether that happened in time; ``True`` too once the thread has ended.
        """
        deadline = time.monotonic() + timeout_s
        while not self._ended.is_set():
            idle: list[bool] = []
            self._request(partial(self._answer_idle, idle))
            self._ended.wait(min(0.2, max(deadline - time.monotonic(), 0.0)))
            on_progress(self._snapshots.newest)
            if any(idle):
                return True
            if time.monotonic() >= deadline:
                return False
        return True

    def stop(self, deadline_s: float = CLOSE_S) -> dict[str, RunStatus]:
        """Commit, close every writer, release the locks; return what remains, by run id.

        A thread that hangs is left after the deadline and `CLOSE_S` more, which `alive` shows. May
        be called twice.

        Args:
            deadline_s: Seconds that writers may take to close; hanging ones are left.
        """
        self.request_stop(deadline_s)
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(deadline_s + CLOSE_S)
        return self._snapshots.newest

    def request_stop(self, deadline_s: float = CLOSE_S) -> None:
        """Request `stop` and return at once; safe in a signal handler."""
        # No lock: a signal handler may interrupt the very thread that holds it.
        self._stop_by_s = time.monotonic() + deadline_s
        self._wake.set()

    @property
    def hanging(self) -> list[str]:
        """Return the exporters whose writer did not close, so that the process must be ended by force."""
        return self._runs.hanging

    @property
    def alive(self) -> bool:
        """Return whether the thread of `start` runs.

        One that runs after `stop` hangs, and the process must be ended by force.
        """
        return self._thread.is_alive()

    def warnings(self) -> list[str]:
        """Return why runs are not read now, one line per reason; empty without a problem.

        A wait for files counts once it has lasted ``stall_s``: shorter ones are the usual turns of
        many runs. After a stop was requested the thread may stand still. May be called by any
        thread.
        """
        reasons = [] if self._stop_by_s is not None else self._stall_watch.warnings()
        rotation = self._runs.rotation
        wait_s = rotation.longest_wait_s()
        if rotation.limited and wait_s > self._options.stall_s:
            reasons.append(
                f"{len(rotation.waiting)} runs wait, the first for {wait_s:.0f} s, and no more files can be opened; "
                "raise the limit of open files (ulimit -n)"
            )
        return reasons

    def state(self) -> SupervisorState:
        """Return the values of the service's own metrics. May be called by any thread."""
        rotation = self._runs.rotation
        return SupervisorState(
            runs_open=len(self._runs),
            runs_waiting=len(rotation.waiting),
            longest_wait_s=rotation.longest_wait_s(),
            heartbeat_age_s=self._stall_watch.age_s(),
            failures=self._stall_watch.failures + self._runs.failures.count,
        )

    # --- the thread -------------------------------------------------------------------------------
    def serve(self) -> None:
        """Serve in this thread until stopped, or, with *until_done*, until nothing is left to do.

        Then close all runs. An exception ends only its round; an interrupt ends this call too.
        """
        has_more = False
        try:
            while self._stop_by_s is None:
                try:
                    has_more = self._round(has_more)
                    if self._until_done and self._runs.nothing_left():
                        break
                    self._stall_watch.round_done()
                    pause_s = 0.0
                    if not has_more:
                        pause_s = self._pace.wait_s()
                except Exception as exc:  # noqa: BLE001  # no error may end the only thread that reads
                    # What it left is read at the next poll that is due, not whenever a worker wakes
                    # this.
                    has_more = False
                    pause_s = self._stall_watch.round_failed(exc)
                if pause_s:
                    self._wake.wait(pause_s)
                # After the wait, before the round: what is set from now on shortens the next wait.
                self._wake.clear()
        finally:
            self._end()

    def _round(self, has_more: bool) -> bool:
        """Carry out requests, open and close runs, and poll when it is due; return whether more is to do at once.

        Raises what no single run is the cause of; `serve` counts it and goes on after a pause.

        Args:
            has_more: What the last round returned: then the runs are polled before that is due.
        """
        self._stall_watch.record()
        # Before runs are polled: what was requested applies to this round already.
        while self._requests:
            self._requests.popleft()()
            has_more = True
        has_more |= self._runs.allow_leave()
        has_more |= self._runs.find()
        if has_more or not self._pace.wait_s():
            has_more = self._pace.poll(self._runs)
        else:
            self._runs.write_reports()  # woken by a worker after progress
        self._snapshots.take(self._runs, now=False)
        return has_more

    def _end(self) -> None:
        """Close all runs; writers may take until the deadline of the stop.

        Never raise: callers of `wait` and `stop` would wait for a thread that has died. An error is
        logged, and what it left open ends with the process.
        """
        # There is no deadline when nothing was left to do, or after an interrupt.
        deadline_s = self._stop_by_s or time.monotonic() + CLOSE_S
        try:
            # Before the runs are closed too: closing may take long, and may fail.
            self._snapshots.take(self._runs)
            self._runs.close_all(deadline_s)
            self._snapshots.take(self._runs)
        except Exception as exc:  # noqa: BLE001  # callers that wait for the end must be woken
            self._log_line(f"the shutdown failed: {type(exc).__name__}: {exc}")
        finally:
            self._stall_watch.end()
            self._ended.set()

    def _request(self, request: Callable[[], None]) -> None:
        # Appended before the wake, or the thread could wake, find nothing and sleep on.
        self._requests.append(request)
        self._wake.set()

    def _answer_idle(self, answer: list[bool]) -> None:
        """Append to *answer* whether nothing is left to do, with a new status for the one who asks."""
        idle = self._runs.idle()
        if idle:
            self._snapshots.take(self._runs)
        answer.append(idle)

    def _log_line(self, line: str) -> None:
        """Write one line to the log, with control characters of producers made visible."""
        with contextlib.suppress(
            Exception
        ):  # a log that cannot be written must not end the thread
            self._print(shown(line))
