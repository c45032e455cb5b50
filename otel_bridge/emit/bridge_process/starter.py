"""Starter that ensures a running bridge: an existing one, the launcher, or a new process."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping

from otel_bridge.emit.bridge_process.shared_bridge import SharedBridge, log_bytes
from otel_bridge.emit.bridge_process.spawn import start_bridge
from otel_bridge.emit.config.child_env import launcher_alive
from otel_bridge.emit.console import notify
from otel_bridge.errors import JournalError
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.locks import LockUnsupportedError, probe
from otel_bridge.text.command_line import command_line

_FIRST_PAUSE_S = 5.0
_LONGEST_PAUSE_S = 60.0
_HEARTBEAT_NS = 60_000_000_000
_LOADING_S = 60.0
"""Longest time in which a bridge may load its packages on a slow machine before it counts as failed."""
_LOCK_S = 1.0
"""Longest time from a bridge's first log line until it holds the lock."""
_POLL_S = 0.02


class _StartPauses:
    """Spaces the starts of a bridge that ends again and again: at growing intervals of at most a minute."""

    def __init__(self) -> None:
        self._pause_s = _FIRST_PAUSE_S
        self._not_before = 0.0
        self._settled_at = 0.0

    def settle(self, now: float) -> None:
        """Reset the pauses where a bridge runs, and has lasted a minute: not one that soon ends again."""
        if now >= self._settled_at:
            self._not_before = 0.0
            self._pause_s = _FIRST_PAUSE_S

    def begin(self, now: float) -> bool:
        """Return whether a bridge may be started now, and pause after this start.

        False within the pause after the last one: 5 s, doubled with each start up to a minute.
        """
        if now < self._not_before:
            return False
        self._not_before = now + self._pause_s
        self._settled_at = now + _LONGEST_PAUSE_S
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        return True


class BridgeStarter:
    """Starts a bridge when no process holds the folder's lock. Not thread-safe: its owner locks.

    Args:
        folder: The run folder.
        env: Environment for the bridge.
        hold: Whether records are only appended: never start a bridge.
        python: Interpreter of another environment for the bridge; ``None``: this process's own.
        shared: Bridge of several runs, which is tried first; ``None``: a bridge for this run alone.
    """

    def __init__(
        self,
        folder: RunFolder,
        env: Mapping[str, str],
        *,
        hold: bool,
        python: str | None = None,
        shared: SharedBridge | None = None,
    ) -> None:
        self._folder = folder
        self._env = env
        self._hold = hold
        self._python = python
        self._shared = shared
        self._shared_s = float("-inf")
        self._pauses = _StartPauses()
        self._startable = True
        self._notified = False
        self._started_s = float("-inf")
        self._logged = -1

    def delivered_by(self) -> str | None:
        """Return the process that delivers now: ``launcher``, ``bridge``, or ``None``."""
        if launcher_alive(self._env):
            return "launcher"
        if self._locked():
            return "bridge"
        return None

    def goes_on(self) -> str | None:
        """Return the process that continues to deliver after this one ends.

        ``launcher``, ``bridge``, or ``None``. A bridge that was started here and is still loading
        counts. A bridge that has written to its log without holding the lock has ended; it gets a
        second between the line and the lock. A process that refuses the run's ledger delivers
        nothing, even while it holds the lock.
        """
        if self._folder.ledger_problem():
            return None
        deadline = time.monotonic() + _LOCK_S
        while (
            by := self.delivered_by()
        ) is None and time.monotonic() - self._started_s < _LOADING_S:
            if log_bytes(self._folder) == self._logged:
                return "bridge"
            if time.monotonic() >= deadline:
                return None
            time.sleep(_POLL_S)
        return by

    def ensure(self) -> bool:
        """Start a bridge if no process delivers; return whether a process delivers or will deliver.

        A bridge that ends within a minute is restarted after a pause. False where records are only
        kept, where the folder is gone, and where no process can be started, which is printed once;
        it never raises.
        """
        if self.delivered_by() is not None:
            self._shared_s = float("-inf")
            self._pauses.settle(time.monotonic())
            return True
        # A folder that was moved: a bridge has no place for its log.
        if self._hold or not self._folder.exists():
            return False
        now = time.monotonic()
        if not self._pauses.begin(now):
            return self._startable
        self._started_s = now
        # Before the start: a log that has grown while the lock is free shows that the bridge ended.
        self._logged = log_bytes(self._folder)
        try:
            self._start()
        except JournalError as exc:
            # Rows are kept all the same; `ensure` tries again after the pause.
            self._notify_once(str(exc))
            self._startable = False
            self._started_s = float("-inf")
        else:
            self._startable = True
        return self._startable

    def _start(self) -> None:
        """Start a bridge.

        One for this run alone where the shared one did not take the run the last time. Then it
        could not: its notes cannot be written, or it ended.

        Raises:
            JournalError: No process can be started.
        """
        now = time.monotonic()
        if self._shared is not None and now - self._shared_s > _LONGEST_PAUSE_S:
            self._shared_s = now
            # No locks on this file system, no space for the note.
            with contextlib.suppress(JournalError):
                self._shared.serve(self._folder)
                return
        start_bridge(self._folder, self._env, python=self._python)

    def _locked(self) -> bool:
        """Return whether a bridge holds the folder; false where its lock cannot be read.

        False starts one bridge too many at worst, which exits by itself; true would leave the run
        without one.
        """
        try:
            return probe(self._folder.lock_path)
        except LockUnsupportedError:
            # Without record locks the age of the holder's heartbeat decides.
            holder = self._folder.holder()
            return (
                holder is not None
                and time.time_ns() - holder.heartbeat_unix_ns < _HEARTBEAT_NS
            )
        except JournalError:
            return False

    def _notify_once(self, reason: str) -> None:
        if not self._notified:
            self._notified = True
            drain = command_line("drain", self._folder.base)
            notify(f"{reason}; rows are kept, deliver them with: {drain}", always=True)
