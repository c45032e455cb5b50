"""Steps whose data are spans, each of one rank and up to 10,000 rollouts. Pure.

A step's row is due when nothing came for it for `TranslationOptions.row_wait_ns` after a later step
of its role, or for `step_watermark_ns`, or when the run ends. What arrives later gives a further
row.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from otel_bridge.records import axis_of
from otel_bridge.translation.processes.process import Process
from otel_bridge.translation.run_context import RunContext
from otel_bridge.translation.state import count
from otel_bridge.translation.step_rows import CollectedStep, StepStore

MAX_ROLLOUTS = 200_000
"""Most rollouts of one step."""
_MAX_SPANS = 20_000
_SPAN_DIGITS = 16


@dataclass(frozen=True, slots=True)
class StepSpan:
    """Holds one span of a step, as received.

    Attributes:
        id: Id of the span, the same at every redelivery.
        role: Role of the step, if it is not that of the process.
        rollouts: Trace ids of its rollouts, 32 hex digits each.
    """

    id: str
    step: int
    role: str | None
    rollouts: tuple[str, ...]
    end_unix_ns: int


@dataclass(slots=True)
class SpanStep(CollectedStep):
    """Holds one step of spans.

    Attributes:
        spans: Ids of the spans, so that a redelivered one changes nothing.
    """

    spans: dict[str, None] = field(default_factory=dict[str, None])

    @property
    @abstractmethod
    def rollouts(self) -> int:
        """Number of rollouts that the step has."""

    def begin(self, span: StepSpan, now_unix_ns: int) -> bool | None:
        """Note a span; return whether it is new, ``None`` when the step has no room for it."""
        # Before the limits: a redelivered span of a full step is not a further drop.
        if span.id in self.spans:
            return False
        if (
            self.rollouts + len(span.rollouts) > MAX_ROLLOUTS
            or len(self.spans) >= _MAX_SPANS
        ):
            return None
        self.spans[span.id] = None
        self.arrive(now_unix_ns, span.end_unix_ns)
        self.change(now_unix_ns)
        return True


SpanStepT = TypeVar("SpanStepT", bound=SpanStep)
StepSpanT = TypeVar("StepSpanT", bound=StepSpan)


class SpanStepStore(StepStore[SpanStepT]):
    """Holds the last steps of one pipeline of spans.

    Args:
        run: The run.
        kind: Class of the steps.
        late: Reason under which spans of a forgotten step are counted.
        too_many: Reason under which spans beyond the bounds of a step are counted.
        invalid: Reason under which spans that cannot be read are counted.
    """

    def __init__(
        self,
        run: RunContext,
        kind: type[SpanStepT],
        *,
        late: str,
        too_many: str,
        invalid: str,
    ) -> None:
        super().__init__(run, kind, late)
        self._too_many = too_many
        self._invalid = invalid

    def begin_all(
        self,
        process: Process,
        role: str | None,
        spans: Iterable[tuple[str, StepSpanT | None]],
        now_unix_ns: int,
    ) -> Iterator[tuple[SpanStepT, StepSpanT]]:
        """Yield each span of *process* that is new, with its step; those that cannot be read are counted.

        Args:
            process: The process.
            role: Its own role.
            spans: Name of each span, and what was read of it.
            now_unix_ns: Now.
        """
        for name, span in spans:
            if span is None:
                count(self._run.state, self._invalid, name=name)
                continue
            step = self._begin(process, role, span, now_unix_ns)
            if step is not None:
                yield step, span

    def _begin(
        self, process: Process, role: str | None, span: StepSpan, now_unix_ns: int
    ) -> SpanStepT | None:
        """Note a span of *process*, of its own *role*.

        Returns:
            The step, to which the caller adds what the span holds. ``None`` for a redelivered span,
            and for one that is dropped, which is counted.
        """
        role = span.role or role
        track = role or "", self._run.attempt_of(process, role)
        step = self.find(track, span.step, str(span.step))
        if step is None:
            return None
        is_new = step.begin(span, now_unix_ns)
        if is_new is None:
            count(self._run.state, self._too_many, name=str(span.step))
        if not is_new:
            return None
        self.mark_changed(step)
        # A role may send spans and no rows; its restart is then recognised by these steps alone.
        self._run.axes.reached(axis_of(role), span.step)
        return step

    def change(self, step: SpanStepT, now_unix_ns: int) -> None:
        """Note that the row of *step* would be another one now."""
        step.change(now_unix_ns)
        self.mark_changed(step)

    def is_due(
        self, step: SpanStepT, now_unix_ns: int, *, is_whole: bool = True
    ) -> bool:
        """Return whether the row of *step* has changed, and nothing more is expected soon.

        Args:
            step: The step.
            now_unix_ns: Now.
            is_whole: Whether everything has arrived that its spans name.
        """
        if step.changed_ns is None:
            return False
        # A later step of the role shows that this one is over; else only the longer silence does.
        is_behind = any(
            later.track == step.track and later.number > step.number for later in self
        )
        options = self._run.options
        wait_ns = options.step_watermark_ns
        if is_behind and is_whole:
            wait_ns = options.row_wait_ns
        return now_unix_ns >= self._run.receive_clock.due(step.changed_ns, wait_ns)


def ids_of(joined: str, digits: int = _SPAN_DIGITS) -> dict[str, None]:
    """Return the ids of *digits* hex digits each that *joined* consists of: those of spans, unless *digits* differs."""
    return dict.fromkeys(
        joined[start : start + digits] for start in range(0, len(joined), digits)
    )
