"""Training steps and the rollouts they consume -> one row a step, and the steps of each rollout. Pure.

Spans of a step may come from several ranks, in any order, before or after the rollouts that they
name. A step's row is sent when nothing came for it for `TranslationOptions.row_wait_ns` after a
later step of its role, or for `step_watermark_ns`, or when the run ends. What arrives later gives
a further row, which replaces the values of the first. A rollout that trackers show gets the value
`TRAINED_STEP`, as evaluations do.
Bad input is counted (``drop/lineage/<reason>``) and never raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_bridge.records import LINEAGE_ID, Record, Row, axis_of
from otel_bridge.translation.generated_rollouts import TRAINED_STEP, GeneratedRollout, GeneratedRollouts
from otel_bridge.translation.lineage.step import STEPS, TrainStep
from otel_bridge.translation.lineage.step_values import step_values
from otel_bridge.translation.lineage.train_span import TrainSpan, read_train_span
from otel_bridge.translation.metrics.keys import StepAxes
from otel_bridge.translation.options import TranslationOptions
from otel_bridge.translation.processes.process import Process
from otel_bridge.translation.processes.receive_clock import ReceiveClock
from otel_bridge.translation.rollouts.assembly import EvaluationScore
from otel_bridge.translation.rollouts.evaluations import ReceivedEvaluation
from otel_bridge.translation.state import TranslationState, count, name_first
from otel_bridge.translation.step_rows import ForgottenSteps, Track, step_row

INVALID: Final = "lineage/invalid"
LATE: Final = "lineage/late"
TOO_MANY: Final = "lineage/too_many"
_FORGOTTEN: Final = "lineage/forgotten"
_MAX_STEPS: Final = 64
"""Most steps that are open or remembered, so that what is late gives a whole row."""
_CHECK_NS: Final = 1_000_000_000


class LineagePipeline:
    """Collects the training steps of one run.

    Args:
        state: Key space ``lineage/``; counts in ``drop/``.
        options: Waiting times.
        axes: Axes of the run, and the attempt of each role.
        generated: The rollouts of the run.
        publish: Callable that takes a value for a rollout, and the time, and returns the records it makes.
        receive_clock: Clock of receiving: a step does not age while no receiver is up.
    """

    def __init__(
        self,
        state: TranslationState,
        options: TranslationOptions,
        axes: StepAxes,
        *,
        generated: GeneratedRollouts,
        publish: Callable[[ReceivedEvaluation, int], list[Record]],
        receive_clock: ReceiveClock,
    ) -> None:
        self._state = state
        self._options = options
        self._axes = axes
        self._generated = generated
        self._publish = publish
        self._receive_clock = receive_clock
        steps = sorted((TrainStep.from_json(value) for _, value in state.items(STEPS)), key=lambda step: step.last_ns)
        self._steps: dict[tuple[Track, int], TrainStep] = {(step.track, step.number): step for step in steps}
        self._changed: dict[tuple[Track, int], TrainStep] = {}
        self._forgotten = ForgottenSteps(state, _FORGOTTEN)
        self._checked_ns = 0
        for step in steps:
            named = (*step.consumed, *step.unused)
            generated.awaited.update(trace_id for trace_id in named if generated.get(trace_id) is None)

    def take(self, process: Process, role: str | None, spans: Iterable[Span], now_unix_ns: int) -> list[Record]:
        """Take spans of *process*, of its own *role*; return the values of the rollouts that they name."""
        records: list[Record] = []
        for span in spans:
            train_span = read_train_span(span)
            if train_span is None:
                self._drop(INVALID, span.name)
            else:
                records += self._add(process, train_span.role or role, train_span, now_unix_ns)
        return records + self._bounded()

    def tick(self, now_unix_ns: int) -> list[Record]:
        """Return the values of rollouts that have arrived since they were consumed, and the rows that are due."""
        records = self._arrived(now_unix_ns)
        if 0 <= now_unix_ns - self._checked_ns < _CHECK_NS:
            return records
        self._checked_ns = now_unix_ns
        return records + [self._row(step) for step in self._ordered() if self._is_due(step, now_unix_ns)]

    def close(self, now_unix_ns: int) -> list[Record]:
        """Return everything that waits, since no more data are expected."""
        values = self._arrived(now_unix_ns)
        return values + [self._row(step) for step in self._ordered() if step.changed_ns is not None]

    def flush(self) -> None:
        """Write the facts in memory to the state."""
        self._generated.flush()
        for step in self._changed.values():
            step.store(self._state)
        self._changed.clear()

    def _add(self, process: Process, role: str | None, span: TrainSpan, now_unix_ns: int) -> list[Record]:
        axis = axis_of(role)
        key = (role or "", process.attempts.get(axis) or self._axes.current(axis)), span.step
        step = self._step(key)
        if step is None:
            self._drop(LATE, str(span.step))
            return []
        new = step.add(span, now_unix_ns)
        if new is None:
            self._drop(TOO_MANY, str(span.step))
        if not new:
            return []
        self._changed[key] = step
        self._axes.reached(axis, span.step)
        records: list[Record] = []
        for trace_id in span.rollouts:
            rollout = self._generated.get(trace_id)
            if rollout is None:
                self._generated.awaited.add(trace_id)
            else:
                records += self._assign(trace_id, rollout, step, now_unix_ns)
        return records

    def _assign(self, trace_id: str, rollout: GeneratedRollout, step: TrainStep, now_unix_ns: int) -> list[Record]:
        """Note what *step* did with a rollout; return the value that trackers show on it."""
        if trace_id in step.unused:
            rollout.leave_out(step.unused[trace_id])
            self._generated.changed(trace_id)
        if trace_id in step.consumed:
            return self._consumed(trace_id, rollout, step, now_unix_ns)
        return []

    def _step(self, key: tuple[Track, int]) -> TrainStep | None:
        """Return a step; ``None``: it is forgotten, so that its row can no longer be made."""
        step = self._steps.get(key)
        track, number = key
        if step is None and not self._forgotten.has(track, number):
            step = TrainStep(track, number)
            self._steps[key] = step
        return step

    def _consumed(self, trace_id: str, rollout: GeneratedRollout, step: TrainStep, now_unix_ns: int) -> list[Record]:
        if not rollout.consumed_at(step.number):
            return []
        self._generated.changed(trace_id)
        for later in self._steps.values():  # the row of a later step counts this use as well
            if later.number > step.number and trace_id in later.consumed:
                later.change(now_unix_ns)
                self._changed[later.track, later.number] = later
        if rollout.is_sampled_out:
            return []
        value = ReceivedEvaluation(
            id=f"t:{trace_id}:{step.number}",
            trace_id=trace_id,
            score=EvaluationScore(
                TRAINED_STEP, float(rollout.trained_steps[-1]), ",".join(map(str, rollout.trained_steps))
            ),
            instance_id=TRAINED_STEP,
            seq=len(rollout.trained_steps),
            time_unix_ns=step.end_unix_ns,
            role=None,
            step=rollout.step,
        )
        return self._publish(value, now_unix_ns)

    def _arrived(self, now_unix_ns: int) -> list[Record]:
        """Assign the rollouts that have arrived, or have another reward now, to the steps that named them before."""
        records: list[Record] = []
        for trace_id in self._generated.take_arrived():
            rollout = self._generated.get(trace_id)
            for key, step in self._steps.items():
                if rollout is not None and step.names(trace_id):
                    step.change(now_unix_ns)
                    self._changed[key] = step
                    records += self._assign(trace_id, rollout, step, now_unix_ns)
        return records

    # --- its row ------------------------------------------------------------------------------------------------------
    def _is_due(self, step: TrainStep, now_unix_ns: int) -> bool:
        """Return whether the row of *step* has changed, and nothing more is expected soon."""
        if step.changed_ns is None:
            return False
        is_behind = any(other.track == step.track and other.number > step.number for other in self._steps.values())
        is_known = all(self._generated.get(trace_id) is not None for trace_id in step.consumed)
        wait_ns = self._options.row_wait_ns if is_behind and is_known else self._options.step_watermark_ns
        return now_unix_ns >= self._receive_clock.due(step.changed_ns, wait_ns)

    def _row(self, step: TrainStep) -> Row:
        """Return the row of *step*; further rows of the step have other ids."""
        known = [rollout for trace_id in step.consumed if (rollout := self._generated.get(trace_id)) is not None]
        values = step_values(
            step.number,
            known,
            unknown=len(step.consumed) - len(known),
            end_unix_ns=step.end_unix_ns,
            generated=list(self._generated.all()),
        )
        row = step_row(
            self._axes,
            LINEAGE_ID,
            step.track,
            step.number,
            values,
            revision=step.revision,
            time_unix_ns=step.end_unix_ns,
        )
        step.sent()
        self._changed[step.track, step.number] = step
        return row

    def _ordered(self) -> list[TrainStep]:
        return sorted(self._steps.values(), key=lambda step: (step.track, step.number))

    def _bounded(self) -> list[Record]:
        """Forget the oldest steps beyond the bound, after their rows."""
        records: list[Record] = []
        while len(self._steps) > _MAX_STEPS:
            key = next(iter(self._steps))
            step = self._steps[key]
            if step.changed_ns is not None:
                records.append(self._row(step))
            self._forget(key)
        return records

    def _forget(self, key: tuple[Track, int]) -> None:
        step = self._steps.pop(key)
        self._changed.pop(key, None)
        self._state.delete(step.state_key)
        self._generated.awaited.difference_update(step.consumed, step.unused)
        self._forgotten.add(step.track, step.number)

    def _drop(self, reason: str, name: str) -> None:
        count(self._state, reason)
        name_first(self._state, reason, name)
