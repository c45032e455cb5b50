"""Hold what delivery works on: a batch of writer calls, the open writer, progress for the report."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Final, cast

from otel_bridge.bridge.ledger import codec
from otel_bridge.bridge.ledger.queries import LedgerView
from otel_bridge.bridge.ledger.rows import Destination
from otel_bridge.exporter import ExporterSettings, HasBacklog, RunWriter, WritesPlainTraces, left_out_of
from otel_bridge.records import Config, End, Evaluation, PlainTrace, Position, Record, RolloutRecord, Row, Status


@dataclass(frozen=True, slots=True)
class LastWanted:
    """Where the records of an exporter end that is only owed some: no process asks for it any more.

    Attributes:
        position: Position of the last record that it is to get.
        status: How the last process ended that asked for it.
    """

    position: Position
    status: Status = Status.FINISHED


@dataclass(frozen=True, slots=True)
class Progress:
    """How far one exporter is, for the report.

    Attributes:
        state: ``idle``, ``writing``, ``retrying``, ``blocked`` or ``ended``.
        failing_since_s: `time.monotonic` when it began to fail, ``None`` when it does not.
        damaged: It found the ledger damaged and waits for a new one.
        resolved: Its settings could be read, so `destination` and the numbers mean something.
        found: What the tracker already held of the run when it was first opened, one line; empty: nothing.
        backlog: How much of what is written its writer has deferred.
        settled: Its tracker's run has ended, or was never opened.
        last_wanted: Position of the last record that it is to get; ``None``: there is no last one.
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
        """Return how many of the records up to *position* it has not written and is to get."""
        last = position if self.last_wanted is None else min(position, self.last_wanted)
        return max(last - self.written, 0)

    def has_all(self, position: Position) -> bool:
        """Return whether it needs none of the records up to *position*, also not to replace what its tracker loses.

        Where no more comes for it, the end of its tracker's run decides that; else a record behind them does.
        """
        return not self.lacks(position) and (self.settled or self.last_wanted is None)


@dataclass(slots=True)
class Batch:
    """Records read and not yet all written, as calls.

    Attributes:
        through: Where *written* stands when all calls are made.
        end: The end to act on after them.
        rows: Rows written and not yet counted in the destination.
        left_out: What the writer left out of them, not yet counted either: reason to count.
        owed_end: Its end is not a record: the exporter is to get no more, though the run goes on.
        dead_letter: The dead letter that this is, tried again; 0: records in the ledger's order.
        refused: The last record of it was refused for good.
        tried: The record of the dead letter, once it was written; ``None``: not yet, or refused again.
        whole: It took all that there was, and no more was about to come.
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
        """Note that the counts are in the destination."""
        self.rows = self.rollouts = 0
        self.left_out.clear()

    def refuse(self) -> None:
        """Note that the record tried last was refused for good."""
        self.refused = True

    def try_done(self, record: Record) -> None:
        """Note that the dead letter was tried: it is written, or was refused again."""
        self.tried = None if self.refused else record

    def dead_letter_removed(self) -> None:
        """Note that the dead letter has left the ledger."""
        self.dead_letter = 0


@dataclass(slots=True)
class OpenWriter:
    """An open writer.

    Attributes:
        given: Configs up to this position were given right after open.
        reports_durable: What it wrote is durable only when it says so.
        last: The last row, rollout or evaluation it wrote.
        left_out: What it had left out when `newly_left_out` was asked last.
    """

    writer: RunWriter
    given: Position
    reports_durable: bool
    last: Position = 0
    looked_s: float = 0.0
    left_out: Mapping[str, int] = field(default_factory=dict[str, int])

    def newly_left_out(self) -> Mapping[str, int]:
        """Return what the writer left out since this was asked last: reason to count."""
        before, self.left_out = self.left_out, left_out_of(self.writer)
        return Counter(self.left_out) - Counter(before)

    def wrote(self, position: Position) -> None:
        """Note the last row, rollout or evaluation that was written."""
        self.last = position

    def begin_reporting(self) -> None:
        """Note that the writer reports what is durable."""
        self.reports_durable = True

    def looked(self, now_s: float) -> None:
        """Note when the writer was asked last what is durable."""
        self.looked_s = now_s

    def caught_up(self) -> bool:
        """Let the writer do a little of what it deferred; return whether nothing is left of it."""
        return self.writer.process_backlog() if isinstance(self.writer, HasBacklog) else True


def counted(view: LedgerView, kinds: Sequence[int], at: Destination, through: Position) -> Destination:
    """Return *at* with the records up to *through* counted, which the tracker turns out to hold."""
    if through <= at.counted:
        return at
    found = view.count(at.counted, through)
    rows = found.get(codec.ROW, 0) if codec.ROW in kinds else 0
    rollouts = found.get(codec.ROLLOUT, 0) if codec.ROLLOUT in kinds else 0
    return replace(at, counted=through, rows=at.rows + rows, rollouts=at.rollouts + rollouts)


# Records -> the calls of a writer: one kind a call, in the ledger's order or sorted by kind. Pure.

_ORDER: Final[Mapping[type, int]] = {Config: 0, Row: 1, RolloutRecord: 2, PlainTrace: 2, Evaluation: 3}
"""In a batch sorted by kind evaluations come behind the rollouts they belong to."""
_SIGNAL_KINDS: Final = {"metrics": (codec.ROW,), "traces": (codec.ROLLOUT,), "logs": ()}
_ALWAYS: Final = (codec.LATE, codec.CONFIG, codec.END)


@dataclass(frozen=True, slots=True)
class WriterCall:
    """One call of a writer: records of one kind, positions increasing."""

    records: Sequence[Record]

    def split(self, position: Position | None) -> tuple[WriterCall | None, WriterCall]:
        """Split into what was done and what was not, *position* being the first that was not (``None``: none was)."""
        positions = [record.position for record in self.records]
        if position is None or not positions[0] < position <= positions[-1]:
            return None, self
        cut = next(index for index, place in enumerate(positions) if place >= position)
        return WriterCall(self.records[:cut]), WriterCall(self.records[cut:])

    def halves(self) -> tuple[WriterCall, WriterCall]:
        """Split in the middle; there are two records at least."""
        middle = len(self.records) // 2
        return WriterCall(self.records[:middle]), WriterCall(self.records[middle:])

    def make(self, writer: RunWriter) -> None:
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
            case PlainTrace():
                if isinstance(writer, WritesPlainTraces):
                    writer.write_traces(cast("Sequence[PlainTrace]", self.records))
            case End():
                raise AssertionError("an end is not delivered among other records")


def calls_of(records: Sequence[Record], *, ordered: bool) -> list[WriterCall]:
    """Return the calls that write *records*: consecutive ones of a kind together; unordered: all of a kind together.

    A config is a call of its own.
    """
    placed = records if ordered else sorted(records, key=lambda record: _ORDER[type(record)])
    calls: list[WriterCall] = []
    for kind, group in groupby(placed, key=type):
        batch = list(group)
        calls.extend([WriterCall([record]) for record in batch] if kind is Config else [WriterCall(batch)])
    return calls


def kinds_of(signals: Sequence[str], *, takes_traces: bool = False) -> tuple[int, ...]:
    """Return the kinds of records that an exporter named for *signals* gets; evaluations, configs and ends always.

    Args:
        signals: What it is named for.
        takes_traces: With traces it gets those that are not rollouts too.
    """
    chosen = [kind for signal in signals for kind in _SIGNAL_KINDS[signal]]
    others = (codec.OTHER,) if takes_traces and codec.ROLLOUT in chosen else ()
    return (*sorted(set(chosen)), *others, *_ALWAYS)


def needs_writer(at: Destination, records: Sequence[Record], end: End | None) -> bool:
    """Return whether the tracker's run must be open for these; config alone does not open it."""
    kinds = {type(record) for record in records}
    if kinds & {Row, RolloutRecord, PlainTrace}:
        return True
    if not at.opened:
        return False
    if Evaluation in kinds:
        return True
    return (not at.ended and bool(records or end)) or (end is not None and end.status is not at.end_status)
