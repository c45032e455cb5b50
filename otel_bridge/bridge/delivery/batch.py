"""Decides what a writer gets next: records of the ledger as calls of one kind each, or a dead letter again.

Nothing here calls a writer but `WriterCall.call`, and nothing is stored but the removal of a
retried dead letter.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import cast

from otel_bridge.bridge.delivery.context import DeliveryContext, DeliveryRequests
from otel_bridge.bridge.delivery.less_text import truncate
from otel_bridge.bridge.ledger import codec
from otel_bridge.bridge.ledger.exporter_state import ExporterState
from otel_bridge.bridge.ledger.queries import LedgerView, StoredDeadLetter
from otel_bridge.errors import InvalidRecordError
from otel_bridge.exporter import (
    RunWriter,
    WritesAlerts,
    WritesMedia,
    WritesPlainTraces,
    WritesSummary,
)
from otel_bridge.records import (
    Alert,
    Config,
    End,
    Evaluation,
    MediaRecord,
    PlainTrace,
    Position,
    Record,
    RolloutRecord,
    Row,
    Scalar,
    Status,
    Summary,
)

_ORDER: Mapping[type, int] = {
    Config: 0,
    Row: 1,
    MediaRecord: 2,
    RolloutRecord: 3,
    PlainTrace: 4,
    Evaluation: 5,
    Summary: 6,
    Alert: 7,
}
"""In a batch that is sorted by kind, late spans and evaluations follow the rollouts that they belong
to, and summaries the rows."""
_SIGNAL_KINDS = {
    "metrics": (codec.ROW, codec.MEDIA),
    "traces": (codec.ROLLOUT, codec.TOKEN_VIEW),
    "logs": (),  # records made of events are among `_ALWAYS`
}
_ALWAYS = (codec.EVALUATION, codec.CONFIG, codec.SUMMARY, codec.ALERT, codec.END)


@dataclass(slots=True)
class Batch:
    """Holds records that were read in the ledger's order and not yet all written, as calls.

    Attributes:
        through: Value of *written* once all calls are made.
        end: End to act on after the calls.
        owed_end: Whether its end is not a record: the exporter gets no more, though the run
            continues.
        whole: Whether it holds all available records, and no more were about to come.
        rows: Number of rows that were written and not yet counted in the destination.
        left_out: Records that the writer left out, not yet counted either: reason to count.
        dead_letter: Dead letter that it writes again; ``None`` for records of the ledger.
    """

    calls: deque[WriterCall]
    through: Position
    end: End | None = None
    owed_end: bool = False
    whole: bool = False
    rows: int = 0
    rollouts: int = 0
    left_out: Counter[str] = field(default_factory=Counter[str])
    dead_letter: StoredDeadLetter | None = None

    def count(self, records: Iterable[Record], left_out: Mapping[str, int]) -> None:
        """Count rows and rollouts that were written, and what the writer left out of them."""
        for record in records:
            self.rows += isinstance(record, Row)
            self.rollouts += isinstance(record, RolloutRecord)
        self.left_out.update(left_out)

    def place_of(self, record: Record) -> Position:
        """Return the position of *record* in the ledger's order.

        A dead letter that is tried again has none itself.
        """
        if self.dead_letter is None:
            return record.position
        return self.dead_letter.position

    def counted(self) -> None:
        """Mark the counts as stored in the destination."""
        self.rows = 0
        self.rollouts = 0
        self.left_out.clear()


@dataclass(frozen=True, slots=True)
class WriterCall:
    """Represents one call of a writer: records of one kind, positions increasing."""

    records: Sequence[Record]

    def split(self, position: Position | None) -> tuple[WriterCall | None, WriterCall]:
        """Split the call at *position*, the first record that was not written.

        ``None`` when none was written.
        """
        positions = [record.position for record in self.records]
        # A position outside the call is a writer's error: the whole call counts as not written.
        if position is None or not positions[0] < position <= positions[-1]:
            return None, self
        cut = bisect_left(positions, position)
        return WriterCall(self.records[:cut]), WriterCall(self.records[cut:])

    def halves(self) -> tuple[WriterCall, WriterCall]:
        """Split the call in the middle; it has at least two records."""
        middle = len(self.records) // 2
        return WriterCall(self.records[:middle]), WriterCall(self.records[middle:])

    def call(self, writer: RunWriter) -> None:
        """Make the call; records of a kind that *writer* has no method for are passed over.

        Raises what the writer raises. `WriterSession.write` decides whether that is a retry or a
        dead letter. Of several summaries of a role the last values count, so that one call is
        enough. An end is never among the records: `Delivery` takes it out before.
        """
        match self.records[0]:
            case Row():
                writer.write_rows(cast("Sequence[Row]", self.records))
            case RolloutRecord():
                writer.write_rollouts(cast("Sequence[RolloutRecord]", self.records))
            case Evaluation():
                writer.write_evaluations(cast("Sequence[Evaluation]", self.records))
            case Config(role=role, config=config):
                writer.write_config(role, config)
            case Summary() if isinstance(writer, WritesSummary):
                values_by_role = _last_values(cast("Sequence[Summary]", self.records))
                for role, values in values_by_role.items():
                    writer.write_summary(role, values)
            case Alert() if isinstance(writer, WritesAlerts):
                writer.write_alerts(cast("Sequence[Alert]", self.records))
            case PlainTrace() if isinstance(writer, WritesPlainTraces):
                writer.write_traces(cast("Sequence[PlainTrace]", self.records))
            case MediaRecord() if isinstance(writer, WritesMedia):
                writer.write_media(cast("Sequence[MediaRecord]", self.records))
            case End():
                raise AssertionError("an end is not delivered among other records")
            case _:
                pass


def _last_values(summaries: Sequence[Summary]) -> dict[str | None, dict[str, Scalar]]:
    """Return the last value of each summary by role: earlier ones of the batch would be overwritten at once."""
    values_by_role: dict[str | None, dict[str, Scalar]] = {}
    for summary in summaries:
        values_by_role.setdefault(summary.role, {}).update(summary.values)
    return values_by_role


def calls_of(records: Sequence[Record], *, ordered: bool) -> list[WriterCall]:
    """Return the calls that write *records*, in their order if *ordered*; none for no records.

    Consecutive records of a kind share a call, because a row costs a tracker less the more rows a
    call has. Unordered (MLflow, Trackio), all records of a kind do. A config is a call of its own:
    a writer takes one at a time.
    """
    if not ordered:
        records = sorted(records, key=lambda record: _ORDER[type(record)])
    calls: list[WriterCall] = []
    for kind, group in groupby(records, key=type):
        if kind is Config:
            calls += [WriterCall([config]) for config in group]
        else:
            calls.append(WriterCall(list(group)))
    return calls


def kinds_of(signals: Sequence[str], *, takes_traces: bool) -> tuple[int, ...]:
    """Return the kinds of records for an exporter of *signals*.

    Evaluations, configs, summaries, alerts and ends always: no signal names them, and each belongs
    to a run that the exporter shows.

    Args:
        signals: Signals that the exporter is named for.
        takes_traces: Whether the exporter also gets plain traces, if it gets traces.
    """
    kinds: set[int] = set()
    for signal in signals:
        kinds.update(_SIGNAL_KINDS[signal])
    if takes_traces and codec.ROLLOUT in kinds:
        kinds.add(codec.OTHER)
    return (*sorted(kinds), *_ALWAYS)


def needs_writer(
    state: ExporterState, records: Sequence[Record], end: End | None
) -> bool:
    """Return whether these records need an open run in the tracker; a config alone does not.

    Otherwise each program that begins and logs nothing would leave an empty run in every tracker. A
    run that failed or was killed before its first row needs one: its tracker shows it, with its
    config. An end needs one if the tracker's run is open, or ended with another status.
    """
    kinds = {type(record) for record in records}
    if kinds - {Config, Evaluation}:
        return True
    if not state.opened:
        return end is not None and bool(end.id) and end.status is not Status.FINISHED
    if Evaluation in kinds or (records and not state.ended):
        return True
    return end is not None and (not state.ended or end.status is not state.end_status)


class DeadLetterQueue:
    """Holds the dead letters that one exporter must retry, at a person's request. For the exporter's own thread.

    The writer gets a dead letter between two batches of the ledger's order, as a batch of its own.
    The dead letter stays in the ledger until it is written. If it is refused again, it is stored
    again with the new reason.

    Args:
        context: Context of the exporter's delivery.
        requests: Dead letters that were requested and are not done.
    """

    def __init__(self, context: DeliveryContext, requests: DeliveryRequests) -> None:
        self._ledger = context.ledger
        self._limit = context.limit
        self._log_line = context.log_line
        self._requests = requests

    @property
    def waiting(self) -> int:
        """Return how many dead letters wait for a retry."""
        return len(self._requests.dead_letters)

    def next(
        self, view: LedgerView, state: ExporterState, kinds: Sequence[int]
    ) -> Batch | None:
        """Return the first dead letter as a batch, else the end of the run that one of them reopened.

        ``None`` when neither waits. A dead letter that was discarded, belongs to another
        destination or cannot be decoded leaves the queue with a line in the log; it stays in the
        ledger. The batch of one whose record of *kinds* is due has no call. Raises `JournalError`
        when the ledger cannot be read; the queue is then as before.
        """
        while waiting := self._requests.dead_letters:
            stored = view.dead_letters([waiting[0]])
            # Empty: it was discarded meanwhile.
            record = self._record(stored[0], state) if stored else None
            if record is None:
                self._requests.dead_letter_done(waiting[0])
                continue
            calls = deque([WriterCall([record])])
            if _is_due(stored[0], view, state, kinds):
                # A new writer gets it in its place, as offline: a call here would double it.
                calls.clear()
            return Batch(calls, state.written, dead_letter=stored[0])
        # Also of an earlier bridge, which was stopped or parked before it ended the run again. Records
        # that are due, because the tracker lost them, cancel it: the end of the ledger follows them.
        if state.owes_end and state.end_status is not None:
            end = End("", state.end_status, 0, state.written)
            return Batch(deque(), state.written, end)
        return None

    def done(self, state: ExporterState, number: int) -> ExporterState:
        """Remove a dead letter that was tried from the ledger and the queue; return *state* without it.

        If it was refused again, `DeliveryPosition.dead_letter` has stored it anew, with the new
        reason. Raises `JournalError` when the ledger refuses; the next step then repeats the
        removal only.
        """
        # A kill before this leaves the dead letter, which is then written again.
        removed = self._ledger.remove_dead_letters(state.id, [number])
        self._requests.dead_letter_done(number)
        return replace(state, dead_letters=max(state.dead_letters - removed, 0))

    def _record(
        self, dead_letter: StoredDeadLetter, state: ExporterState
    ) -> Record | None:
        """Return the record of *dead_letter*, without a position.

        ``None`` when it cannot be tried again; that is logged, because a person asked for the retry.
        """
        obstacle = _retry_obstacle(dead_letter, state)
        if not obstacle:
            try:
                record = codec.decode(dead_letter.kind, dead_letter.data, 0)
            except InvalidRecordError as exc:
                obstacle = str(exc)
            else:
                # The limit may be stricter than at the first try.
                limit = self._limit()
                if limit is not None:
                    record = truncate(record, limit)
                # Without a position: a writer that skips what it holds by position would skip it
                # behind its place in the order, and behind any place that another record has.
                return record
        self._log_line(
            f"{state.exporter}: dead letter {dead_letter.id} cannot be tried again: {obstacle}"
        )
        return None


def _is_due(
    dead_letter: StoredDeadLetter,
    view: LedgerView,
    state: ExporterState,
    kinds: Sequence[int],
) -> bool:
    """Return whether the record of *dead_letter* is of *kinds* and behind what is written.

    So it is after the tracker lost what it had not confirmed. Raises `JournalError` when the ledger
    cannot be read.
    """
    if dead_letter.position <= state.written:
        return False
    page = view.records(
        dead_letter.position - 1,
        kinds,
        limit=1,
        limit_bytes=1,
        end=dead_letter.position,
    )
    return any(record.id == dead_letter.record_id for record in page.records)


def _retry_obstacle(dead_letter: StoredDeadLetter, state: ExporterState) -> str:
    """Return why a dead letter cannot be tried again, empty when it can.

    Another destination is another tracker or account: the record was refused there, not here.
    """
    if dead_letter.destination_id != state.id:
        return "it belongs to another destination of this exporter"
    if dead_letter.data:
        return ""
    return "its content was released, there were too many"
