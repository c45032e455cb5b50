"""What is known of one process: kept hot while frames are read, flushed to ``proc/<instance>`` once a batch. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypedDict, cast

from otel_bridge.records import Status, Value
from otel_bridge.translation.sequence import Sequence, SequenceState

PREFIX = "proc/"


@dataclass(slots=True)
class Waiting:
    """A row that waits: for its missing pieces, or, whole, for the rows before it.

    Attributes:
        seq: Its number, 0 while unknown.
        want: How many values it has, -1 while unknown.
        since_ns: When its first piece came.
        size_bytes: About what it takes.
        written: Rows already made of it because it waited too long; above 0, `values` holds only what was written.
        base_id: Id of the first row made of it; further ones add ``:<n>``.
    """

    role: str | None
    step: int
    time_ns: int
    since_ns: int
    seq: int = 0
    want: int = -1
    values: dict[str, Value] = field(default_factory=dict[str, Value])
    size_bytes: int = 0
    written: int = 0
    base_id: str = ""

    @property
    def whole(self) -> bool:
        """All values are here."""
        return self.seq > 0 and 0 <= self.want <= len(self.values)


class ProcessState(TypedDict):
    """A `Process` as JSON, without its waiting rows, which have keys of their own."""

    role: str | None
    kind: str
    rank: int
    forked: bool
    launcher: bool
    foreign: bool
    attempt: int | None
    order: int
    seen_ns: int
    status: str | None
    silent: bool
    died: bool
    ended_ns: int
    came_ns: int
    end_time_ns: int
    end_event: int
    generation: int
    last_seq: int
    rows: SequenceState
    events: SequenceState
    attempts: dict[str, int]
    dropped: dict[str, int]


@dataclass(slots=True, eq=False)
class Process:
    """One process of the run.

    Attributes:
        instance: ``rl.instance.id``, or a made-up id of a foreign producer.
        kind: Kind of the segment it was first seen in: ``process``, ``receiver``, ``launcher``.
        order: Place in the order in which processes were first seen, from 0.
        seen_ns: When anything of it was last read.
        status: How it ended; ``None`` while it is open.
        silent: It was taken for ended because it was silent: any later word opens it again.
        died: It ended without a word.
        ended_ns: When its end was read.
        came_ns: When a row last came that follows its end.
        end_time_ns: The time its end event carries.
        end_event: Number of its end event, 0 without one.
        generation: How many ends the run had when it ended.
        last_seq: Number of its last row, as its end event says; 0 when it does not.
        rows: Numbers of the rows that have come.
        events: Numbers of the events that have come.
        attempts: Axis to which start of the role this process is.
        dropped: What the process itself dropped, by reason.
        waiting: Rows in pieces and rows behind a gap, by time.
        ready: Those of `waiting` that are whole, by number.
        written: Rows written before they were whole, by time.
        row_prefix: What the id of its rows begins with.
        gone: It lives no more and all of it is read, though its end is not said yet; not kept in the state.
    """

    instance: str
    kind: str
    role: str | None
    rank: int = 0
    forked: bool = False
    launcher: bool = False
    foreign: bool = False
    attempt: int | None = None
    order: int = 0
    seen_ns: int = 0
    status: Status | None = None
    silent: bool = False
    died: bool = False
    ended_ns: int = 0
    came_ns: int = 0
    end_time_ns: int = 0
    end_event: int = 0
    generation: int = 0
    last_seq: int = 0
    rows: Sequence = field(default_factory=Sequence)
    events: Sequence = field(default_factory=Sequence)
    attempts: dict[str, int] = field(default_factory=dict[str, int])
    dropped: dict[str, int] = field(default_factory=dict[str, int])
    waiting: dict[int, Waiting] = field(default_factory=dict[int, Waiting])
    ready: dict[int, Waiting] = field(default_factory=dict[int, Waiting])
    written: dict[int, Waiting] = field(default_factory=dict[int, Waiting])
    row_prefix: str = ""
    gone: bool = False
    dirty: bool = True

    def __post_init__(self) -> None:
        self.row_prefix = f"m:{self.instance}:"

    @property
    def decides(self) -> bool:
        """Its end may decide the run's status: forked children and ranks above 0 never do."""
        return not self.forked and self.rank == 0 and not self.launcher

    @property
    def remote(self) -> bool:
        """Only its silence tells that it died."""
        return self.kind == "receiver"

    @property
    def tail_missing(self) -> int:
        """Rows that its end event tells of and that have not come."""
        return max(self.last_seq - self.rows.high, 0) if self.status is not None else 0

    def to_state(self) -> ProcessState:
        """Return the process as JSON."""
        return {
            "role": self.role,
            "kind": self.kind,
            "rank": self.rank,
            "forked": self.forked,
            "launcher": self.launcher,
            "foreign": self.foreign,
            "attempt": self.attempt,
            "order": self.order,
            "seen_ns": self.seen_ns,
            "status": None if self.status is None else self.status.value,
            "silent": self.silent,
            "died": self.died,
            "ended_ns": self.ended_ns,
            "came_ns": self.came_ns,
            "end_time_ns": self.end_time_ns,
            "end_event": self.end_event,
            "generation": self.generation,
            "last_seq": self.last_seq,
            "rows": self.rows.to_state(),
            "events": self.events.to_state(),
            "attempts": dict(self.attempts),
            "dropped": dict(self.dropped),
        }

    @classmethod
    def from_state(cls, instance: str, value: object) -> Process:
        """Restore what `to_state` returned."""
        state = dict(cast("dict[str, object]", value))
        status = state["status"]
        state["status"] = None if status is None else Status(status)
        state["rows"] = Sequence.from_state(state["rows"])
        state["events"] = Sequence.from_state(state["events"])
        state["attempts"] = dict(cast("dict[str, int]", state["attempts"]))
        state["dropped"] = dict(cast("dict[str, int]", state["dropped"]))
        return cls(instance=instance, dirty=False, **state)  # type: ignore[arg-type]  # the keys of ProcessState
