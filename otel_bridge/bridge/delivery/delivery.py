"""Delivers one run to one exporter, from the ledger to the writer, in single steps on its own thread.

A write has one of four results: done; retry, with backoff; blocked, tried again every minute;
permanent, a dead letter, after which the next records follow. No record is lost: *written* advances
only after a write returned. A new bridge continues from the position that the writer reports for
its tracker.

To follow a failed write: `Delivery.step` calls `WriterSession.write` (`writer_session`), which
makes a dead letter or raises; `RetryPolicy` (`retry`) decides the wait; the calls that are left are
in the `Batch` (`batch`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections import deque
from collections.abc import Callable, Sequence

from otel_bridge.bridge.delivery.batch import (
    Batch,
    DeadLetterQueue,
    calls_of,
    kinds_of,
    needs_writer,
)
from otel_bridge.bridge.delivery.context import (
    DeliveryContext,
    DeliveryRequests,
    FinalPosition,
)
from otel_bridge.bridge.delivery.less_text import truncate
from otel_bridge.bridge.delivery.retry import DeliveryPosition, RetryPolicy
from otel_bridge.bridge.delivery.worker import ExporterWorker
from otel_bridge.bridge.delivery.writer_session import OpenWriter, WriterSession
from otel_bridge.bridge.ledger.exporter_state import ExporterState
from otel_bridge.bridge.ledger.queries import RecordPage
from otel_bridge.errors import (
    BlockedError,
    ConfigError,
    LedgerDamagedError,
    MissingExtraError,
    OtelBridgeError,
    PermanentError,
)
from otel_bridge.exporter import Exporter, ExporterSettings
from otel_bridge.records import End, Position, Record

BATCH_BYTES = 4 << 20
"""Most bytes of the ledger in one batch, which bounds memory; a single larger record is read too."""
DURABLE_POLL_S = 1.0
"""Seconds between two queries of what is durable, each of which may be a request to a server."""


class Delivery(ExporterWorker):
    """Delivers the ledger's records to one writer. Its steps are for one thread.

    `exporter_state` and `requests` are for any.

    Args:
        context: The exporter, with the sources and settings of its delivery.
        requests: Requests of other threads, carried out by the steps.
        progressed: See `ExporterWorker`.

    Raises:
        JournalError: The ledger cannot be opened for reading.

    Attributes:
        dead_letters: Its dead letters to retry.
        pausing: Whether it pauses after its last step, so that more records collect and new ones
            need not wake it.
    """

    def __init__(
        self,
        context: DeliveryContext,
        requests: DeliveryRequests,
        *,
        progressed: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(f"deliver-{context.name}", requests, progressed)
        self._context = context
        self._ledger = context.ledger
        self._view = context.ledger.view()
        self._position = DeliveryPosition(context)
        self._retry = RetryPolicy(context, self._position)
        self._writer = WriterSession(context, self._position, self._retry, self._view)
        self.dead_letters = DeadLetterQueue(context, requests)
        self.pausing = False
        self._target: tuple[Exporter, ExporterSettings] | None = None
        self._batch: Batch | None = None
        self._passed_end: Position = 0

    @property
    def exporter_state(self) -> ExporterState:
        """Return the state of the exporter, up to where its records are requested."""
        state = self._position.state
        last = self.requests.final_position
        if last is None:
            return state
        return dataclasses.replace(state, final_position=last.position)

    @property
    def requested_wait_s(self) -> float:
        """Return how long after the last failure the tracker requested not to be called."""
        return self._retry.requested_wait_s

    @property
    def rests(self) -> bool:
        """Return whether the exporter fails or pauses.

        New records shorten neither wait; a flush does, which ``finish()`` requests.
        """
        return self._position.state.failing or self.pausing

    def dead_letters_waiting(self) -> int:
        """Return how many dead letters wait for a retry, and for the end of the run that one of them reopened."""
        return self.dead_letters.waiting + self._position.state.owes_end

    def step(self) -> float | None:
        """Do one step: carry out requests, then make one call of the batch, or end the run.

        No `Exception` leaves here: it becomes a retry or a block. Others (`SystemExit` of a
        tracker) are for `failed`.

        Returns:
            Seconds until the next step is due; ``None`` until something new arrives.
        """
        self.pausing = False
        try:
            # Before anything is read: a position to skip, or a new name, decides what follows.
            self._run_requests()
            return self._step()
        except Exception as exc:  # noqa: BLE001  # nothing may end the thread
            return self._retry_or_block(exc)

    def failed(self, exc: BaseException) -> float:
        """Handle an error of a step that is not an `Exception`, e.g. `SystemExit`.

        Return the seconds to wait.

        The writer is closed, because its state is unknown.
        """
        self._give_up_writer()
        return self._retry.passing(
            RuntimeError(f"the tracker raised {type(exc).__name__}: {exc}")
        )

    # --- a step -----------------------------------------------------------------------------------
    def _step(self) -> float | None:
        """Make one call of the batch, or end the run.

        Return the seconds to the next step, ``None`` when nothing is left. Raises what the
        exporter, its writer or the ledger raises; `_retry_or_block` decides what follows. Nothing
        is lost by that: the position moves only after the calls returned, and what is left stays in
        the batch.
        """
        target = self._target or self._resolved()
        self._target = target
        state = self._position.resume(target[1])
        if self._batch is None:
            # Only between two batches, so that the calls of one are not interrupted.
            if self._writer.is_renamed():
                self._give_up_writer()
                return 0.0
            dead_letter = self.dead_letters.next(self._view, state, self._kinds)
            self._batch = dead_letter or self._fetch(state, target[0])
        batch = self._batch
        if batch.calls or batch.end is not None:
            opened = self._opened_for(target, state, batch)
            if opened is None:
                self._batch = None
                return 0.0
            if batch.calls:
                self._writer.write(opened, batch, ordered=target[0].ordered)
            if batch.calls:
                # One call a step, so that requests and a stop are noticed between slow calls.
                return 0.0
            if batch.end is not None:
                self._pass_end(opened, batch, batch.end)
        # After all calls: after a kill in between records come again, and are recognised.
        self._advance(batch.through, batch)
        if batch.dead_letter is not None:
            state = self.dead_letters.done(self._position.now, batch.dead_letter.id)
            self._position.save(state)
        self._batch = None
        return self._wait_s(batch)

    def _retry_or_block(self, exc: Exception) -> float | None:
        """Decide what follows the exception that ended a step; return the seconds to the next step.

        Records that were not written stay in the batch, or are read from the ledger again. ``None``
        for a damaged ledger: the bridge's thread closes this delivery and makes a new one. After
        `_REOPEN_AFTER` failures in a row the writer is replaced, because it may be what is broken.
        """
        if isinstance(exc, LedgerDamagedError):
            # Only the bridge's thread can replace the ledger; it finds the mark at its next poll.
            self._position.damaged(str(exc))
            return None
        # A permanent error that arrives here is of `open`, so that no record is at fault.
        if isinstance(exc, (BlockedError, PermanentError)):
            self._give_up_writer()
            self._batch = None
            return self._retry.blocked(exc)
        wait_s = self._retry.passing(exc)
        if self._retry.call_for_a_new_writer:
            self._give_up_writer()
        return wait_s

    def _give_up_writer(self) -> None:
        """Close a failed writer and go back to the durable position. Raises nothing.

        Only the next writer knows which later records arrived. Otherwise records that were
        lost after the last one would wait for another record, and no error would show that.
        """
        self._writer.close()
        self._rewind()

    def _rewind(self) -> None:
        if self._position.rewind():
            # The next batch, or dead letter, is read from the ledger again.
            self._batch = None

    def _opened_for(
        self,
        target: tuple[Exporter, ExporterSettings],
        state: ExporterState,
        batch: Batch,
    ) -> OpenWriter | None:
        """Return the open writer.

        ``None`` when its tracker holds more or less than noted, so that the batch begins elsewhere,
        or when the run was renamed: a batch with an end would otherwise end the run under its old
        name. Raises as `WriterSession.open` does.
        """
        # Before an end, since no record follows that would reopen the run under its new name.
        if batch.end is not None and self._writer.is_renamed():
            self._give_up_writer()
            return None
        if self._writer.opened is not None:
            return self._writer.opened
        # Records of the ledger are followed by an end of their own.
        ends_again = batch.dead_letter is not None or state.owes_end
        return self._writer.open(target, state, self._kinds, ends_again=ends_again)

    def _resolved(self) -> tuple[Exporter, ExporterSettings]:
        """Return the exporter and its settings, read again at each try, so that a person's change counts.

        Raises:
            BlockedError: The exporter is not installed, unknown, or a setting cannot be used. The
                message of a missing extra ends with the command that installs it, which becomes the
                help.
        """
        try:
            return self._context.resolve()
        except MissingExtraError as exc:
            command = str(exc).rpartition(": ")[2]
            help_text = command
            if not command.startswith("pip "):
                help_text = ""
            # A person must install it; the next try in a minute finds it without a restart.
            raise BlockedError(str(exc), help=help_text) from exc
        except ConfigError as exc:
            raise BlockedError(str(exc)) from exc

    # --- the next batch ---------------------------------------------------------------------------
    @property
    def _kinds(self) -> Sequence[int]:
        """Return the kinds of records that the exporter gets at present.

        Plain traces are among them only for an exporter that shows them, or that joins late spans
        to rollouts; for others they would be read in vain.
        """
        exporter = None
        if self._target is not None:
            exporter = self._target[0]
        takes_traces = exporter is not None and (
            exporter.takes_traces or exporter.takes_late_spans
        )
        return kinds_of(self.requests.signals, takes_traces=takes_traces)

    def _fetch(self, state: ExporterState, exporter: Exporter) -> Batch:
        """Read the next batch; records that need no writer are passed over while none is open.

        Records that cannot be decoded become dead letters, with their bytes and the reason. Raises
        `JournalError` when the ledger cannot be read or written; the next step reads the same
        records.
        """
        # Both before the read: records that come meanwhile must not make the batch seem incomplete.
        ledger_position = self._ledger.position
        more_comes = self._context.more_comes()
        final = self.requests.final_position
        page = self._read(state, exporter, final)
        self._set_broken_aside(page, state)
        records: list[Record] = [
            record for record in page.records if not isinstance(record, End)
        ]
        limit = self._context.limit()
        if limit is not None:
            # Here and not in the writer, so that no exporter can forget it.
            records = [truncate(record, limit) for record in records]
        end = _end_of(page) or _owed_end(page, final, state, records)
        if self._writer.opened is None and not needs_writer(state, records, end):
            # A config alone opens no run in the tracker, but its end must be passed as well.
            self._passed_end = 0
            if end is not None:
                self._passed_end = end.position
            return Batch(deque(), page.through)
        return Batch(
            deque(calls_of(records, ordered=exporter.ordered)),
            page.through,
            end,
            whole=page.through >= ledger_position and not more_comes,
            owed_end=end is not None and not end.id,
        )

    def _set_broken_aside(self, page: RecordPage, state: ExporterState) -> None:
        """Make dead letters of the records that cannot be decoded, at once: no retry could decode them.

        Each once: a batch is read again at each try of a blocked exporter, and after a restart.
        Raises `JournalError` when the ledger cannot be read or written.
        """
        for position, kind, data, reason in page.broken:
            if not self._view.is_undecodable(state.id, position):
                self._position.dead_letter(
                    position, kind, data, record_id="", reason=reason
                )

    def _read(
        self, state: ExporterState, exporter: Exporter, final: FinalPosition | None
    ) -> RecordPage:
        """Return the next records, of the signals that are named after the read.

        At most `BATCH_BYTES`, but one record in any case, and `window_records` of the exporter.
        Nothing follows the last record of an exporter that no process requests any more. Raises
        `JournalError` when the ledger cannot be read.
        """
        while True:  # until no other thread has changed the signals during the read
            # Another thread may add signals, whose records this read must not pass over.
            kinds = self._kinds
            page = self._view.records(
                state.written,
                kinds,
                limit=exporter.window_records,
                limit_bytes=BATCH_BYTES,
                end=None if final is None else final.position,
            )
            if kinds == self._kinds:
                return page

    def _advance(self, through: Position, batch: Batch) -> None:
        """Store that all records up to *through* are written, also durable if the writer confirms nothing later.

        Raises `JournalError` when the ledger refuses; the batch stays, and the next step stores it.
        """
        opened = self._writer.opened
        self._position.advance(
            through,
            batch,
            reports_durable=None if opened is None else opened.reports_durable,
        )

    # --- the end of the run, and of a step --------------------------------------------------------
    def _pass_end(self, opened: OpenWriter, batch: Batch, end: End) -> None:
        """End the run in the tracker, unless a record for this exporter followed the end meanwhile.

        Raises what the writer or the ledger raises; the end stays in the batch and is tried again.
        """
        # While the writer is open: only it can return whether its records are durable.
        self._advance(end.position - 1, batch)
        if self._is_over(batch, end):
            self._end_run(opened, end)
        elif self._position.now.owes_end:
            # The records that follow bring an end of their own.
            self._position.save(
                dataclasses.replace(self._position.now, end_status=None)
            )

    def _is_over(self, batch: Batch, end: End) -> bool:
        """Return whether no record for the exporter follows the end of *batch*.

        A later record cancels the end.
        """
        final = self.requests.final_position
        if final is not None:
            return end.position >= final.position
        return not batch.owed_end and self._ledger.position <= end.position

    def _end_run(self, opened: OpenWriter, end: End) -> None:
        """End the run in the tracker, store that, and close the writer.

        A refusal for good is logged and counts as ended: no retry would help, and the run would
        stay open for ever. Any other error of the writer is raised, and the end is tried again.
        What is durable is queried before the close, because only an open writer can answer; its
        failure only leaves the records in doubt to the next bridge.
        """
        try:
            opened.writer.end(end.status)
        except PermanentError as exc:
            self._context.log_line(
                f"{self._context.name}: the end of the run is refused for good: {exc}"
            )
        self._position.end(end, opened.newly_left_out())
        state = self._position.now
        with contextlib.suppress(Exception):
            self._writer.query_durable(
                opened, dataclasses.replace(state, written=end.position)
            )
        self._writer.close()
        self._retry.over()

    def _wait_s(self, batch: Batch) -> float | None:
        """Return the seconds to the step after *batch*: 0 when more is left, else until a poll, ``None`` for neither.

        After a batch of all available records the exporter pauses, unless dead letters are to be
        retried, or the run has just ended.
        """
        wait_s: float | None = 0.0
        if not self._has_more():
            wait_s = self._settled_wait_s()
        may_pause = (
            batch.whole and batch.end is None and not self.dead_letters_waiting()
        )
        pause_s = self._writer.throttle.pause_s(allowed=may_pause)
        self.pausing = bool(pause_s)
        if not pause_s:
            return wait_s
        if wait_s:
            return min(pause_s, wait_s)
        return pause_s

    def _has_more(self) -> bool:
        """Return whether records or dead letters are left."""
        position = self._ledger.position
        final = self.requests.final_position
        last = position
        if final is not None:
            last = min(position, final.position)
        return bool(self.dead_letters_waiting()) or last > self._position.now.written

    def _settled_wait_s(self) -> float | None:
        """Show that nothing is left to write, so that `flush` and the end of the run go on.

        Return the seconds to the next query of what is durable, ``None`` when all is. A failing
        exporter is asked at once: only the answer shows that its tracker works again. Raises what
        the writer raises, as when its tracker lost records.
        """
        state = self._position.now
        opened = self._writer.opened
        in_doubt = None
        if state.durable < state.written:
            in_doubt = opened
        if in_doubt is not None:
            is_due = time.monotonic() - in_doubt.queried_s >= DURABLE_POLL_S
            # Each query may be a request to the tracker's server.
            if state.failing or is_due:
                self._writer.query_durable(in_doubt, state)
        if state.failing:
            self._retry.over()
        # A run that was never opened because it had no row has also ended once its end is passed.
        has_passed_end = self._passed_end > 0 and self._passed_end == state.written
        self._position.show("ended" if state.ended or has_passed_end else "idle")
        if in_doubt is None:
            return None
        return DURABLE_POLL_S

    # --- requests, and the end of the exporter ----------------------------------------------------
    def _run_requests(self) -> None:
        """Carry out what eviction requested.

        A ledger that refuses it is passed over, since eviction repeats it.
        """
        through = self.requests.take_skip()
        if through is not None:
            with contextlib.suppress(OtelBridgeError):  # eviction requests this again
                self.skip_through(through)

    def skip_through(self, through: Position) -> None:
        """Count records written up to *through* as durable, so that they can be evicted.

        The writer is closed first: its report of what is durable would move the position back
        behind records that are deleted by then. Raises `JournalError` when the ledger refuses.
        """
        state = self._position.state
        # Nothing to skip, so the writer stays open.
        if state.durable >= min(through, state.written):
            return
        self._writer.close()
        self._batch = None
        self._position.save(
            dataclasses.replace(state, durable=min(through, state.written))
        )

    def close(self) -> None:
        """Release the writer and the connection; written records stay written. Raises nothing."""
        opened = self._writer.opened
        if opened is not None:
            # Whatever a tracker raises, its writer must be closed.
            with contextlib.suppress(BaseException):
                self._writer.query_durable(opened, self._position.now)
        # It failed while it closed: what it had not confirmed is written by the next one.
        if self._writer.close():
            self._rewind()
        self._view.close()


def _end_of(page: RecordPage) -> End | None:
    """Return the end that closes *page*; a later record for the exporter cancels the end."""
    last = page.records[-1] if page.records else None
    if isinstance(last, End) and last.position == page.last:
        return last
    return None


def _owed_end(
    page: RecordPage,
    final: FinalPosition | None,
    state: ExporterState,
    records: Sequence[Record],
) -> End | None:
    """Return the end of the run for an exporter that gets no records after *page*.

    ``None`` if it gets more, or its run has ended. Such an exporter is not requested by any process
    any more: without an end of its own, its tracker would show the run as running until the last
    process ends, and for ever if the run's own end comes after its last record.
    """
    if final is None or page.through < final.position:
        return None
    is_ended = state.ended and not needs_writer(state, records, None)
    if is_ended:
        return None
    return End("", final.status, 0, page.through)
