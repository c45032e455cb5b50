"""Holds the data of a delivery: a batch of writer calls, the open writer, progress for the report."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Final, cast

from otel_bridge.bridge.ledger import codec
from otel_bridge.bridge.ledger.queries import LedgerView
from otel_bridge.bridge.ledger.rows import Destination
from otel_bridge.exporter import (
    ExporterSettings,
    HasBacklog,
    RunWriter,
    WritesAlerts,
    WritesMedia,
    WritesPlainTraces,
    WritesSummary,
    left_out_of,
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


@dataclass(frozen=True, slots=True)
class LastWanted:
    """Describes where the records of an exporter end that no process requests any more.

    Attributes:
        position: Position of the last record for the exporter.
        status: Status of the last process that requested the exporter.
    """

    position: Position
    status: Status = Status.FINISHED


@dataclass(frozen=True, slots=True)
class Progress:
    """Describes the progress of one exporter, for the report.

    Attributes:
        state: ``idle``, ``writing``, ``retrying``, ``blocked`` or ``ended``.
        failing_since_s: `time.monotonic` of its first failure; ``None`` while it works.
        damaged: Whether it found the ledger damaged and waits for a new one.
        resolved: Whether its settings could be read, so that `destination` and the numbers are valid.
        found: One line about what the tracker already held of the run at the first open; empty for nothing.
        backlog: Size of the work that its writer deferred.
        settled: Whether its tracker's run has ended or was never opened.
        last_wanted: Position of the last record for it; ``None`` when there is no last one.
    """

    exporter: str
    state: str = "idle"
    reason: str = ""
    help: str = ""
    url: str | None = None
    destination: Mapping[str, str] = field(default_factory=dict[str, str])
    written: Position = 0
    durable: Position = 0
    rows: int = 0
    rollouts: int = 0
    dead_letters: int = 0
    taken: int = 0
    failing_since_s: float | None = None
    resolved: bool = False
    settings: ExporterSettings | None = None
    damaged: bool = False
    found: str = ""
    backlog: int = 0
    settled: bool = False
    last_wanted: Position | None = None

    def lacks(self, position: Position) -> int:
        """Return the number of records up to *position* that the exporter still has to write."""
        last = position if self.last_wanted is None else min(position, self.last_wanted)
        return max(last - self.written, 0)

    def has_all(self, position: Position) -> bool:
        """Return whether the exporter needs none of the records up to *position*, not even to write lost ones again.

        Without further records, the end of the tracker's run settles records in doubt; otherwise a later record does.
        """
        return not self.lacks(position) and (self.settled or self.last_wanted is None)


@dataclass(slots=True)
class Batch:
    """Holds records that were read and not yet all written, as calls.

    Attributes:
        through: Value of *written* once all calls are made.
        end: End to act on after the calls.
        rows: Number of rows that were written and not yet counted in the destination.
        left_out: Records that the writer left out, not yet counted either: reason to count.
        owed_end: Whether its end is not a record: the exporter gets no more, though the run continues.
        dead_letter: Id of the dead letter that is retried; 0 for records in the ledger's order.
        refused: Whether its last record was refused for good.
        tried: Record of the dead letter, once written; ``None`` before that, or when it was refused again.
        whole: Whether it holds all available records, and no more were about to come.
    """

    calls: deque[WriterCall]
    through: Position
    end: End | None = None
    rows: int = 0
    rollouts: int = 0
    left_out: Counter[str] = field(default_factory=Counter[str])
    owed_end: bool = False
    dead_letter: int = 0
    refused: bool = False
    tried: Record | None = None
    whole: bool = False

    def count(self, records: Iterable[Record], left_out: Mapping[str, int]) -> None:
        """Count rows and rollouts that were written, and what the writer left out of them."""
        for record in records:
            self.rows += isinstance(record, Row)
            self.rollouts += isinstance(record, RolloutRecord)
        self.left_out.update(left_out)

    def counted(self) -> None:
        """Mark the counts as stored in the destination."""
        self.rows = self.rollouts = 0
        self.left_out.clear()

    def refuse(self) -> None:
        """Mark the last record as refused for good."""
        self.refused = True

    def try_done(self, record: Record) -> None:
        """Mark the dead letter as retried: its record was written, or refused again."""
        self.tried = None if self.refused else record

    def dead_letter_removed(self) -> None:
        """Mark the dead letter as removed from the ledger."""
        self.dead_letter = 0


_NO_MEDIA: Final = "media: this exporter shows none"


@dataclass(slots=True)
class OpenWriter:
    """Holds an open writer.

    Attributes:
        given: Position up to which configs were given to the writer right after its open.
        reports_durable: Whether its records are durable only once it reports so.
        last: Position of the last row, rollout or evaluation that it wrote.
        left_out: Records that it had left out at the last call of `newly_left_out`.
    """

    writer: RunWriter
    given: Position
    reports_durable: bool
    last: Position = 0
    looked_s: float = 0.0
    left_out: Mapping[str, int] = field(default_factory=dict[str, int])

    def newly_left_out(self) -> Mapping[str, int]:
        """Return what the writer left out since the last call: reason to count."""
        before, self.left_out = self.left_out, left_out_of(self.writer)
        return Counter(self.left_out) - Counter(before)

    def not_shown(self, records: Sequence[Record]) -> Counter[str]:
        """Return the media among *records*, of one kind, that the writer has no call for: reason to count."""
        is_media = bool(records) and isinstance(records[0], MediaRecord) and not isinstance(self.writer, WritesMedia)
        return Counter({_NO_MEDIA: len(records)} if is_media else {})

    def wrote(self, position: Position) -> None:
        """Store the position of the last row, rollout or evaluation that was written."""
        self.last = position

    def begin_reporting(self) -> None:
        """Mark the writer as one that reports what is durable."""
        self.reports_durable = True

    def looked(self, now_s: float) -> None:
        """Store when the writer was last asked what is durable."""
        self.looked_s = now_s

    def caught_up(self) -> bool:
        """Let the writer do some of its deferred work; return whether none is left."""
        return self.writer.process_backlog() if isinstance(self.writer, HasBacklog) else True


def counted(view: LedgerView, kinds: Sequence[int], at: Destination, through: Position) -> Destination:
    """Return *at* with the records up to *through* counted, because the tracker already holds them."""
    if through <= at.counted:
        return at
    found = view.count(at.counted, through)
    rows = found.get(codec.ROW, 0) if codec.ROW in kinds else 0
    rollouts = found.get(codec.ROLLOUT, 0) if codec.ROLLOUT in kinds else 0
    return replace(at, counted=through, rows=at.rows + rows, rollouts=at.rollouts + rollouts)


# Turns records into calls of a writer: one kind in each call, in the ledger's order or sorted by kind. Pure.

_ORDER: Final[Mapping[type, int]] = {
    Config: 0,
    Row: 1,
    MediaRecord: 2,
    RolloutRecord: 3,
    PlainTrace: 3,
    Evaluation: 4,
    Summary: 5,
    Alert: 6,
}
"""In a batch that is sorted by kind, evaluations follow the rollouts that they belong to, and summaries the rows."""
_SIGNAL_KINDS: Final = {"metrics": (codec.ROW, codec.MEDIA), "traces": (codec.ROLLOUT,), "logs": ()}
_ALWAYS: Final = (codec.EVALUATION, codec.CONFIG, codec.SUMMARY, codec.ALERT, codec.END)


@dataclass(frozen=True, slots=True)
class WriterCall:
    """Represents one call of a writer: records of one kind, positions increasing."""

    records: Sequence[Record]

    def split(self, position: Position | None) -> tuple[WriterCall | None, WriterCall]:
        """Split the call at *position*, the first record that was not written; ``None`` when none was written."""
        positions = [record.position for record in self.records]
        if position is None or not positions[0] < position <= positions[-1]:
            return None, self
        cut = next(index for index, place in enumerate(positions) if place >= position)
        return WriterCall(self.records[:cut]), WriterCall(self.records[cut:])

    def halves(self) -> tuple[WriterCall, WriterCall]:
        """Split the call in the middle; it has at least two records."""
        middle = len(self.records) // 2
        return WriterCall(self.records[:middle]), WriterCall(self.records[middle:])

    def make(self, writer: RunWriter) -> None:  # noqa: C901, PLR0912  # one case for each kind
        """Make the call."""
        match self.records[0]:
            case Row():
                writer.write_rows(cast("Sequence[Row]", self.records))
            case RolloutRecord():
                writer.write_rollouts(cast("Sequence[RolloutRecord]", self.records))
            case Evaluation():
                writer.write_evaluations(cast("Sequence[Evaluation]", self.records))
            case Config(role=role, config=config):
                writer.write_config(role, config)
            case Summary():
                if isinstance(writer, WritesSummary):
                    for role, values in last_values(cast("Sequence[Summary]", self.records)).items():
                        writer.write_summary(role, values)
            case Alert():
                if isinstance(writer, WritesAlerts):
                    writer.write_alerts(cast("Sequence[Alert]", self.records))
            case PlainTrace():
                if isinstance(writer, WritesPlainTraces):
                    writer.write_traces(cast("Sequence[PlainTrace]", self.records))
            case MediaRecord():
                if isinstance(writer, WritesMedia):
                    writer.write_media(cast("Sequence[MediaRecord]", self.records))
            case End():
                raise AssertionError("an end is not delivered among other records")


def last_values(summaries: Sequence[Summary]) -> dict[str | None, dict[str, Scalar]]:
    """Return the last value of each key in *summaries*, by role."""
    found: dict[str | None, dict[str, Scalar]] = {}
    for summary in summaries:
        found.setdefault(summary.role, {}).update(summary.values)
    return found


def calls_of(records: Sequence[Record], *, ordered: bool) -> list[WriterCall]:
    """Return the calls that write *records*.

    Consecutive records of a kind share a call; unordered, all records of a kind do. A config is a call of its own.
    """
    placed = records if ordered else sorted(records, key=lambda record: _ORDER[type(record)])
    calls: list[WriterCall] = []
    for kind, group in groupby(placed, key=type):
        batch = list(group)
        calls.extend([WriterCall([record]) for record in batch] if kind is Config else [WriterCall(batch)])
    return calls


def kinds_of(signals: Sequence[str], *, takes_traces: bool = False) -> tuple[int, ...]:
    """Return the kinds of records for an exporter of *signals*; evaluations, what no signal names always.

    Args:
        signals: Signals that the exporter is named for.
        takes_traces: Whether the exporter also gets traces that are not rollouts, if it gets traces.
    """
    chosen = [kind for signal in signals for kind in _SIGNAL_KINDS[signal]]
    others = (codec.OTHER,) if takes_traces and codec.ROLLOUT in chosen else ()
    return (*sorted(set(chosen)), *others, *_ALWAYS)


def needs_writer(at: Destination, records: Sequence[Record], end: End | None) -> bool:
    """Return whether these records need an open run in the tracker; a config alone does not.

    A run that failed or was killed before its first row needs one: its tracker shows it, with its config.
    """
    kinds = {type(record) for record in records}
    if kinds & {Row, RolloutRecord, PlainTrace, Summary, MediaRecord, Alert}:
        return True
    if not at.opened:
        return end is not None and bool(end.id) and end.status is not Status.FINISHED
    if Evaluation in kinds:
        return True
    return (not at.ended and bool(records or end)) or (end is not None and end.status is not at.end_status)
