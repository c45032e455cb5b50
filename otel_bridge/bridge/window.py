"""What delivery holds while it works: the window of calls, the open writer, how far it is."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from otel_bridge.bridge import codec
from otel_bridge.bridge.calls import Call
from otel_bridge.bridge.tables import Destination
from otel_bridge.bridge.view import View
from otel_bridge.exporter import CatchesUp, ExporterSettings, RunInfo, RunWriter
from otel_bridge.records import End, Position, Record


class Describe(Protocol):
    """Tells what the run is, from one snapshot of the ledger."""

    def __call__(self, view: View, *, reopened: bool) -> tuple[Position, RunInfo]:
        """Return the run, and the position up to which its configs hold everything."""
        ...


@dataclass(frozen=True, slots=True)
class Progress:
    """How far one exporter is, for the report.

    Attributes:
        state: ``idle``, ``writing``, ``retrying``, ``blocked`` or ``ended``.
        failing_since_s: `time.monotonic` when it began to fail, ``None`` when it does not.
        damaged: It found the ledger damaged and waits for a new one.
        resolved: Its settings could be read, so `destination` and the numbers mean something.
        found: What the tracker already held of the run when it was first opened, one line; empty: nothing.
        put_off: How much of what is written its writer has put off.
    """

    exporter: str
    state: str = "idle"
    reason: str = ""
    help: str = ""
    url: str | None = None
    destination: Mapping[str, str] = field(default_factory=dict[str, str])
    written: Position = 0
    safe: Position = 0
    rows: int = 0
    rollouts: int = 0
    dead_letters: int = 0
    taken: int = 0
    failing_since_s: float | None = None
    resolved: bool = False
    settings: ExporterSettings | None = None
    damaged: bool = False
    found: str = ""
    put_off: int = 0


@dataclass(slots=True)
class Window:
    """Records read and not yet all written, as calls.

    Attributes:
        through: Where *written* stands when all calls are made.
        end: The end to act on after them.
        rows: Rows written and not yet counted in the destination.
        letter: The dead letter that this is, tried again; 0: records in the ledger's order.
        refused: The last record of it was refused for good.
        tried: The record of the letter, once it was written; ``None``: not yet, or refused again.
        whole: It took all that there was, and no more was about to come.
    """

    calls: deque[Call]
    through: Position
    end: End | None = None
    rows: int = 0
    rollouts: int = 0
    letter: int = 0
    refused: bool = False
    tried: Record | None = None
    whole: bool = False


@dataclass(slots=True)
class OpenWriter:
    """An open writer.

    Attributes:
        given: Configs up to this position were given right after open.
        tells_safe: What it wrote is safe only when it says so.
        last: The last row, rollout or late value it wrote.
    """

    writer: RunWriter
    given: Position
    tells_safe: bool
    last: Position = 0
    looked_s: float = 0.0

    def caught_up(self) -> bool:
        """Let the writer do a little of what it put off; say whether nothing is left of it."""
        return self.writer.catch_up() if isinstance(self.writer, CatchesUp) else True


def counted(view: View, kinds: Sequence[int], at: Destination, through: Position) -> Destination:
    """Return *at* with the records up to *through* counted, which the tracker turns out to hold."""
    if through <= at.counted:
        return at
    found = view.count(at.counted, through)
    rows = found.get(codec.ROW, 0) if codec.ROW in kinds else 0
    rollouts = found.get(codec.ROLLOUT, 0) if codec.ROLLOUT in kinds else 0
    return replace(at, counted=through, rows=at.rows + rows, rollouts=at.rollouts + rollouts)
