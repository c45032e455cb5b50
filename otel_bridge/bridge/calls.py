"""Records -> the calls of a writer: one kind a call, in the ledger's order or sorted by kind. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, cast

from otel_bridge.bridge import codec
from otel_bridge.bridge.tables import Destination
from otel_bridge.exporter import RunWriter, TakesTraces
from otel_bridge.records import Config, End, LateValue, OtherTrace, Position, Record, Rollout, Row

_ORDER: Final[Mapping[type, int]] = {Config: 0, Row: 1, Rollout: 2, OtherTrace: 2, LateValue: 3}
"""In a window sorted by kind late values come behind the rollouts they belong to."""
_SIGNAL_KINDS: Final = {"metrics": (codec.ROW,), "traces": (codec.ROLLOUT,), "logs": ()}
_ALWAYS: Final = (codec.LATE, codec.CONFIG, codec.END)


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a writer: records of one kind, positions increasing."""

    records: Sequence[Record]

    def split(self, position: Position | None) -> tuple[Call | None, Call]:
        """Split into what was done and what was not, *position* being the first that was not (``None``: none was)."""
        positions = [record.position for record in self.records]
        if position is None or not positions[0] < position <= positions[-1]:
            return None, self
        cut = next(index for index, place in enumerate(positions) if place >= position)
        return Call(self.records[:cut]), Call(self.records[cut:])

    def halves(self) -> tuple[Call, Call]:
        """Split in the middle; there are two records at least."""
        middle = len(self.records) // 2
        return Call(self.records[:middle]), Call(self.records[middle:])

    def make(self, writer: RunWriter) -> None:
        """Make the call."""
        match self.records[0]:
            case Row():
                writer.write_rows(cast("Sequence[Row]", self.records))
            case Rollout():
                writer.write_rollouts(cast("Sequence[Rollout]", self.records))
            case LateValue():
                writer.write_late(cast("Sequence[LateValue]", self.records))
            case Config(role=role, config=config):
                writer.write_config(role, config)
            case OtherTrace():
                if isinstance(writer, TakesTraces):
                    writer.write_traces(cast("Sequence[OtherTrace]", self.records))
            case End():
                raise AssertionError("an end is not delivered among other records")


def calls_of(records: Sequence[Record], *, ordered: bool) -> list[Call]:
    """Return the calls that write *records*: consecutive ones of a kind together; unordered: all of a kind together.

    A config is a call of its own.
    """
    placed = records if ordered else sorted(records, key=lambda record: _ORDER[type(record)])
    calls: list[Call] = []
    for kind, group in groupby(placed, key=type):
        batch = list(group)
        calls.extend([Call([record]) for record in batch] if kind is Config else [Call(batch)])
    return calls


def kinds_of(signals: Sequence[str], *, takes_traces: bool = False) -> tuple[int, ...]:
    """Return the kinds of records that an exporter named for *signals* gets; late values, configs and ends always.

    Args:
        signals: What it is named for.
        takes_traces: With traces it gets those that are no rollouts too.
    """
    chosen = [kind for signal in signals for kind in _SIGNAL_KINDS[signal]]
    others = (codec.OTHER,) if takes_traces and codec.ROLLOUT in chosen else ()
    return (*sorted(set(chosen)), *others, *_ALWAYS)


def needs_writer(at: Destination, records: Sequence[Record], end: End | None) -> bool:
    """Say whether the tracker's run must be open for these; a row or rollout opens it first, config alone does not."""
    kinds = {type(record) for record in records}
    if kinds & {Row, Rollout, OtherTrace}:
        return True
    if not at.opened:
        return False
    if LateValue in kinds:
        return True
    return (not at.ended and bool(records or end)) or (end is not None and end.status is not at.end_status)
