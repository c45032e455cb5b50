"""Sees to it that somebody delivers: a launcher, a bridge, or one started here."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from otel_bridge.emit.launch import start_bridge
from otel_bridge.emit.launcher import launcher_alive
from otel_bridge.emit.lines import say
from otel_bridge.errors import JournalError
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.locks import LockUnsupportedError, probe

_FIRST_PAUSE_S: Final = 5.0
_LONGEST_PAUSE_S: Final = 60.0
_HEARTBEAT_NS: Final = 60_000_000_000


class BridgeKeeper:
    """Starts a bridge when nobody holds the folder's lock. Its owner locks.

    Args:
        folder: The run folder.
        env: Environment for the bridge.
        hold: Append only: never start one.
    """

    def __init__(self, folder: RunFolder, env: Mapping[str, str], *, hold: bool) -> None:
        self._folder = folder
        self._env = env
        self._hold = hold
        self._not_before = self._settled_at = 0.0
        self._pause_s = _FIRST_PAUSE_S
        self._startable = True
        self._said = False

    def delivered_by(self) -> str | None:
        """Return who delivers now: ``launcher``, ``bridge``, or ``None`` for nobody."""
        if launcher_alive(self._env):
            return "launcher"
        return "bridge" if self._locked() else None

    def ensure(self) -> bool:
        """Start a bridge if nobody delivers; false: nobody will.

        One that ends within a minute again and again is started ever more seldom, at least once a minute.
        """
        if self.delivered_by() is not None:
            if time.monotonic() >= self._settled_at:
                self._not_before, self._pause_s = 0.0, _FIRST_PAUSE_S
            return True
        if self._hold:
            return False
        now = time.monotonic()
        if now < self._not_before:
            return self._startable
        self._not_before, self._pause_s = now + self._pause_s, min(2 * self._pause_s, _LONGEST_PAUSE_S)
        self._settled_at = now + _LONGEST_PAUSE_S
        try:
            start_bridge(self._folder, self._env)
        except JournalError as exc:
            self._say_once(str(exc))
            self._startable = False
        else:
            self._startable = True
        return self._startable

    def _locked(self) -> bool:
        try:
            return probe(self._folder.lock_path)
        except LockUnsupportedError:
            holder = self._folder.holder()
            return holder is not None and time.time_ns() - holder.heartbeat_unix_ns < _HEARTBEAT_NS
        except JournalError:
            return False

    def _say_once(self, reason: str) -> None:
        if not self._said:
            self._said = True
            say(f"{reason}; rows are kept, deliver them with: otel-bridge drain {self._folder.base}", always=True)
