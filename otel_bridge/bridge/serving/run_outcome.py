"""Describes what is left to do in a run folder, for code that waits for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from otel_bridge.bridge.ledger.exporter_state import ExporterState
from otel_bridge.journal.folder import RunFolder
from otel_bridge.records import Position


class Outcome(Enum):
    """Names what is left to do in a folder."""

    BUSY = "busy"
    DONE = "done"
    PARKED = "parked"
    """Nothing progresses until a person acts or a tracker answers again."""
    GONE = "gone"
    """The folder was deleted, or another bridge has it."""
    HANDED_OVER = "handed over"


@dataclass(frozen=True, slots=True)
class RunStatus:
    """Describes the state of one run, and its undelivered records.

    Attributes:
        outcome: What is left to do, in one word.
        living: Number of living processes.
        unread: Whether there are frames that are not translated yet.
        status: ``running``, or how the run ended.
        reason: Why the folder cannot be served.
        owed: Exporters that the run requested and that are not active here, to the number of
            records that they lack; for ``otlp``, of segments.
        position: Number of records so far; an exporter's waiting records are these minus its
            *written*.
    """

    run_id: str
    outcome: Outcome
    living: int = 0
    unread: bool = False
    status: str = "running"
    position: Position = 0
    rows: int = 0
    rollouts: int = 0
    exporters: Mapping[str, ExporterState] = field(
        default_factory=dict[str, ExporterState]
    )
    reason: str = ""
    owed: Mapping[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True)
class SegmentsRead:
    """Describes up to where the segments of a run were read when its bridge released it.

    Attributes:
        offsets: Process to the number of its segment and the offset up to which that was read.
    """

    folder: RunFolder
    offsets: Mapping[str, tuple[int, int]]

    def anything_new(self) -> bool:
        """Return whether the folder holds more than was read; ``False`` if it is gone or cannot be listed."""
        return any(
            (file.number, file.size_bytes) > self.offsets.get(file.instance_id, (-1, 0))
            for file in self.folder.segments()
        )
