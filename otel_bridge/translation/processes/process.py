"""State of one process: in memory while frames are read, flushed to ``proc/<instance>`` once a batch. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from otel_bridge.records import Status, Value
from otel_bridge.semconv import ENGINE_ROLE
from otel_bridge.translation.decode.rows import RowFragment
from otel_bridge.translation.packing import NOT_STORED
from otel_bridge.translation.processes.sequence import SequenceTracker

PREFIX = "proc/"


@dataclass(frozen=True, slots=True)
class ProcessStart:
    """Holds the time at which a process joined the run, from its segment header.

    Attributes:
        unix_ns: Time by the wall clock of its machine.
        monotonic_ns: Time by the monotonic clock of its machine, comparable under one *boot_id*
            only; 0: unknown.
        boot_id: Boot id of its machine.
    """

    unix_ns: int
    monotonic_ns: int = 0
    boot_id: str = ""


@dataclass(slots=True)
class PendingRow(RowFragment):
    """Holds a row that waits for its missing fragments, or, when whole, for the rows before it.

    Attributes:
        since_ns: Time at which the first fragment arrived.
        size_bytes: Approximate size of the row in memory.
        records_made: Number of records made of the row because it waited too long; above 0,
            `values` holds only what they show.
        base_id: Id of the first record made of the row; further records add ``:<n>``.
    """

    since_ns: int = 0
    size_bytes: int = 0
    records_made: int = 0
    base_id: str = ""

    @property
    def is_open(self) -> bool:
        """Return whether its process may still add to the row: without a number, and no record made."""
        return self.seq == 0 and self.records_made == 0

    def set_number(self, seq: int, value_count: int, own_ns: int) -> None:
        """Note the row's number, how many values it has, and its own time."""
        self.seq = seq
        self.value_count = value_count
        self.own_ns = own_ns

    def extend(self, values: Mapping[str, Value], same_keys: int) -> int:
        """Add *values*, and *same_keys* without a full key of their own.

        Return their approximate size.
        """
        size_bytes = sum(len(key) + 64 for key in values if key not in self.values)
        self.values.update(values)
        self.same += same_keys
        self.size_bytes += size_bytes
        return size_bytes

    def release(self) -> int:
        """Stop counting the row as waiting; return the bytes that the row took."""
        size_bytes = self.size_bytes
        # A second release must not subtract the bytes again.
        self.size_bytes = 0
        return size_bytes

    def begin_writing(self, base_id: str) -> None:
        """Note that a first record is made of the incomplete row."""
        self.base_id = base_id
        self.records_made = 1

    def next_id(self) -> str:
        """Return the id of a further record of the row."""
        self.records_made += 1
        return f"{self.base_id}:{self.records_made - 1}"


@dataclass(slots=True, eq=False)
class Process:
    """Holds the state of one process of the run: one entry of the state, with a field for each value stored.

    Attributes:
        instance: ``rl.instance.id``, or a made-up id of a third-party producer.
        kind: Kind of the segment that first named the process: ``process``, ``receiver``,
            ``launcher``.
        order: Place in the order in which processes were first seen, from 0; decides between equal
            starts.
        started_ns: Unix ns when the process joined the run.
        seen_ns: Time at which data of the process were last read.
        began_ns: Time at which the process was first seen; for a local process, the start of its
            first segment.
        anonymous: Whether this may be several third-party processes that nothing but a shared name
            identifies.
        merge_world: Number of ranks whose rows become one row a step; 0: the rows are shown as
            sent.
        status: Status with which the process ended; ``None`` while the process is open.
        timed_out: Whether silence alone ended the process: any later data reopen it.
        crashed: Whether the process ended without reporting its end.
        ended_ns: Time at which the end was read.
        row_arrived_ns: Time at which a new row last arrived.
        end_time_ns: Time in the end event.
        end_event: Number of the end event, 0 without one.
        generation: Number of ends that the run had when the process ended.
        last_seq: Number of the last row, from the end event; 0 when unknown.
        rows: Numbers of the received rows.
        events: Numbers of the received events.
        attempts: Axis to the attempt of the role that this process belongs to.
        dropped: Counts of drops in the process itself, by reason.
        waiting: Incomplete rows and rows behind a gap, by time; rows have keys of their own in the
            state.
        ready: Whole rows of `waiting`, by number.
        written: Rows written while incomplete, by time.
        drained: Whether the process is dead and fully read, while its end is not yet recorded; not
            kept in the state.
    """

    instance: str
    kind: str
    role: str | None
    rank: int = 0
    forked: bool = False
    launcher: bool = False
    third_party: bool = False
    attempt: int | None = None
    order: int = 0
    started_ns: int = 0
    seen_ns: int = 0
    began_ns: int = 0
    anonymous: bool = False
    merge_world: int = 0
    status: Status | None = None
    timed_out: bool = False
    crashed: bool = False
    ended_ns: int = 0
    row_arrived_ns: int = 0
    end_time_ns: int = 0
    end_event: int = 0
    generation: int = 0
    last_seq: int = 0
    rows: SequenceTracker = field(default_factory=SequenceTracker)
    events: SequenceTracker = field(default_factory=SequenceTracker)
    attempts: dict[str, int] = field(default_factory=dict[str, int])
    dropped: dict[str, int] = field(default_factory=dict[str, int])
    waiting: dict[int, PendingRow] = field(
        default_factory=dict[int, PendingRow], metadata=NOT_STORED
    )
    ready: dict[int, PendingRow] = field(
        default_factory=dict[int, PendingRow], metadata=NOT_STORED
    )
    written: dict[int, PendingRow] = field(
        default_factory=dict[int, PendingRow], metadata=NOT_STORED
    )
    drained: bool = field(default=False, metadata=NOT_STORED)
    dirty: bool = field(default=True, metadata=NOT_STORED)

    @property
    def is_rank(self) -> bool:
        """Return whether the process is a rank of its job, not a forked child or a launcher."""
        return not self.forked and not self.launcher

    @property
    def determines_status(self) -> bool:
        """Return whether the end of this process may decide the run's status.

        Forked children and ranks above 0 decide only while no other process of the run has ended.
        Launchers count apart (`run_status`).
        """
        return self.is_rank and self.rank == 0

    @property
    def start_order(self) -> tuple[int, int]:
        """Sort key by start time.

        Processes that started at one instant are ordered by when they were first seen.
        """
        return self.started_ns, self.order

    @property
    def restart_key(self) -> tuple[str | None, int, bool, bool]:
        """Facts that a restarted process shares with its predecessor."""
        return self.role, self.rank, self.forked, self.launcher

    def succeeds(self, earlier: Process) -> bool:
        """Return whether this process succeeds *earlier*: of the same `restart_key`, begun after its end."""
        return (
            earlier.status is not None
            and self.restart_key == earlier.restart_key
            and self.start_order > earlier.start_order
            # A process that began before the other ended ran beside it.
            and self.started_ns >= earlier.end_time_ns
        )

    @property
    def scraped(self) -> bool:
        """Return whether this is an inference engine that a Collector asks for its metrics."""
        return self.third_party and self.role == ENGINE_ROLE

    @property
    def remote(self) -> bool:
        """Return whether only silence can show that the process died."""
        return self.kind == "receiver"

    @property
    def tail_missing(self) -> int:
        """Return the number of rows that the end event reports and that were not received."""
        if self.status is not None:
            return max(self.last_seq - self.rows.high, 0)
        return 0

    def mark_changed(self) -> None:
        """Note that the state of the process must be stored."""
        self.dirty = True

    def stored(self) -> None:
        """Note that the state of the process is stored."""
        self.dirty = False

    def touch(self, now_unix_ns: int) -> None:
        """Note that data of the process were read."""
        self.seen_ns = max(self.seen_ns, now_unix_ns)
        self.dirty = True

    def mark_row(self, now_unix_ns: int) -> None:
        """Note that a new row or fragment arrived."""
        self.row_arrived_ns = now_unix_ns

    def begin_attempt(self, axis: str, attempt: int) -> None:
        """Note the attempt of the process's role on *axis*."""
        self.attempts[axis] = attempt
        self.dirty = True

    def mark_drained(self) -> None:
        """Note that the process has stopped and that all its data are read."""
        self.drained = True

    def report_end(self, event: int, last_seq: int, *, crashed: bool) -> None:
        """Note the facts of an end event, before `end`."""
        self.crashed = crashed
        self.end_event = event
        self.last_seq = last_seq

    def end(
        self, status: Status, time_unix_ns: int, now_unix_ns: int, generation: int
    ) -> None:
        """Note status and time of the process's end, and the number of ends that its run had then."""
        self.status = status
        self.timed_out = False
        self.ended_ns = now_unix_ns
        self.end_time_ns = time_unix_ns
        self.generation = generation
        self.dirty = True

    def expire(self, status: Status, now_unix_ns: int, generation: int) -> None:
        """End the process because of its silence; any later data reopen it."""
        # Its last sign of life is its end, as far as known.
        self.end(status, self.seen_ns, now_unix_ns, generation)
        self.timed_out = True

    def end_as(self, status: Status, now_unix_ns: int, generation: int) -> None:
        """Replace the status of the process's end by a person's statement."""
        # Kept over `end`, so that later data still reopen it.
        has_timed_out = self.timed_out
        self.end(status, self.end_time_ns, now_unix_ns, generation)
        self.timed_out = has_timed_out
        # A person has stated the end, so that the run waits for no restart.
        self.crashed = False

    def reopen(self) -> None:
        """Note that the process continues after its end."""
        self.status = None
        self.timed_out = False
        self.crashed = False
        # The end that named the last row no longer holds.
        self.last_seq = 0
        self.dirty = True
