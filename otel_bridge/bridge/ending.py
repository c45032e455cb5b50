"""How a run ends at its bridge: what was asked for, who is still waited for, when what waits for more is let go."""

from __future__ import annotations

import time

from otel_bridge.bridge.lives import Lives
from otel_bridge.records import Status


class Ending:
    """What a run's bridge was asked to end, and how far that is. One thread.

    Args:
        closing: Nothing comes after the last living process (``drain``).

    Attributes:
        closing: The same, now: after `finish` it holds until the end that was asked for is written.
        draining: What waits is let go though processes live; what they say later comes late.
        let_go: It was let go, and nothing has come since.
        asked: The status that ``otel-bridge finish`` asked the run to end with, until it has.
        spared_pid: The process whose end is left to `finish`; 0: none.
    """

    def __init__(self, *, closing: bool) -> None:
        self._always_closing = closing
        self.closing = closing
        self.draining = self.let_go = False
        self.asked: Status | None = None
        self.spared_pid = 0
        self._finish_as: Status | None = None
        self._finished = False

    def ask(self, status: Status) -> None:
        """End the run as a whole, at the word of a person: `finish`, and what waits is let go again."""
        self.asked, self.let_go = status, False
        self.finish(status)

    def finish(self, status: Status) -> None:
        """End every process that has not ended, with *status*, once all is read; what waits is let go, the run ends.

        A process that died without a word was killed, whatever *status*; but for the one that is spared.
        """
        self._finish_as = status

    def end_processes(self, lives: Lives) -> None:
        """Do what `finish` asked for; all is read."""
        if self._finish_as is not None:
            lives.look(time.time_ns())
            lives.end_open(self._finish_as, self.spared_pid)
            self._finish_as, self.spared_pid, self.closing, self._finished = None, 0, True, True

    def waits_for(self, lives: Lives) -> bool:
        """Say whether a process may still say something that counts; after `finish` those that live on may not."""
        return lives.unsaid() or bool(not self._finished and lives.living())

    def due(self, lives: Lives) -> bool:
        """Say whether what waits can be let go now."""
        return not self.let_go and (self.draining or (self.closing and not self.waits_for(lives)))

    def done(self) -> None:
        """What waits was let go."""
        self.let_go = True
        if self.asked is not None:
            # Whoever logs on opens the run again, as after any end.
            self.asked, self._finished, self.closing = None, False, self._always_closing
