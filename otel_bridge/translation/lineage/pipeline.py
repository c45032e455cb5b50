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

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_bridge.records import Record, Value
from otel_bridge.translation.frame_decoder import DecodedFrame
from otel_bridge.translation.generated_rollouts import (
    TRAINED_STEP,
    GeneratedRollout,
    GeneratedRollouts,
)
from otel_bridge.translation.lineage.step import (
    TrainSpan,
    TrainStep,
    read_train_span,
)
from otel_bridge.translation.lineage.step_values import step_values
from otel_bridge.translation.processes.producers import ProducerContext
from otel_bridge.translation.rollouts.assembly import EvaluationScore
from otel_bridge.translation.rollouts.evaluations import ReceivedEvaluation
from otel_bridge.translation.run_context import RunContext
from otel_bridge.translation.step_rows import SpanPipeline


class LineagePipeline(SpanPipeline[TrainStep, TrainSpan]):
    """Collects the training steps of one run.

    Args:
        run: The run; key space ``lineage/`` of its state.
        generated: The rollouts of the run.
        publish: Callable that takes a value for a rollout, and the time, and returns the records it
            makes.
    """

    def __init__(
        self,
        run: RunContext,
        generated: GeneratedRollouts,
        publish: Callable[[ReceivedEvaluation, int], list[Record]],
    ) -> None:
        super().__init__(run, TrainStep, read_train_span)
        self._generated = generated
        self._publish = publish
        for step in self.steps.values():
            # Not stored by themselves: the steps, which are, name the same rollouts.
            for trace_id in step.rollouts:
                if generated.get(trace_id) is None:
                    generated.awaited.add(trace_id)

    def take(
        self, frame: DecodedFrame, context: ProducerContext, spans: Iterable[Span]
    ) -> list[Record]:
        """Take spans of a process; return the values of the rollouts that they name.

        Rollouts that have not arrived are awaited, without a time limit, while their step is
        remembered. A span without a step, time or link is counted as ``lineage/invalid``.
        """
        now_unix_ns = frame.now_unix_ns
        records: list[Record] = []
        for step, span in self.new_spans(context, spans, now_unix_ns):
            step.add(span)
            for trace_id in span.rollouts:
                rollout = self._generated.get(trace_id)
                if rollout is None:
                    self._generated.awaited.add(trace_id)
                else:
                    records += self._assign(trace_id, rollout, step, now_unix_ns)
        return records + self.beyond_bound(now_unix_ns)

    def tick(self, now_unix_ns: int) -> list[Record]:
        """Return the values of rollouts that have arrived since they were consumed, and the rows that are due."""
        # Before the rows: a rollout that has arrived changes the row of its step.
        return self._arrived(now_unix_ns) + super().tick(now_unix_ns)

    def close(self, now_unix_ns: int) -> list[Record]:
        """Return everything that waits, since no more data are expected."""
        return self._arrived(now_unix_ns) + super().close(now_unix_ns)

    def is_whole(self, step: TrainStep) -> bool:
        """Return whether all rollouts have arrived that *step* consumed."""
        return all(map(self._generated.get, step.consumed))

    def forget_step(self, step: TrainStep) -> None:
        """Remove a step: a rollout that arrives for it changes nothing any more."""
        super().forget_step(step)
        self._generated.awaited.difference_update(step.rollouts)

    def flush(self) -> None:
        """Write what changed to the state, with the rollouts that training has used."""
        self._generated.flush()
        super().flush()

    def _assign(
        self,
        trace_id: str,
        rollout: GeneratedRollout,
        step: TrainStep,
        now_unix_ns: int,
    ) -> list[Record]:
        """Note what *step* did with a rollout; return the value that trackers show on it.

        Nothing when the step left the rollout out or has counted it before, or when no tracker
        shows it.
        """
        reason = step.rollouts[trace_id]
        if reason:
            rollout.leave_out(reason)
            self._generated.changed(trace_id)
            return []
        # Two spans of a step, or a redelivered one, count as one use.
        if not rollout.consumed_at(step.number):
            return []
        self._generated.changed(trace_id)
        for later in self.steps.values():
            # The row of a later step counts this use as well.
            if later.number > step.number and later.rollouts.get(trace_id) == "":
                self.change(later, now_unix_ns)
        # No tracker shows it, so the value would have no place.
        if rollout.is_sampled_out:
            return []
        value = ReceivedEvaluation(
            id=f"t:{trace_id}:{step.number}",
            trace_id=trace_id,
            score=EvaluationScore(
                TRAINED_STEP,
                float(rollout.trained_steps[-1]),
                ",".join(map(str, rollout.trained_steps)),
            ),
            instance_id=TRAINED_STEP,
            seq=len(rollout.trained_steps),
            time_unix_ns=step.end_unix_ns,
            role=None,
            step=rollout.step,
        )
        return self._publish(value, now_unix_ns)

    def _arrived(self, now_unix_ns: int) -> list[Record]:
        """Assign the rollouts that have arrived, or have another reward now, to the steps that named them before.

        Nothing for a step that is forgotten: its row can no longer be corrected.
        """
        records: list[Record] = []
        for trace_id in self._generated.take_arrived():
            rollout = self._generated.get(trace_id)
            for step in self.steps.values():
                if rollout is not None and trace_id in step.rollouts:
                    self.change(step, now_unix_ns)
                    records += self._assign(trace_id, rollout, step, now_unix_ns)
        return records

    def values(self, step: TrainStep) -> dict[str, Value]:
        """Return the values of a row of *step*."""
        trace_ids = step.consumed
        rollouts = map(self._generated.get, trace_ids)
        consumed = [rollout for rollout in rollouts if rollout is not None]
        return step_values(
            step.number,
            consumed,
            unknown=len(trace_ids) - len(consumed),
            end_unix_ns=step.end_unix_ns,
            generated=list(self._generated.all()),
        )
