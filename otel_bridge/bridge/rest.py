"""What is left to do in a run folder, for those that wait for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from otel_bridge.bridge.window import Progress
from otel_bridge.records import Position


class Rest(Enum):
    """What is left to do in a folder."""

    BUSY = "busy"
    DONE = "done"
    PARKED = "parked"
    """Nothing moves until a person acts or a tracker comes back."""
    GONE = "gone"
    """The folder was deleted, or another bridge has it."""
    HANDED_OVER = "handed over"


@dataclass(frozen=True, slots=True)
class Remaining:
    """What one run has and what of it is not delivered.

    Attributes:
        rest: In one word.
        living: Processes that live.
        unread: There are frames that are not translated yet.
        status: ``running``, or how the run ended.
        reason: Why the folder cannot be served.
        position: Records so far; an exporter's waiting ones are these less its *written*.
    """

    run_id: str
    rest: Rest
    living: int = 0
    unread: bool = False
    status: str = "running"
    position: Position = 0
    rows: int = 0
    rollouts: int = 0
    exporters: Mapping[str, Progress] = field(default_factory=dict[str, Progress])
    reason: str = ""
