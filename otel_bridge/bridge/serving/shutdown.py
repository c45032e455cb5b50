"""Hold what a run's bridge was asked to end, which processes it waits for, and when waiting data is released."""

from __future__ import annotations

import time

from otel_bridge.bridge.ingest.process_monitor import ProcessMonitor
from otel_bridge.records import Status


class ShutdownState:
    """What a run's bridge was asked to end, and how far that is. One thread.

    Args:
        closing: Nothing comes after the last living process (``drain``).

    Attributes:
        closing: The same, now: after `finish` it holds until the end that was asked for is written.
        draining: What waits is released though processes live; what they say later comes late.
        paused: It was released, and nothing has come since.
        asked: The status that ``otel-bridge finish`` asked the run to end with, until it has.
        spared_pid: The process whose end is left to `finish`; 0: none.
    """

    def __init__(self, *, closing: bool) -> None:
        self._always_closing = closing
        self.closing = closing
        self.draining = self.paused = False
        self.asked: Status | None = None
        self.spared_pid = 0
        self._finish_as: Status | None = None
        self._finished = False

    def on_data(self) -> None:
        """Note that data came: what waits for more is to be released again."""
        self.paused = False

    def drain(self) -> None:
        """Release what waits once everything is read, though processes live."""
        self.draining = True

    def request(self, status: Status) -> None:
        """End the run as a whole, at the word of a person: `finish`, and what waits is released again."""
        self.asked, self.paused = status, False
        self.finish(status)

    def spare(self, pid: int) -> None:
        """Leave the end of process *pid* to `finish`; 0: of none."""
        self.spared_pid = pid

    def finish(self, status: Status) -> None:
        """End every process that has not ended, with *status*, once all is read; what waits is released, the run ends.

        A process that died without a word was killed, whatever *status*; but for the one that is spared.
        """
        self._finish_as = status

    def end_processes(self, processes: ProcessMonitor) -> None:
        """Do what `finish` asked for; all is read."""
        if self._finish_as is not None:
            processes.look(time.time_ns())
            processes.end_open(self._finish_as, self.spared_pid)
            self._finish_as, self.spared_pid, self.closing, self._finished = None, 0, True, True

    def waits_for(self, processes: ProcessMonitor) -> bool:
        """Return whether a process may still say something that counts; after `finish` those that live on may not."""
        return processes.has_unreported_ends() or bool(not self._finished and processes.living())

    def due(self, processes: ProcessMonitor) -> bool:
        """Return whether what waits can be released now."""
        return not self.paused and (self.draining or (self.closing and not self.waits_for(processes)))

    def done(self) -> None:
        """What waits was released."""
        self.paused = True
        if self.asked is not None:
            # The one that logs on opens the run again, as after any end.
            self.asked, self._finished, self.closing = None, False, self._always_closing
