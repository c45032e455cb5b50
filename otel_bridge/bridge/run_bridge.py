"""Serves one run folder: lease, control requests, reading, delivery, housekeeping, one poll at a time. One thread."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable
from functools import partial

from otel_bridge.bridge.ingest.eviction import Fullness
from otel_bridge.bridge.ingest.segment_reader import ReadBatch
from otel_bridge.bridge.ledger.database import set_aside
from otel_bridge.bridge.options import BridgeOptions
from otel_bridge.bridge.run_pipeline import RunPipeline, open_pipeline
from otel_bridge.bridge.serving.control_requests import ControlRequests
from otel_bridge.bridge.serving.lease import FolderLease
from otel_bridge.bridge.serving.run_outcome import Outcome, RunStatus, SegmentsRead
from otel_bridge.bridge.serving.shutdown import ShutdownState
from otel_bridge.errors import JournalError, LedgerDamagedError
from otel_bridge.exporter import OTLP, WEBHOOK
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.locks import RecordLock

AHEAD_RECORDS = 4_000
"""Records that a service reads ahead of writers that all fail."""
HOUSEKEEPING_POLLS = 20
"""Polls between two checks of living processes, deletable data and named exporters: a second."""
ENDING_HOUSEKEEPING_POLLS = 4
"""The same while the run ends: a fifth of a second."""


class RunBridge:
    """Serves one run folder from `open` to `close`.

    What a method raises is a failure of this run, counted and logged once: `ActiveRuns` repeats it
    with a growing pause, and serves the other runs meanwhile.

    Args:
        folder: The run folder.
        options: Options of the bridge.
        lease: The lease of the folder.
        shutdown: Shutdown requests of the run.
        pipeline: The parts of the run.
        log_line: Takes one line for the log.
    """

    def __init__(
        self,
        folder: RunFolder,
        options: BridgeOptions,
        *,
        lease: FolderLease,
        shutdown: ShutdownState,
        pipeline: RunPipeline,
        log_line: Callable[[str], None],
    ) -> None:
        self.folder = folder
        self.options = options
        self.lease = lease
        self.shutdown = shutdown
        self.pipeline = pipeline
        self.ledger = pipeline.ledger
        self.reader = pipeline.reader
        self.processes = pipeline.processes
        self.workers = pipeline.workers
        self.segments_read = SegmentsRead(folder, {})
        self._requests = ControlRequests(folder, pipeline, shutdown, log_line)
        self._housekept_s = 0.0

    @classmethod
    def open(
        cls,
        folder: RunFolder,
        options: BridgeOptions,
        *,
        wake: Callable[[], None],
        log_line: Callable[[str], None],
        lock: RecordLock | None,
        fullness: Fullness,
    ) -> RunBridge:
        """Take the lease, build the parts of the run and return its bridge.

        A damaged ledger is set aside and made anew, which is logged.

        Args:
            folder: The run folder.
            options: Options of the bridge.
            wake: Called from any thread after progress of a worker, because the report is due.
            log_line: Takes one line for the log.
            lock: The folder's lock, if this process already holds it; released when opening fails.
            fullness: Measures the directory; shared by its runs.

        Raises:
            FolderLockedError: Another bridge has the folder and keeps it.
            FormatVersionError: Another version wrote the folder.
            JournalError: The folder cannot be used, or a damaged ledger cannot be renamed.
        """
        lease = FolderLease.take(folder, options, log_line, lock=lock)
        shutdown = ShutdownState(closing=options.closing)
        build = partial(
            open_pipeline,
            folder,
            options,
            shutdown=shutdown,
            fullness=fullness,
            wake=wake,
            log_line=log_line,
        )
        try:
            try:
                pipeline = build()
            except LedgerDamagedError:
                # Here, not where the file is opened: the first part that reads a damaged page finds it.
                aside = set_aside(folder.ledger_path)
                log_line(
                    f"{folder.ledger_path} was damaged and renamed to {aside}, the remaining segments are read again"
                )
                pipeline = build()
        # Also for an interrupt: a lease that stays would lock out every other bridge.
        except BaseException:
            lease.release()
            raise
        return cls(
            folder,
            options,
            lease=lease,
            shutdown=shutdown,
            pipeline=pipeline,
            log_line=log_line,
        )

    # --- work -------------------------------------------------------------------------------------
    def poll(self) -> bool:
        """Read one batch and do what is due; return whether there is more to read at once.

        Return ``False`` too when the folder is another bridge's or gone: `outcome` is then
        ``GONE``.

        Raises:
            JournalError: A disk operation failed; nothing is lost, call this again later.
            LedgerDamagedError: The ledger is damaged; close this object and open a new one.
            RuntimeError: The machine allows no more threads for exporters; call this again later.
        """
        # Another bridge may have the folder by now: not even a read, which would commit positions.
        if not self.lease.kept():
            return False
        try:
            return self._poll()
        except JournalError:
            # The first failure is the one to report; the attempt to free space may well fail too.
            with contextlib.suppress(JournalError):
                self._free()  # records delivered meanwhile make room for others
            raise

    def _poll(self) -> bool:
        """Do one poll while the lease is held; return whether there is more to read at once.

        Raises:
            JournalError, RuntimeError: As `poll`.
        """
        self._requests.receive()
        # Found by an exporter's thread, but only this one may close the ledger and open a new one.
        if any(state.damaged for state in self.workers.states().values()):
            raise LedgerDamagedError(
                f"{self.folder.ledger_path}: an exporter found the ledger damaged"
            )
        # Ends follow everything that was read: a row behind its end would reopen the process.
        if self.reader.caught_up:
            self.shutdown.end_processes(self.processes)
        self.reader.discover_segments(now=self.shutdown.closing)
        has_more = self._read()
        # The end lies in the bridge's own segment: listed at once, so that the next poll reads it.
        if self.reader.caught_up and self.processes.write_end_events(
            self.shutdown.spared_pid
        ):
            self.reader.discover_segments(now=True)
            return True
        now_s = time.monotonic()
        is_ended = self.reader.translator.status() != "running"
        # A person or an exiting program waits then, so checks come five times as often.
        is_ending = self.shutdown.closing or self.shutdown.draining or is_ended
        polls = HOUSEKEEPING_POLLS
        if is_ending:
            polls = ENDING_HOUSEKEEPING_POLLS
        is_due = now_s - self._housekept_s >= polls * self.options.poll_s
        if is_due or self._requests.retries_dead_letters:
            self._housekept_s = now_s
            self._housekeeping()
        return has_more

    def _read(self) -> bool:
        """Read and commit one batch, after the headers of new processes.

        Return whether there is more to read at once. ``False`` too when no writer can use more: the
        next poll looks again. A frame that cannot be translated is counted as
        ``translation_errors`` and passed over by the reader.

        Raises:
            JournalError: The batch was not committed; the next call collects it again.
        """
        # Unread records stay in the segments, where they are as safe as in the ledger.
        if self.options.lazy and self.reader.falls_behind() and self._no_writer_ready():
            return False
        try:
            # Headers are committed alone and first: exporters must exist before their records do.
            while (batch := self.reader.collect()).headers:
                for header in batch.headers:
                    self.pipeline.begin_process(header)
                self._commit(batch)
            self._commit(batch)
        except JournalError:
            self.shutdown.on_data()  # the data exists, and waits
            raise
        return batch.has_more

    def _no_writer_ready(self) -> bool:
        """Return whether every exporter fails or is blocked and has enough records, and no local process waits.

        Unread records stay in the segments, where they take no more room than in the ledger, and
        translation costs several times what receiving costs: in an outage of all trackers it would
        slow the receiver for nothing. The bridge reads them once an exporter makes progress.
        ``False`` without any exporter too, until it has read `AHEAD_RECORDS`.
        """
        states = self.workers.states()
        if len(states) > 1:
            states.pop(WEBHOOK, None)  # it passes over rows, so it is always ready
        # One writer that works is enough: it would wait for records that are not read.
        if any(
            not state.failing and state.state != "blocked" for state in states.values()
        ):
            return False
        # Not of ``otlp``: it forwards segments and has no position in the ledger.
        states.pop(OTLP, None)
        written = max((state.written for state in states.values()), default=0)
        if self.ledger.position - written < AHEAD_RECORDS:
            return False
        # A local program waits in `flush` and `finish` for what is read.
        return all(header.kind == "receiver" for header in self.processes.living())

    def _commit(self, batch: ReadBatch) -> None:
        """Commit *batch*, and wake the writers when it held anything.

        Raises `JournalError` when it was not committed.
        """
        self.reader.commit(batch)
        if batch.frames or batch.records:
            self.on_data(flush=batch.flush)

    def on_data(self, *, flush: bool = False) -> None:
        """Wake the writers after a commit, since they read from the ledger."""
        self.pipeline.report.set_due()
        self.shutdown.on_data()
        self.workers.notify(flush=flush)

    def drain(self) -> None:
        """Release all waiting data once everything is read, though processes live.

        Their later data arrives late.
        """
        self.shutdown.drain()
        self._housekept_s = 0.0
        self.workers.notify(retry=True)

    def write_report(self, *, now: bool = False) -> None:
        """Write the report when it is due, with *now* without any wait for more changes.

        Nothing is raised on a full disk: the report stays due. Nothing is written while another
        bridge has the folder.
        """
        # The report of the bridge that has the folder now must not be overwritten.
        if self.lease.lost:
            return
        with contextlib.suppress(JournalError):  # a full disk: the next report may fit
            is_delivered = self.delivered()
            self.pipeline.report.write(
                self.workers,
                self.pipeline.selection,
                engine_problems=self.pipeline.measurements.problems,
                ended=is_delivered and self._run_ended(),
                settled=is_delivered,
                now=now,
            )

    def outcome(self) -> Outcome:
        """Return what is left to do.

        A run is over when all is read, no process can send more, its end is translated, no request
        is open, and each exporter has everything or is parked. Only a run whose folder holds no
        process at all counts as ended without an end. A tracker that failed before that is parked
        only ``retry_after_exit_s`` later: an outage may be as old as the job.
        """
        if self.lease.lost:
            return Outcome.GONE
        if self._requests.handed_over:
            return Outcome.HANDED_OVER
        # A request keeps the bridge: the command that made it waits for its answer.
        has_requests = self._requests.unanswered or self._requests.retries_dead_letters
        if has_requests or self.shutdown.requested_status is not None:
            return Outcome.BUSY
        may_read_more = not self.reader.caught_up or self.shutdown.waits_for(
            self.processes
        )
        if may_read_more or not self._run_ended():
            self.shutdown.over_since_s = None
            return Outcome.BUSY
        if self.shutdown.over_since_s is None:
            self.shutdown.over_since_s = time.monotonic()
        if self.delivered():
            return Outcome.DONE
        return (
            Outcome.PARKED if self._parked(self.shutdown.over_since_s) else Outcome.BUSY
        )

    def remaining(self) -> RunStatus:
        """Return the status of the run, with its undelivered records.

        Nothing is owed as long as no exporter was chosen, because it is unknown then. Raises
        `JournalError` when the ledger cannot be read.
        """
        position = self.ledger.position
        return RunStatus(
            run_id=self.folder.run_id,
            outcome=self.outcome(),
            living=len(self.processes.living()),
            unread=not self.reader.caught_up,
            status=self.reader.translator.status(),
            position=position,
            rows=self.ledger.counts.rows,
            rollouts=self.ledger.counts.rollouts,
            exporters=self.workers.states(),
            reason=self._left_as_it_is(),
            owed=self.pipeline.selection.owed()
            if self.pipeline.selection.chosen
            else {},
        )

    def _left_as_it_is(self) -> str:
        """Return which processes' segments a newer version wrote; empty when all can be read.

        `drain` prints it and exits with an error: these records are not delivered by this version.
        """
        refused = sorted(
            name for name, tail in self.reader.tails.items() if tail.segments.refused
        )
        if not refused:
            return ""
        return f"a newer version wrote the segments of {', '.join(refused)}; upgrade otel-bridge"

    def _run_ended(self) -> bool:
        """Return whether the run has ended, or no process ever began in it."""
        first_process = next(self.reader.state.items("proc/"), None)
        return self.reader.translator.status() != "running" or first_process is None

    def delivered(self) -> bool:
        """Return whether all is delivered; ``False`` before the exporters are chosen."""
        return self.pipeline.selection.chosen and self.workers.delivered(
            self.ledger.position
        )

    def _parked(self, over_since_s: float) -> bool:
        """Return whether what is not delivered is parked; ``False`` before the exporters are chosen."""
        if not self.pipeline.selection.chosen:
            return False
        failing_before_s = time.monotonic() - self.options.retry_after_exit_s
        # Retried for the whole time after the end: nothing but a block parks an exporter before.
        if over_since_s > failing_before_s:
            failing_before_s = -math.inf
        return self.workers.parked(self.ledger.position, failing_before_s)

    def has_nothing_to_do(self) -> bool:
        """Return whether all of the run is read and delivered, and nothing waits for a timeout.

        The run may then sleep. Living processes do not count: their next frame wakes it.
        """
        if not self.reader.caught_up or not self.delivered():
            return False
        is_waiting = any(dataclasses.astuple(self.reader.translator.waiting()))
        return not (is_waiting or self.processes.has_unreported_ends())

    def drained(self) -> bool:
        """Return whether, after `drain`, every exporter that is not blocked has everything.

        A folder that another bridge has counts as drained here, and so does a run with blocked
        exporters only: what it has not read yet would wait in the ledger instead of in the
        segments.
        """
        if self.outcome() in {Outcome.GONE, Outcome.HANDED_OVER}:
            return True
        states = self.workers.states().values()
        unblocked = [state for state in states if state.state != "blocked"]
        if states and not unblocked:
            return True  # no exporter would take the data that is not read yet
        position = self.ledger.position
        return self.shutdown.paused and all(
            state.is_done(position) for state in unblocked
        )

    def _housekeeping(self) -> None:
        """Do what is due about once a second: heartbeat, checks of processes, exporters, metrics, space.

        The order matters; see the comments. Each part can be repeated.

        Raises:
            JournalError: A disk operation failed; what follows it is done by a later call.
            RuntimeError: The machine allows no more threads; likewise.
        """
        now_ns = time.time_ns()
        # Other hosts judge this bridge by the age of its last heartbeat; the rest may take long.
        self.lease.heartbeat()
        # Before exporters are chosen, since only living processes name them.
        if self.processes.check(now_ns):
            self.pipeline.report.set_due()
        if self.pipeline.selection.choose(all_read=self.reader.caught_up):
            self.pipeline.report.set_due()
        self._requests.retry_dead_letters()
        # Only the bridge at the other end needs them: here the processes themselves can be checked.
        if OTLP in self.workers.names:
            self.processes.heartbeat(now_ns)
        living = [] if self.shutdown.closing else self.processes.living()
        # What was measured lies in the bridge's own segment, which may be new.
        if self.pipeline.measurements.measure_if_due(living):
            self.reader.discover_segments(now=True)
        self._free()  # before more is released, which might fail on a full disk
        self._release_waiting()

    def _free(self) -> None:
        """Free space, after a report of the read positions, for processes whose segments are deleted.

        A waiting `flush` sees by the report that its segment is read; a deleted one would show
        nothing. Raises `JournalError` when the ledger fails.
        """
        self.write_report(now=True)
        self.pipeline.retention.free()

    def _release_waiting(self) -> None:
        """Release waiting data (incomplete rows, traces and steps), when it is due; raises `JournalError`.

        It is not marked as released after an error, so that the next call tries again.
        """
        if self.reader.caught_up and self.shutdown.due(self.processes):
            # A service that shuts down ends no run: the next service continues with its producers.
            status = self.shutdown.requested_status
            if self.reader.close_translation(status, over=self.shutdown.closing):
                self.workers.notify()
            self.shutdown.done()

    # --- end --------------------------------------------------------------------------------------
    def stop(self) -> None:
        """Request that all workers stop; return at once."""
        self.workers.stop()

    def stopped(self) -> bool:
        """Return whether every worker has stopped, so that `close` returns at once."""
        return not self.workers.join(0.0)

    def close(self, deadline_s: float, *, keep_lock: bool = False) -> list[str]:
        """Close everything; committed records stay, and the next bridge delivers the others.

        All parts are closed and the lock is released in any case. An error of the disk or the
        ledger is raised after that. May be called again after an error.

        Args:
            deadline_s: `time.monotonic` until which writers may close.
            keep_lock: Whether this process continues with the folder later, so that no other may
                until then.

        Returns:
            Exporters whose writer hangs.
        """
        with contextlib.ExitStack() as closing:
            closing.callback(self.lease.release)
            closing.callback(self.pipeline.close)
            if self.outcome() is Outcome.DONE:
                # A full disk: the next bridge releases them.
                with contextlib.suppress(JournalError):
                    self.workers.release_unrequested()
            self.workers.stop()
            hanging = self.workers.join(deadline_s)
            if not self.lease.lost:
                self.pipeline.report.set_due()
                self.write_report(now=True)
                # A request that cannot be carried out now is deleted: it would open the run again
                # and again.
                self._requests.delete_done(all_of=self.outcome() is not Outcome.BUSY)
            if self.outcome() is Outcome.DONE:
                self.pipeline.retention.free_all(self.processes.own_id)
            if not self.lease.lost:
                with contextlib.suppress(JournalError):
                    self.ledger.give_back()  # also of an idle run: a service has thousands of them
            self.segments_read = SegmentsRead(self.folder, self.reader.offsets())
            if keep_lock:
                # Only here: after an error above the next bridge must be able to take the folder.
                closing.pop_all()
                self.pipeline.close()
        return hanging
