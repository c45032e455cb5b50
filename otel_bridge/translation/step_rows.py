"""Steps of a run, collected by one pipeline each -> a row a step. Pure.

A row that is sent again for the same step has another id, and replaces the values of the first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeAlias, TypeVar, cast
from urllib.parse import quote

from otel_bridge.records import Json, Row, Value, axis_of, key_of
from otel_bridge.translation.metrics.keys import ATTEMPT
from otel_bridge.translation.run_context import RunContext
from otel_bridge.translation.state import StateValue, TranslationState, count

Track: TypeAlias = tuple[str, int]
"""Role (empty without one) and attempt of the role."""
StepKey: TypeAlias = tuple[Track, int]
"""Track and number of a step."""
MAX_STEPS = 64
"""Most steps of a pipeline that are open or remembered, so that what is late gives a whole row."""
_MAX_TRACKS = 256
_CHECK_NS = 1_000_000_000
"""Interval at which the steps are checked."""


@dataclass(slots=True)
class CollectedStep(ABC):
    """Holds one step of one role and attempt. A pipeline adds what it collects.

    Attributes:
        SPACE: Key space of the pipeline in the state.
        ROW_ID: Beginning of the ids of its rows.
        ARE_STATISTICS: Whether the row leaves out values whose key a row of the run already uses.
        last_ns: Arrival time of the last data.
        end_unix_ns: Latest time of the data by the senders' clocks: the time of the row.
        changed_ns: Arrival time of what changes the row since; ``None``: nothing.
        revision: Number of times that the row was sent.
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

    @property
    def role(self) -> str | None:
        """Role of the step."""
        return self.track[0] or None

    @property
    def key(self) -> StepKey:
        """Track and number."""
        return self.track, self.number

    @property
    def name(self) -> str:
        """Name of the step within keys of the state."""
        role, attempt = self.track
        return f"{quote(role, safe='')}/{self.number}@{attempt}"

    def arrive(self, now_unix_ns: int, end_unix_ns: int) -> None:
        """Note the arrival of data that end at *end_unix_ns* by the sender's clock."""
        self.last_ns = max(self.last_ns, now_unix_ns)
        self.end_unix_ns = max(self.end_unix_ns, end_unix_ns)

    def change(self, now_unix_ns: int) -> None:
        """Note that the row would be another one now."""
        self.changed_ns = now_unix_ns

    def sent(self) -> None:
        """Note that the row is sent."""
        self.changed_ns = None
        self.revision += 1

    @abstractmethod
    def to_json(self) -> Json:
        """Return the step as stored in the state."""

    @classmethod
    @abstractmethod
    def from_json(cls: type[StepT], value: StateValue) -> StepT:
        """Restore what `to_json` returned."""

    def store(self, state: TranslationState) -> None:
        """Write the step to *state*."""
        state.set(f"{self.SPACE}/step/{self.name}", self.to_json())

    def delete(self, state: TranslationState) -> None:
        """Remove the step from *state*."""
        state.delete(f"{self.SPACE}/step/{self.name}")

    @classmethod
    def stored(cls: type[StepT], state: TranslationState) -> list[StepT]:
        """Return the steps in *state*."""
        return [cls.from_json(value) for _, value in state.items(f"{cls.SPACE}/step/")]


StepT = TypeVar("StepT", bound=CollectedStep)


class StepStore(Generic[StepT]):
    """Holds the last steps of one pipeline, of which it makes the rows.

    Args:
        run: The run.
        kind: Class of the steps.
        late: Reason under which data of a forgotten step are counted.
    """

    def __init__(self, run: RunContext, kind: type[StepT], late: str) -> None:
        self._run = run
        self._kind = kind
        self._late = late
        steps = sorted(kind.stored(run.state), key=lambda step: step.last_ns)
        self._steps: dict[StepKey, StepT] = {step.key: step for step in steps}
        self._changed: set[StepKey] = set()
        self._forgotten = ForgottenSteps(run.state, f"{kind.SPACE}/forgotten")
        self._checked_ns = 0

    def __len__(self) -> int:
        return len(self._steps)

    def __iter__(self) -> Iterator[StepT]:
        return iter(self._steps.values())

    def get(self, key: StepKey) -> StepT | None:
        """Return a step; ``None`` when it has not begun, or is forgotten."""
        return self._steps.get(key)

    def find(self, track: Track, number: int, name: str = "") -> StepT | None:
        """Return a step, a new one if need be.

        Returns:
            ``None`` when the step is forgotten, so that its row can no longer be made. Its data,
            with *name*, are counted.
        """
        step = self._steps.get((track, number))
        if step is None and self._forgotten.has(track, number):
            count(self._run.state, self._late, name=name)
        elif step is None:
            step = self._kind(track, number)
            self._steps[step.key] = step
        return step

    def ordered(self) -> list[StepT]:
        """Return the steps, by track and number."""
        return sorted(self, key=lambda step: step.key)

    def changed(self) -> list[StepT]:
        """Return the steps whose row would be another one now, by track and number."""
        changed = [step for step in self if step.changed_ns is not None]
        return sorted(changed, key=lambda step: step.key)

    @property
    def waiting(self) -> int:
        """Number of steps whose row is sent once nothing more is expected soon."""
        return len(self.changed())

    def mark_changed(self, step: StepT) -> None:
        """Note that the state has an older version of *step*."""
        self._changed.add(step.key)

    def begin_check(self, now_unix_ns: int) -> bool:
        """Return whether the steps are to be checked, at most once a second.

        Also after a clock was set back.
        """
        # A tick may come many times a second, while the waits are of seconds.
        if 0 <= now_unix_ns - self._checked_ns < _CHECK_NS:
            return False
        self._checked_ns = now_unix_ns
        return True

    def row(self, step: StepT, values: Mapping[str, Value]) -> Row:
        """Return the row of *step* with *values*, by key with or without its role.

        The row counts as sent.
        """
        role, attempt = step.track
        axis = axis_of(step.role)
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
            values=admit(
                {key_of(step.role, key): value for key, value in values.items()}, axis
            ),
            steps=axes.beside(axis, step.number),
            attempt=attempt,
        )
        step.sent()
        self.mark_changed(step)
        return row

    def overdue(self) -> Iterator[StepT]:
        """Yield the steps beyond the bound, those without news for the longest time.

        Each is forgotten after it.
        """
        while len(self._steps) > MAX_STEPS:
            # By news: each role counts by itself, so the numbers of two steps do not compare.
            step = min(self._steps.values(), key=lambda step: step.last_ns)
            # The caller makes its last row first, because a forgotten step has no data left.
            yield step
            self.forget(step)

    def forget(self, step: StepT) -> None:
        """Forget *step*: from now on its data are late."""
        del self._steps[step.key]
        self._changed.discard(step.key)
        step.delete(self._run.state)
        # Else late data would begin the step anew, with the id of a row that was sent.
        self._forgotten.add(step.track, step.number)

    def flush(self) -> None:
        """Write the facts in memory to the state."""
        for key in self._changed:
            self._steps[key].store(self._run.state)
        self._changed.clear()


class ForgottenSteps:
    """Remembers the last step of each track whose data are forgotten, so that its row can no longer be made.

    Args:
        state: State that stores it.
        key: Key of the state.
    """

    def __init__(self, state: TranslationState, key: str) -> None:
        self._state = state
        self._key = key
        stored = cast("list[tuple[str, int, int]] | None", state.get(key)) or []
        self._last: dict[Track, int] = {
            (role, attempt): step for role, attempt, step in stored
        }

    def has(self, track: Track, step: int) -> bool:
        """Return whether *step* is forgotten, or earlier than a forgotten one."""
        last = self._last.get(track)
        return last is not None and step <= last

    def add(self, track: Track, step: int) -> None:
        """Note that *step* is forgotten.

        Of too many tracks, the one that was noted longest ago is removed.
        """
        # Popped and set again: the order of the dict is that of the last note, for the limit below.
        last = self._last.pop(track, step)
        self._last[track] = max(last, step)
        if len(self._last) > _MAX_TRACKS:
            del self._last[next(iter(self._last))]
        self._state.set(
            self._key, [[*noted, last_step] for noted, last_step in self._last.items()]
        )
