"""Steps of a run, collected by one pipeline each -> a row a step. Pure.

A row that is sent again for the same step has another id, and replaces the values of the first.
The data of most steps are spans. Their row is due when nothing came for
`TranslationOptions.row_wait_ns` after a later step of the role, or for `step_watermark_ns`, or
when the run ends. What arrives later gives a further row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Generic, NamedTuple, TypeAlias, TypeVar
from urllib.parse import quote

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_bridge import semconv
from otel_bridge.records import Json, Record, Row, Value, axis_of
from otel_bridge.translation.decode.attributes import int_in, mapping_of, text_in
from otel_bridge.translation.frame_decoder import DecodedFrame
from otel_bridge.translation.metrics.keys import ATTEMPT, keyed
from otel_bridge.translation.packing import NOT_STORED, packed, unpacked, unpacked_below
from otel_bridge.translation.processes.producers import ProducerContext
from otel_bridge.translation.processes.step_workers import StepProgress, StepWorkers
from otel_bridge.translation.run_context import RunContext
from otel_bridge.translation.state import TranslationState, count

Track: TypeAlias = tuple[str, int]
"""Role (empty without one) and attempt of the role."""
StepKey: TypeAlias = tuple[Track, int]
"""Track and number of a step."""
MAX_STEPS = 64
"""Most steps of a pipeline that are open or remembered, so that what is late gives a whole row."""
MAX_DATA = 200_000
"""Most spans and rollouts of one step."""
_MAX_ALL_DATA = 500_000
"""Most spans and rollouts of all steps of a pipeline. Two steps stay whatever their size, so that
ranks which are one step apart still find theirs."""
_MAX_TRACKS = 256
_CHECK_NS = 1_000_000_000
"""Interval at which the steps are checked."""
_NUMBERS = {"bytes_value", "array_value"}
"""Kinds of attributes that hold the numbers of tokens, megabytes of them, which their reader decodes."""


@dataclass(slots=True)
class CollectedStep:
    """Holds one step of one role and attempt. A pipeline adds what it collects.

    Attributes:
        SPACE: Key space of the pipeline in the state, and beginning of its reasons of drops.
        ROW_ID: Beginning of the ids of its rows.
        ARE_STATISTICS: Whether the row leaves out values whose key a row of the run already uses.
        last_ns: Arrival time of the last data.
        end_unix_ns: Latest time of the data by the senders' clocks: the time of the row.
        changed_ns: Arrival time of what changes the row since; ``None``: nothing.
        revision: Number of times that the row was sent.
        spans: Ids of its spans, so that a redelivered one changes nothing.
        is_stored: Whether the state has it as it is.
    """

    SPACE: ClassVar[str]
    ROW_ID: ClassVar[str]
    ARE_STATISTICS: ClassVar[bool] = True

    track: Track
    number: int
    last_ns: int = 0
    end_unix_ns: int = 0
    changed_ns: int | None = None
    revision: int = 0
    spans: set[str] = field(default_factory=set[str])
    is_stored: bool = field(default=True, metadata=NOT_STORED)

    @property
    def role(self) -> str | None:
        """Role of the step."""
        return self.track[0] or None

    @property
    def key(self) -> StepKey:
        """Track and number."""
        return self.track, self.number

    @property
    def size(self) -> int:
        """Number of spans and rollouts of the step."""
        return len(self.spans)

    @property
    def state_key(self) -> str:
        """Key of the step in the state."""
        role, attempt = self.track
        return f"{self.SPACE}/step/{quote(role, safe='')}/{self.number}@{attempt}"

    def arrive(self, now_unix_ns: int, end_unix_ns: int) -> None:
        """Note the arrival of data that end at *end_unix_ns* by the sender's clock."""
        self.last_ns = max(self.last_ns, now_unix_ns)
        self.end_unix_ns = max(self.end_unix_ns, end_unix_ns)
        self.change(now_unix_ns)

    def change(self, now_unix_ns: int) -> None:
        """Note that the row would be another one now."""
        self.changed_ns = now_unix_ns
        self.is_stored = False

    def sent(self) -> None:
        """Note that the row is sent."""
        self.changed_ns = None
        self.revision += 1
        self.is_stored = False

    def store(self, state: TranslationState) -> None:
        """Write the step to *state*, unless it has it as it is."""
        if not self.is_stored:
            state.set(self.state_key, packed(self))
            self.is_stored = True


StepT = TypeVar("StepT", bound=CollectedStep)
DataT = TypeVar("DataT")


class StepPipeline(ABC, Generic[StepT]):
    """Holds the last steps of one kind, of which it makes the rows. A subclass adds their data.

    Args:
        run: The run.
        kind: Class of the steps.
    """

    def __init__(self, run: RunContext, kind: type[StepT]) -> None:
        self._run = run
        self._kind = kind
        self.steps: dict[StepKey, StepT] = {}
        for step in unpacked_below(kind, run.state, f"{kind.SPACE}/step/").values():
            self.steps[step.key] = step
        self._forgotten_key = f"{kind.SPACE}/forgotten"
        self._forgotten = unpacked(
            dict[Track, int], run.state.get(self._forgotten_key) or []
        )
        """Last step of each track whose data are forgotten."""
        self._workers = StepWorkers(
            run.state,
            run.options,
            run.processes,
            space=f"{kind.SPACE}/pace/",
            every_rank=True,
        )
        self._reaches: dict[str, StepProgress] = {}
        """Role to the progress of its processes, as of the last check."""
        self._checked_ns = 0

    # --- what a subclass decides ------------------------------------------------------------------
    @abstractmethod
    def values(self, step: StepT) -> Mapping[str, Value]:
        """Return the values of a row of *step*, by key with or without its role."""

    @abstractmethod
    def wait_ns(self, step: StepT, now_unix_ns: int) -> int:
        """Return how long the row of a changed step waits after the last change; 0: no longer."""

    # --- when a row is made -----------------------------------------------------------------------
    def tick(self, now_unix_ns: int) -> list[Record]:
        """Return what is due, at most once a second; also after a clock was set back."""
        # A tick may come many times a second, while the waits are of seconds.
        if 0 <= now_unix_ns - self._checked_ns < _CHECK_NS:
            return []
        self._checked_ns = now_unix_ns
        return self.due(now_unix_ns)

    def close(self, now_unix_ns: int) -> list[Record]:
        """Return everything that waits, since no more data are expected."""
        records: list[Record] = []
        for step in self.ordered():
            records += self.last_records(step, now_unix_ns)
        return records

    def due(self, now_unix_ns: int) -> list[Record]:
        """Return the row of each changed step for which nothing more is expected soon.

        A wait counts by the clock of receiving, so that a row does not come due because the bridge
        was away.
        """
        rows: list[Record] = []
        self._reaches.clear()
        for step in self.changed():
            wait_ns = self.wait_ns(step, now_unix_ns)
            due_ns = self._run.receive_clock.due(step.changed_ns or 0, wait_ns)
            # What waits for nothing is not put off by a receiver that has just begun.
            if not wait_ns or now_unix_ns >= due_ns:
                rows.append(self.row(step))
        return rows

    def reach(self, role: str, now_unix_ns: int) -> StepProgress:
        """Return the progress of the processes of *role*, for `wait_ns`; none has any unless the subclass notes it.

        It looks at all processes: once a check, not once a step.
        """
        if role not in self._reaches:
            self._reaches[role] = self._workers.reach(role, "", now_unix_ns)
        return self._reaches[role]

    def last_records(self, step: StepT, now_unix_ns: int) -> list[Record]:  # noqa: ARG002  # of a subclass
        """Return what waits of *step*: its row, unless the last one is still right."""
        if step.changed_ns is None:
            return []
        return [self.row(step)]

    def row(self, step: StepT) -> Row:
        """Return the row of *step*, which counts as sent from then on.

        Values beyond the limit of keys are left out and counted by the axes.
        """
        role, attempt = step.track
        axis = axis_of(step.role)
        values = self.values(step)
        # The first attempt stays unnumbered, so that a run without restarts has no such key.
        if attempt > 1:
            values = {ATTEMPT: attempt, **values}
        axes = self._run.axes
        admit = axes.admit
        if step.ARE_STATISTICS:
            admit = axes.admit_statistics
        # Made of facts alone: after a kill before the commit the next bridge gives the same id.
        row_id = f"{step.ROW_ID}{role}:{step.number}:a{attempt}"
        row = Row(
            id=f"{row_id}:{step.revision}" if step.revision else row_id,
            role=step.role,
            step=step.number,
            axis=axis,
            time_unix_ns=step.end_unix_ns,
            values=admit(keyed(values, step.role), axis),
            steps=axes.beside(axis, step.number),
            attempt=attempt,
        )
        step.sent()
        return row

    # --- the steps --------------------------------------------------------------------------------
    def find(self, track: Track, number: int) -> StepT | None:
        """Return a step, a new one if need be.

        Returns:
            ``None`` when the step is forgotten, or earlier than a forgotten one, so that its row
            can no longer be made. Its data are counted as ``late``.
        """
        step = self.steps.get((track, number))
        if step is not None:
            return step
        if track in self._forgotten and number <= self._forgotten[track]:
            self.note_drop("late", str(number))
            return None
        step = self._kind(track, number)
        self.steps[step.key] = step
        return step

    def note_drop(self, reason: str, name: str, number: int = 1) -> None:
        """Count data of a step that are dropped."""
        count(self._run.state, f"{self._kind.SPACE}/{reason}", number, name=name)

    def ordered(self) -> list[StepT]:
        """Return the steps, by track and number."""
        return [step for _, step in sorted(self.steps.items())]

    def changed(self) -> list[StepT]:
        """Return the steps whose row would be another one now, by track and number."""
        return [step for step in self.ordered() if step.changed_ns is not None]

    @property
    def waiting(self) -> int:
        """Number of steps whose row is sent once nothing more is expected soon."""
        return len(self.changed())

    def beyond_bound(self, now_unix_ns: int) -> list[Record]:
        """Forget the steps beyond the bound, those without news for the longest time; return what waits of them."""
        records: list[Record] = []
        while len(self.steps) > MAX_STEPS or (
            len(self.steps) > 2
            and sum(step.size for step in self.steps.values()) > _MAX_ALL_DATA
        ):
            # By news: each role counts by itself, so the numbers of two steps do not compare.
            step = min(self.steps.values(), key=lambda step: step.last_ns)
            # Its last row first, because a forgotten step has no data left.
            records += self.last_records(step, now_unix_ns)
            del self.steps[step.key]
            self._run.state.delete(step.state_key)
            # Data that come for it later are counted as late. Else they would begin it anew, with
            # the id of a row that was sent. One number a track is stored and not a list of steps,
            # so that the state stays small. Popped and set again: the order of the dict is that of
            # the last note.
            last = self._forgotten.pop(step.track, step.number)
            self._forgotten[step.track] = max(last, step.number)
            if len(self._forgotten) > _MAX_TRACKS:
                del self._forgotten[next(iter(self._forgotten))]
            self._run.state.set(self._forgotten_key, packed(self._forgotten))
        return records

    def forget(self, instance: str) -> None:
        """Forget the progress of a process."""
        self._workers.forget(instance)

    def flush(self) -> None:
        """Write what changed to the state."""
        self._workers.flush()
        for step in self.steps.values():
            step.store(self._run.state)


class SpanBatch(NamedTuple):
    """Holds spans of one kind and process, which came in one frame."""

    frame: DecodedFrame
    context: ProducerContext
    spans: Sequence[Span]


class SpanPipeline(StepPipeline[StepT], Generic[StepT, DataT]):
    """Holds the last steps of one kind, whose data are spans, each of one process and up to 10,000 rollouts."""

    @abstractmethod
    def read(self, span: Span, attributes: Mapping[str, Json]) -> DataT | None:
        """Return what *span* says of its step; ``None``: it cannot be read.

        Args:
            span: The span, which has an end.
            attributes: Its attributes, without bytes and arrays.
        """

    @abstractmethod
    def take(self, batch: SpanBatch) -> list[Record]:
        """Take spans of a process; return the records that they complete."""

    def new_spans(self, batch: SpanBatch) -> Iterator[tuple[StepT, DataT]]:
        """Yield what each new span of a process says, with its step, to which the caller adds it.

        Spans without a step or an end, or that cannot be read, or have no room, are counted, as
        ``invalid`` and ``too_many`` below the space of the steps, those of a forgotten step as
        ``late``.
        """
        context = batch.context
        for span in batch.spans:
            attributes = mapping_of(
                pair
                for pair in span.attributes
                if pair.value.WhichOneof("value") not in _NUMBERS
            )
            number = int_in(attributes, semconv.STEP)
            data = self.read(span, attributes) if span.end_time_unix_nano else None
            if number is None or data is None:
                self.note_drop("invalid", span.name)
                continue
            role = (
                text_in(attributes, semconv.ROLE) or context.producer.third_party_role
            )
            track = role or "", self._run.attempt_of(context.process.instance, role)
            step = self.find(track, number)
            span_id = span.span_id.hex()
            # Before the limit: a redelivered span of a full step is not a further drop.
            if step is None or span_id in step.spans:
                continue
            if step.size + len(span.links) >= MAX_DATA:
                self.note_drop("too_many", str(number))
                continue
            step.spans.add(span_id)
            step.arrive(batch.frame.now_unix_ns, span.end_time_unix_nano)
            # A role may send spans and no rows; its restart is recognised by these steps alone.
            self._run.axes.reached(axis_of(role), number)
            yield step, data

    def is_whole(self, step: StepT) -> bool:  # noqa: ARG002  # of a subclass
        """Return whether everything has arrived that the spans of *step* name."""
        return True

    def wait_ns(self, step: StepT, now_unix_ns: int) -> int:  # noqa: ARG002  # of a subclass
        """Return how long the row waits for further spans.

        Other ranks may send theirs later, and nothing announces how many there are.
        """
        # A later step of the role shows that this one is over; else only the longer silence does.
        is_behind = any(
            later.track == step.track and later.number > step.number
            for later in self.steps.values()
        )
        if is_behind and self.is_whole(step):
            return self._run.options.row_wait_ns
        return self._run.options.step_watermark_ns


def linked_rollouts(span: Span) -> list[str]:
    """Return the trace ids that *span* links to, 32 hex digits each.

    Other ids name no trace and are ignored.
    """
    return [link.trace_id.hex() for link in span.links if len(link.trace_id) == 16]
