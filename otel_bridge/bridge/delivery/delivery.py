"""One exporter of one run: ledger -> writer, one step at a time. No thread here: `DeliveryWorker` runs the steps.

What became of a write is one of four: done; retry, with backoff; blocked, tried again every minute; permanent, a dead
letter, and what stands behind goes on. Nothing is lost: *written* moves only behind writes that returned, and a bridge
that starts again goes on from what the writer says its tracker holds.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

from otel_bridge.bridge.delivery.batch import (
    Batch,
    LastWanted,
    OpenWriter,
    Progress,
    calls_of,
    kinds_of,
    needs_writer,
)
from otel_bridge.bridge.delivery.context import DeliveryContext
from otel_bridge.bridge.delivery.dead_letters import DeadLetterRetry
from otel_bridge.bridge.delivery.position import DeliveryPosition
from otel_bridge.bridge.delivery.retry import RetryPolicy
from otel_bridge.bridge.delivery.writer_session import WriterSession
from otel_bridge.bridge.ledger.queries import RecordPage
from otel_bridge.bridge.ledger.rows import Destination
from otel_bridge.errors import (
    BlockedError,
    ConfigError,
    LedgerDamagedError,
    MissingExtraError,
    PermanentError,
)
from otel_bridge.exporter import Exporter, ExporterSettings
from otel_bridge.records import End, Position
from otel_bridge.translation.content.per_exporter import truncate

BATCH_BYTES: Final = 4 << 20
DURABLE_POLL_S: Final = 1.0


class Delivery:
    """Brings the ledger's records to one writer. For one thread; `progress` may be read by any.

    Args:
        context: The exporter, and what it is delivered from and with.
        signals: What it is named for.

    Attributes:
        dead_letters: Its dead letters that are to be tried again.
        last_wanted: Where its records end, since no process asks for it any more. The tracker's run ends there, which
            settles what is in doubt; ``None``: a process asks for it. Set by another thread.
        resting: After the step that was made last, so that more records gather: what is new need not wake it.
    """

    def __init__(self, context: DeliveryContext, signals: Sequence[str]) -> None:
        self._context, self._ledger, self._signals = context, context.ledger, signals
        self._view = context.ledger.view()
        self._position = DeliveryPosition(context)
        self._retry = RetryPolicy(context, self._position)
        self._writer = WriterSession(context, self._position, self._retry, self._view)
        self.dead_letters = DeadLetterRetry(context)
        self.resting = False
        self.last_wanted: LastWanted | None = None
        self._target: tuple[Exporter, ExporterSettings] | None = None
        self._batch: Batch | None = None
        self._passed_end: Position = 0

    @property
    def progress(self) -> Progress:
        """How far it is."""
        return self._position.progress

    @property
    def destination_id(self) -> int | None:
        """Id of the destination in the ledger, ``None`` while the settings cannot be read."""
        return None if self._position.at is None else self._position.at.id

    def stop_at(self, last: LastWanted | None) -> None:
        """Deliver records up to *last* only; ``None``: all. From any thread."""
        self.last_wanted = last

    def set_signals(self, signals: Sequence[str]) -> None:
        """Deliver these from the next batch on."""
        self._signals = signals

    @property
    def _kinds(self) -> Sequence[int]:
        return kinds_of(self._signals, takes_traces=self._target is not None and self._target[0].takes_traces)

    def step(self) -> float | None:
        """Do one thing; what it raises beyond `Exception` is for `failed`.

        Returns:
            Seconds after which the next step is due; ``None``: when something new is there.
        """
        self.resting = False
        try:
            return self._step()
        except Exception as exc:  # noqa: BLE001  # nothing may end the thread
            return self._outcome(exc)

    def failed(self, exc: BaseException) -> float:
        """Note what ended a step and is not an `Exception` (`SystemExit`, a cancellation); return the seconds to wait.

        The writer is closed: it stands wherever that left it.
        """
        strange = exc if isinstance(exc, Exception) else RuntimeError(f"the tracker raised {type(exc).__name__}: {exc}")
        self._give_up_writer()
        return self._retry.passing(strange)

    def _outcome(self, exc: Exception) -> float | None:
        if isinstance(exc, LedgerDamagedError):
            self._position.damaged(str(exc))
            return None
        if isinstance(exc, (BlockedError, PermanentError)):  # permanent: of open, with no record to blame
            self._give_up_writer()
            self._batch = None
            return self._retry.blocked(exc)
        wait = self._retry.passing(exc)
        if self._retry.call_for_a_new_writer:
            self._give_up_writer()
        return wait

    def close(self) -> None:
        """Release the writer and the connection; what is written stays written. Raises nothing."""
        with contextlib.suppress(Exception):
            self._note_whole_batch()
        opened = self._writer.opened
        if opened is not None and self._position.at is not None:
            with contextlib.suppress(Exception):
                self._writer.look_at_durable(opened, self._position.at)
        if self._writer.close():
            self._go_back()
        self._view.close()

    def _note_whole_batch(self) -> None:
        """Note a batch that was written whole just before the end: else the next one would write it again."""
        batch = self._batch
        if batch is None or batch.calls or batch.dead_letter:
            return
        self._advance(batch.through if batch.end is None else batch.end.position - 1, batch)

    def skip_through(self, through: Position) -> None:
        """Count what is written up to *through* as durable: the bound needs its room. The writer is closed first."""
        at = self._position.at
        if at is None or at.durable >= min(through, at.written):
            return
        self._writer.close()
        self._batch = None
        self._position.save(dataclasses.replace(at, durable=min(through, at.written)))

    def reopen(self) -> None:
        """Open the run in the tracker anew with its next record. Raises nothing."""
        if self._writer.opened is not None:
            self._give_up_writer()
            self._batch = None

    def _step(self) -> float | None:
        target = self._target = self._target or self._resolved()
        at = self._position.resume(target[1])
        if self._batch is None:
            self._batch = self.dead_letters.batch(self._view, at) or self._fetch(at, target[0])
        batch = self._batch
        if batch.dead_letter and not batch.calls:  # written, and the ledger refused to note it
            return self._dead_letter_tried(batch)
        if batch.calls or batch.end is not None or (at.backlog and self._writer.opened is None):
            renamed = batch.end is not None and self._writer.is_renamed()
            if renamed:  # no record follows that would open the run anew
                self.reopen()
            opened = None if renamed else self._writer.opened or self._writer.open(target, at, self._kinds)
            if opened is None:
                self._batch = None  # the tracker holds more or less than was noted: read again from there
                return 0.0
            if batch.calls:
                if self.progress.state in {"idle", "ended"}:
                    self._position.show("writing")
                record = batch.calls[0].records[0]
                self._writer.write(opened, batch, ordered=target[0].ordered)
                if batch.dead_letter and not batch.calls:
                    batch.try_done(record)
                    return self._dead_letter_tried(batch)
                return 0.0
            if batch.end is not None:
                # While the writer is open: only it can return whether what it wrote is durable.
                self._advance(batch.end.position - 1, batch)
                if self._is_over(batch) and not self._caught_up(opened):
                    return 0.0
            self._act_on_end(opened, batch)
        self._advance(batch.through, batch)
        self._batch = None
        return self._after(batch)

    def _dead_letter_tried(self, batch: Batch) -> float:
        self._position.save(self.dead_letters.done(self._position.now, batch))
        return 0.0

    def _resolved(self) -> tuple[Exporter, ExporterSettings]:
        try:
            return self._context.resolve()
        except MissingExtraError as exc:
            command = str(exc).rpartition(": ")[2]
            raise BlockedError(str(exc), help=command if command.startswith("pip ") else "") from exc
        except ConfigError as exc:
            raise BlockedError(str(exc)) from exc

    def _fetch(self, at: Destination, exporter: Exporter) -> Batch:
        """Read the next batch. Records that need no writer while none is open are passed over."""
        known, more_comes, wanted = self._ledger.position, self._context.more_comes(), self.last_wanted
        batch = self._read(at, exporter, wanted)
        for position, kind, data, reason in batch.broken:
            self._position.dead_letter(position, kind, data, record_id="", reason=reason)
        end = _end_of(batch, wanted)
        limit = self._context.limit()
        given = batch.records if limit is None else [truncate(record, limit) for record in batch.records]
        records = [record for record in given if not isinstance(record, End)]
        if end is None and wanted is not None and batch.through >= wanted.position:
            is_ended = at.ended and not needs_writer(at, records, None)
            end = None if is_ended else End("", wanted.status, 0, batch.through)
        if self._writer.opened is None and not needs_writer(at, records, end):
            self._passed_end = 0 if end is None else end.position
            return Batch(deque(), batch.through)
        return Batch(
            deque(calls_of(records, ordered=exporter.ordered)),
            batch.through,
            end,
            whole=batch.through >= known and not more_comes,
            owed_end=end is not None and not end.id,
        )

    def _read(self, at: Destination, exporter: Exporter, wanted: LastWanted | None) -> RecordPage:
        """Return the next records, of the signals that are named when they have been read."""
        while True:
            kinds = self._kinds
            batch = self._ledger.records(
                self._view, at.written, kinds, limit=exporter.window_records, limit_bytes=BATCH_BYTES
            )
            if kinds == self._kinds:
                return batch if wanted is None else batch.up_to(max(wanted.position, at.written))

    def _advance(self, through: Position, batch: Batch) -> None:
        opened = self._writer.opened
        self._position.advance(through, batch, reports_durable=None if opened is None else opened.reports_durable)

    def _act_on_end(self, opened: OpenWriter, batch: Batch) -> None:
        """End the run in the tracker, unless something for this exporter came behind the end meanwhile."""
        end = batch.end
        if end is None or not self._is_over(batch):
            return
        try:
            opened.writer.end(end.status)
        except PermanentError as exc:
            self._context.say(f"{self._context.name}: the end of the run is refused for good: {exc}")
        ended = dataclasses.replace(self._position.now, ended=end.position, end_status=end.status)
        self._position.save(ended)
        with contextlib.suppress(Exception):
            self._writer.look_at_durable(opened, dataclasses.replace(ended, written=end.position))
        self._writer.close()
        self._retry.over()

    def _is_over(self, batch: Batch) -> bool:
        """Return whether the exporter is to get nothing behind the end of *batch*: else that is cancelled."""
        end, wanted = batch.end, self.last_wanted
        if end is None:
            return False
        if wanted is not None:
            return end.position >= wanted.position
        return not batch.owed_end and self._ledger.position <= end.position

    def _after(self, batch: Batch) -> float | None:
        """Rest after a batch that took all there was; with more waiting, deferred or just ended there is no rest."""
        due_s = self._due()
        wanted = batch.whole and batch.end is None and not (self.dead_letters.waiting or self.progress.backlog)
        rest_s = self._writer.throttle.rest_s(wanted=wanted)
        if not rest_s:
            return due_s
        self.resting = True
        return rest_s if not due_s else min(rest_s, due_s)

    def _due(self) -> float | None:
        at, opened = self._position.now, self._writer.opened
        position, wanted = self._ledger.position, self.last_wanted
        behind = (
            self.dead_letters.waiting or (position if wanted is None else min(position, wanted.position)) > at.written
        )
        if behind or (opened is not None and not self._caught_up(opened)):
            return 0.0
        in_doubt = opened if at.durable < at.written else None
        failing = self._position.failing
        if in_doubt is not None and (failing or time.monotonic() - in_doubt.looked_s >= DURABLE_POLL_S):
            self._writer.look_at_durable(in_doubt, at)
        if failing:
            self._retry.over()
        # A run that was never opened, for want of a row, has ended too once its end is passed.
        self._position.show("ended" if at.ended or (self._passed_end and self._passed_end == at.written) else "idle")
        return None if in_doubt is None else DURABLE_POLL_S

    def _caught_up(self, opened: OpenWriter) -> bool:
        """Let the writer do a little of what it deferred; return whether nothing is left of it."""
        done = self._writer.process_backlog(opened)
        if not done and self._position.failing:  # one that had nothing to do has proved nothing
            self._retry.over()
        return done

    def _give_up_writer(self) -> None:
        """Close a writer that failed and go back to what is durable: only the next one knows what of the rest arrived.

        Else what was lost behind the last record would wait for another record, with nothing to show for it.
        """
        self._writer.close()
        self._go_back()

    def _go_back(self) -> None:
        if self._position.rewind():
            self._batch = None


def _end_of(batch: RecordPage, wanted: LastWanted | None) -> End | None:
    """Return the end that *batch* closes with; one with anything behind it that the exporter is to get is cancelled."""
    last = batch.records[-1] if batch.records else None
    known = batch.last if wanted is None else max(wanted.position, batch.through)
    return last if isinstance(last, End) and last.position == known else None
