"""Holds what a run's bridge was requested to end, which processes it waits for, and when waiting data is released."""

from __future__ import annotations

import time

from otel_bridge.bridge.ingest.process_monitor import ProcessMonitor
from otel_bridge.records import Status


class ShutdownState:
    """Holds the shutdown requests of a run's bridge, and their progress. One thread.

    Args:
        closing: Whether nothing comes after the last living process (``drain``).

    Attributes:
        closing: See *Args*; ``True`` too once requested ends are written, of `request` until `done`.
        draining: Whether waiting data is released though processes live; their later data arrives
            late.
        paused: Whether waiting data was released, and nothing has arrived since.
        requested_status: Status with which ``otel-bridge finish`` ends the run; ``None`` once that
            is done.
        spared_pid: Process whose end is left to `finish`; 0 for none.
        over_since_s: `time.monotonic` since which the run is over but for its delivery; ``None``
            while more may come.
    """

    def __init__(self, *, closing: bool) -> None:
        self._always_closing = closing
        self.closing = closing
        self.draining = False
        self.paused = False
        self.requested_status: Status | None = None
        self.spared_pid = 0
        self.over_since_s: float | None = None
        self._finish_as: Status | None = None
        self._finished = False

    def on_data(self) -> None:
        """Mark that data arrived: waiting data must be released again."""
        self.paused = False

    def drain(self) -> None:
        """Release waiting data once everything is read, though processes live."""
        self.draining = True

    def request(self, status: Status) -> None:
        """End the whole run at a person's request: `finish`, and release waiting data again."""
        self.requested_status = status
        self.paused = False
        self.finish(status)

    def spare(self, pid: int) -> None:
        """Leave the end of process *pid* to `finish`; 0 for no process."""
        self.spared_pid = pid

    def finish(self, status: Status) -> None:
        """End every process that has not ended, with *status*, once all is read; then release waiting data.

        A process that died without sending its end was killed, whatever *status*, except for the
        spared one: the launcher waits for that one, and knows how it ended.
        """
        self._finish_as = status

    def end_processes(self, processes: ProcessMonitor) -> None:
        """Write the ends that `finish` requested; nothing without a request. Called once all is read.

        Raises `JournalError` when an end cannot be appended; the request stays, and the next poll
        repeats it. A second end of a process changes nothing.
        """
        if self._finish_as is not None:
            # First: a process that died by itself was killed, whatever status is requested.
            processes.check(time.time_ns())
            processes.end_open(self._finish_as, self.spared_pid)
            # After the appends: on a full disk the ends are requested again.
            self._finish_as = None
            self.spared_pid = 0
            self.closing = True
            self._finished = True

    def waits_for(self, processes: ProcessMonitor) -> bool:
        """Return whether data of a process may still count.

        After `finish`, living processes do not count.
        """
        return processes.has_unreported_ends() or bool(
            not self._finished and processes.living()
        )

    def due(self, processes: ProcessMonitor) -> bool:
        """Return whether waiting data can be released now: once after each arrival of data.

        After `drain` at once, after `finish` and with *closing* as soon as no process can send
        more.
        """
        return not self.paused and (
            self.draining or (self.closing and not self.waits_for(processes))
        )

    def done(self) -> None:
        """Mark the waiting data as released."""
        self.paused = True
        if self.requested_status is not None:
            # A process that logs later opens the run again, as after any end.
            self.requested_status = None
            self._finished = False
            self.closing = self._always_closing
