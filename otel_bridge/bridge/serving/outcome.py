"""What is left to do in a run folder, for those that wait for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from otel_bridge.bridge.delivery.batch import Progress
from otel_bridge.journal.folder import RunFolder
from otel_bridge.records import Position


class Outcome(Enum):
    """What is left to do in a folder."""

    BUSY = "busy"
    DONE = "done"
    PARKED = "parked"
    """Nothing moves until a person acts or a tracker comes back."""
    GONE = "gone"
    """The folder was deleted, or another bridge has it."""
    HANDED_OVER = "handed over"


@dataclass(frozen=True, slots=True)
class RunStatus:
    """What one run has and what of it is not delivered.

    Attributes:
        rest: In one word.
        living: Processes that live.
        unread: There are frames that are not translated yet.
        status: ``running``, or how the run ended.
        reason: Why the folder cannot be served.
        owed: Exporters that the run asked for and that are not at work here, to the records that they have not got;
            ``otlp``: to its segments.
        position: Records so far; an exporter's waiting ones are these less its *written*.
    """

    run_id: str
    rest: Outcome
    living: int = 0
    unread: bool = False
    status: str = "running"
    position: Position = 0
    rows: int = 0
    rollouts: int = 0
    exporters: Mapping[str, Progress] = field(default_factory=dict[str, Progress])
    reason: str = ""
    owed: Mapping[str, int] = field(default_factory=dict[str, int])


# How far the segments of a run were read when its bridge released it.


@dataclass(frozen=True, slots=True)
class SegmentsRead:
    """What is left of a closed run.

    Attributes:
        known: Process to the number of its segment and the offset up to which it was read.
    """

    folder: RunFolder
    known: Mapping[str, tuple[int, int]]

    def anything_new(self) -> bool:
        """Return whether the folder holds more than was read."""
        return any(
            (file.number, file.size_bytes) > self.known.get(file.instance_id, (-1, 0))
            for file in self.folder.segments()
        )
