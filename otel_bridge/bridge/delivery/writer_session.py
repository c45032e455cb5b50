"""Holds the writer of one exporter from its open to its close.

The session gives the writer configs and records, and queries what is durable.

The result of each call is one of three: written, refused for good, or to be retried. When a call
fails, its written records count and the others stay in the batch. For the exporter's own thread.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections import Counter
from collections.abc import Generator, Sequence

from otel_bridge.bridge.delivery.batch import Batch, WriterCall
from otel_bridge.bridge.delivery.context import DeliveryContext
from otel_bridge.bridge.delivery.retry import DeliveryPosition, RetryPolicy
from otel_bridge.bridge.ledger import codec
from otel_bridge.bridge.ledger.exporter_state import ExporterState
from otel_bridge.bridge.ledger.queries import LedgerView
from otel_bridge.capabilities import incompatibility
from otel_bridge.errors import ExporterError, PermanentError
from otel_bridge.exporter import (
    Exporter,
    ExporterSettings,
    RunInfo,
    RunWriter,
    WritesMedia,
    WritesSummary,
    degraded_of,
    found_of,
    left_out_of,
    tracker_run_id_of,
)
from otel_bridge.records import Alert, Config, MediaRecord, Position, Record, Summary
from otel_bridge.text.addresses import without_credentials

PAUSE_FACTOR = 20.0
"""Ratio of a pause to the time that the writes before it took: a writer works a twentieth of the time."""
LONGEST_PAUSE_S = 0.5
"""Longest pause, so that rows of a slow tracker are shown soon as well."""
SHORTEST_PAUSE_S = 0.05
"""Shortest pause, below which there is none; this limits how often new records are read."""
_NO_MEDIA = "media: this exporter shows none"


class WriterSession:
    """Opens, calls, queries and closes the writer.

    Args:
        context: Context of the exporter's delivery.
        position: Position of the exporter, moved by writes and by what the tracker already holds.
        retry: Decides what follows a call that failed.
        view: Reads the ledger for the exporter's thread.

    Attributes:
        opened: The open writer; ``None`` without one.
        throttle: Counts how long the writer's calls took.
    """

    def __init__(
        self,
        context: DeliveryContext,
        position: DeliveryPosition,
        retry: RetryPolicy,
        view: LedgerView,
    ) -> None:
        self._name = context.name
        self._ledger = context.ledger
        self._describe = context.describe
        self._log_line = context.log_line
        self._view = view
        self._position = position
        self._retry = retry
        self.throttle = Throttle()
        self._run_names: tuple[str, str] | None = None
        self.opened: OpenWriter | None = None

    def open(
        self,
        target: tuple[Exporter, ExporterSettings],
        state: ExporterState,
        kinds: Sequence[int],
        *,
        ends_again: bool,
    ) -> OpenWriter | None:
        """Open the writer, give it configs and summaries, and store what it reports of its tracker.

        Return ``None`` if *written* moved, because the tracker holds more or less than noted: after
        a kill between a write and the commit of its position, or when the tracker lost what it had
        not confirmed. Raises what the exporter, the writer or the ledger raises; the writer is
        closed then, and the next step opens a new one.

        Args:
            target: The exporter and its settings.
            state: State of the exporter.
            kinds: Kinds of records that the exporter gets.
            ends_again: Whether the end that the tracker's run had is owed again, because no other
                end follows what is to be written.
        """
        exporter, settings = target
        if (
            not state.failing
        ):  # a failing exporter stays failing until it has written something
            self._position.show("writing")
        described_through, run = self._describe(self._view, reopened=bool(state.ended))
        self._run_names = (run.project, run.name)
        writer = self._open_writer(exporter, settings, run, state)
        opened = OpenWriter(writer, described_through)
        # Before its first call: if that fails, `close` must find the writer.
        self.opened = opened
        try:
            durable = writer.durable()
            if durable is not None:
                opened.reports_durable = True
            self._write_description(opened, run)
            state = dataclasses.replace(
                self._position.now,
                found=self._found(writer),
                opened=True,
                ended=0,
                end_status=state.end_status if ends_again else None,
                url=without_credentials(writer.url or "") or None,
                tracker_run_id=tracker_run_id_of(writer),
                degraded=self._degraded(writer, state.degraded),
            )
            has_moved = False
            if durable is not None:
                # The tracker decides where to continue, within what the ledger still has.
                # The ledger may be a new one with fewer records, or have evicted the oldest.
                start = max(
                    min(durable, self._ledger.position), self._view.oldest() - 1
                )
                # The batch in memory begins elsewhere then, so the caller reads it again.
                has_moved = start != state.written
                counted_state = counted(self._view, kinds, state, start)
                state = dataclasses.replace(counted_state, written=start, durable=start)
            self._position.save(state)
        except BaseException:
            self.close()
            raise
        if has_moved:
            return None
        return opened

    def _write_description(self, opened: OpenWriter, run: RunInfo) -> None:
        """Write the configs and summaries of *run*, before any record.

        What is refused for good is logged and noted in *opened*, since a config must not keep the
        rows away. Other errors of the writer are raised.
        """
        writer = opened.writer
        for role, config in run.configs.items():
            with self._refusal_noted(opened, Config, role):
                writer.write_config(role, config)
        if isinstance(writer, WritesSummary):
            for role, values in run.summaries.items():
                with self._refusal_noted(opened, Summary, role):
                    writer.write_summary(role, values)

    @contextlib.contextmanager
    def _refusal_noted(
        self, opened: OpenWriter, kind: type[Config | Summary], role: str | None
    ) -> Generator[None]:
        """Log and note a `PermanentError` of the body, which ends there.

        Other errors go on to the caller.
        """
        try:
            yield
        except PermanentError as exc:
            self._log_line(
                f"{self._name}: the {kind.__name__.lower()} of role {role!r} is refused for good: {exc}"
            )
            # Without the position that the writer may have named: it is not one of the call to come.
            opened.refused[kind, role] = PermanentError(str(exc))

    def _open_writer(
        self,
        exporter: Exporter,
        settings: ExporterSettings,
        run: RunInfo,
        state: ExporterState,
    ) -> RunWriter:
        """Return the open writer of *exporter*.

        Raises:
            BlockedError: The tracker's library has another version than the exporter can use; the
                help is the command that upgrades it.
            Exception: What the exporter raised otherwise, as it is.
        """
        try:
            return exporter.open(run, settings, self._ledger.memory(state.id))
        except Exception as exc:
            packages = " ".join(exporter.requires)
            install = ""
            if packages:
                install = f"pip install --upgrade {packages}"
            blocked = incompatibility(
                exc, packages or f"the exporter {self._name}", install
            )
            if blocked is None:
                raise
            # An incompatible version does not pass by waiting: a person must upgrade it.
            raise blocked from exc

    def _found(self, writer: RunWriter) -> str:
        """Return what the tracker already held of the run, now or at an earlier open, and log what is new."""
        sentence = found_of(writer)
        if sentence:
            self._log_line(f"{self._name}: {sentence}")
        return sentence or self._position.now.found

    def _degraded(self, writer: RunWriter, logged: Sequence[str]) -> list[str]:
        """Return the abilities that *writer* lacks, and log each sentence that is not in *logged*."""
        degraded = degraded_of(writer)
        for sentence in degraded:
            if sentence not in logged:
                self._log_line(f"{self._name}: {sentence}")
        return [*degraded]

    def write(self, opened: OpenWriter, batch: Batch, *, ordered: bool) -> None:
        """Make the next call of *batch*.

        Raises:
            Exception: The writer's exception, when the call must be retried; it stays the next call
                of the batch.
            BlockedError: Every record causes an error of the writer itself.
        """
        call = batch.calls.popleft()
        error = self._made(opened, batch, call)
        written: WriterCall | None = call
        if error is not None:
            unwritten_from = None
            if isinstance(error, ExporterError):
                unwritten_from = error.position
            written, unwritten = call.split(unwritten_from)
            # Only what was not written: a repeated call must not double the first part.
            batch.calls.appendleft(unwritten)
        if written is not None:
            self._count(
                opened,
                batch,
                written.records,
                through=written.records[-1].position,
                ordered=ordered,
            )
        if error is None:
            self._retry.wrote()
        elif self._retry.is_for_good(error):
            self._refused(opened, batch, error, ordered=ordered)
        else:
            raise error

    def _made(
        self, opened: OpenWriter, batch: Batch, call: WriterCall
    ) -> Exception | None:
        """Make *call* of *batch*.

        Return the exception that it ended with, ``None`` when its records are written. A config or
        summary that was given when the writer was opened has the result that it had there: a second
        call could only set an older value.
        """
        last = call.records[-1]
        if (
            isinstance(last, (Config, Summary))
            and batch.place_of(last) <= opened.described_through
        ):
            return opened.refusal_of(call.records)
        if self._position.state.state in {"idle", "ended"}:
            self._position.show("writing")
        began = time.monotonic()
        try:
            call.call(opened.writer)
        except Exception as exc:  # noqa: BLE001  # the caller handles it
            return exc
        except BaseException as exc:  # noqa: BLE001  # SystemExit, a cancellation: the call failed, the thread goes on
            return RuntimeError(f"the tracker raised {type(exc).__name__}: {exc}")
        finally:
            # Also after an error: the call has taken the time from the trainer all the same.
            self.throttle.wrote(time.monotonic() - began)
        return None

    def _refused(
        self, opened: OpenWriter, batch: Batch, error: Exception, *, ordered: bool
    ) -> None:
        """Make a dead letter of the first record of the next call.

        Halve the call while the error names no record. Raises what `_set_aside` raises; the call is
        then as before.
        """
        call = batch.calls[0]
        # Another position is a writer's error: the first record may be sound.
        is_named = (
            isinstance(error, ExporterError)
            and error.position == call.records[0].position
        )
        if not is_named and len(call.records) > 1:
            batch.calls.popleft()
            # At most log2(n) halvings find a bad record, and the good ones are written on the way.
            batch.calls.extendleft(reversed(call.halves()))
            return
        refused = call.records[0]
        # Stored before it leaves the batch: after a kill in between it is refused once more.
        self._set_aside(refused, batch.place_of(refused), error)
        batch.calls.popleft()
        if len(call.records) > 1:
            batch.calls.appendleft(WriterCall(call.records[1:]))
        self._count(opened, batch, (), through=refused.position, ordered=ordered)

    def _set_aside(self, record: Record, position: Position, error: Exception) -> None:
        """Store *record*, whose place in the order is *position*, as a dead letter.

        Raises:
            BlockedError: Every record causes an unexpected error, so that the exporter itself is
                broken.
            JournalError: The ledger refuses it; the record stays in its batch.
        """
        self._retry.before_dead_letter(error)
        self._position.dead_letter(
            position,
            *codec.encode(record),
            record_id=record.id,
            reason=str(error),
        )

    def _count(
        self,
        opened: OpenWriter,
        batch: Batch,
        written: Sequence[Record],
        *,
        through: Position,
        ordered: bool,
    ) -> None:
        """Count the records *written*, and what the writer left out of them.

        Move the position *through* them, as far as the order allows. A record behind `counted` was
        counted before a kill or a new writer, and a dead letter at its first try. Raises
        `JournalError` when the position cannot be stored; the counts stay in the batch.
        """
        opened.wrote(written)
        left_out = opened.newly_left_out()
        counted_through = self._position.now.counted
        if batch.dead_letter is not None:
            # What is left out of it was counted at the first try.
            batch.count(written, {})
        elif through > counted_through:  # a repeated call was counted before
            uncounted = [
                record for record in written if record.position > counted_through
            ]
            batch.count(uncounted, opened.not_shown(uncounted) + left_out)
        # Without an order the calls of a batch mix positions: only its end is a safe position.
        if ordered and batch.calls:
            self._position.advance(
                through, batch, reports_durable=opened.reports_durable
            )

    def is_renamed(self) -> bool:
        """Return whether the project or the name of the run has changed since its writer was opened.

        ``False`` while none is open. Then the run is opened under its new name by its next record.
        """
        if self.opened is None:
            return False
        run = self._describe.brief(self._view.state_value("run"))
        return self._run_names != (run.project, run.name)

    def query_durable(self, opened: OpenWriter, state: ExporterState) -> None:
        """Read the durable position from the writer and store it.

        Raises what the writer raises (that it lost records, for example), and `JournalError` when
        the ledger refuses. A writer that answers ``None`` cannot confirm later: all that is written
        counts.
        """
        opened.queried_s = time.monotonic()
        durable = opened.writer.durable()
        # Behind its last record nothing needs a confirmation: all that is written is durable.
        if durable is None or durable >= opened.last:
            durable = state.written
        if durable > state.durable:
            self._position.save(
                dataclasses.replace(state, durable=min(durable, state.written))
            )

    def close(self) -> bool:
        """Close the writer, if one is open; return whether that failed, which is logged. Raises nothing.

        A failed close is not an error of the step: the caller writes again what was not confirmed.
        """
        opened = self.opened
        # Before the close: a writer that fails to close is not used again.
        self.opened = None
        if opened is not None:
            try:
                opened.writer.close()
            # Trackers raise `SystemExit` too, which would end the exporter's thread without a word.
            except BaseException as exc:  # noqa: BLE001  # the writer is released in any case
                self._log_line(f"{self._name}: closing its writer failed: {exc}")
                return True
        return False


@dataclasses.dataclass(slots=True)
class OpenWriter:
    """Holds an open writer.

    Attributes:
        described_through: Position up to which configs and summaries were written right after its
            open.
        reports_durable: Whether its records are durable only once it reports so.
        last: Position of the last row, rollout or evaluation that it wrote.
        queried_s: When it was last queried about what is durable.
        left_out: Records that it had left out at the last call of `newly_left_out`.
        refused: Refusals of configs and summaries right after its open, by kind and role.
    """

    writer: RunWriter
    described_through: Position
    reports_durable: bool = False
    last: Position = 0
    queried_s: float = 0.0
    left_out: Counter[str] = dataclasses.field(default_factory=Counter[str])
    refused: dict[tuple[type[Record], str | None], PermanentError] = dataclasses.field(
        default_factory=dict[tuple[type[Record], "str | None"], PermanentError]
    )

    def refusal_of(self, records: Sequence[Record]) -> PermanentError | None:
        """Return the refusal of the first of *records* that was refused right after the open, ``None`` without one."""
        for record in records:
            if isinstance(record, (Config, Summary)):
                refusal = self.refused.get((type(record), record.role))
                if refusal is not None:
                    return refusal
        return None

    def newly_left_out(self) -> Counter[str]:
        """Return what the writer left out since the last call: reason to count."""
        left_out = Counter(left_out_of(self.writer))
        newly_left_out = left_out - self.left_out
        self.left_out = left_out
        return newly_left_out

    def not_shown(self, records: Sequence[Record]) -> Counter[str]:
        """Return the media among *records*, of one kind, that the writer has no call for: reason to count."""
        not_shown: Counter[str] = Counter()
        for record in records:
            if isinstance(record, MediaRecord) and not isinstance(
                self.writer, WritesMedia
            ):
                not_shown[_NO_MEDIA] += 1
        return not_shown

    def wrote(self, records: Sequence[Record]) -> None:
        """Store the position of the last of *records* that a tracker's store may confirm."""
        for record in records:
            if not isinstance(record, (Alert, Config, Summary)):
                # A dead letter that was tried again has no position.
                self.last = max(self.last, record.position)


def counted(
    view: LedgerView, kinds: Sequence[int], state: ExporterState, through: Position
) -> ExporterState:
    """Return *state* with the records up to *through* counted, because the tracker already holds them.

    Without that, rows that arrived just before a kill would be missing from the count for ever,
    since no writer writes them again. What a writer left out of them is not known, so it is not
    counted.
    """
    if through <= state.counted:
        return state
    counts = view.count(state.counted, through)
    rows = 0
    if codec.ROW in kinds:
        rows = counts.get(codec.ROW, 0)
    rollouts = 0
    if codec.ROLLOUT in kinds:
        rollouts = counts.get(codec.ROLLOUT, 0)
    return dataclasses.replace(
        state,
        counted=through,
        rows=state.rows + rows,
        rollouts=state.rollouts + rollouts,
    )


class Throttle:
    """Decides how long a writer pauses between two batches, so that records collect. One thread.

    A row costs a tracker less the more rows one call has. A row of ten keys takes MLflow's SQLite 9
    ms alone, 2.5 ms among ten and 1.3 ms among a hundred. The bridge must leave as much of the
    machine as it can to the trainer.
    """

    def __init__(self) -> None:
        self._wrote_s = 0.0

    def wrote(self, seconds: float) -> None:
        """Add the duration of a call."""
        self._wrote_s += seconds

    def pause_s(self, *, allowed: bool) -> float:
        """Return the seconds to pause and reset the count.

        0 when it is not *allowed*, so that a backlog, `flush` and the end do not wait, or when the
        pause would be shorter than `SHORTEST_PAUSE_S`.
        """
        pause_s = min(self._wrote_s * PAUSE_FACTOR, LONGEST_PAUSE_S)
        self._wrote_s = 0.0
        if allowed and pause_s >= SHORTEST_PAUSE_S:
            return pause_s
        return 0.0
