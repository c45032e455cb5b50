"""What leaves this part of translation: rollouts, statistics of steps, late values, and traces that are no rollout.

A rollout that has all its spans leaves at once or when its step closes. Those that the choice leaves out are no loss:
they are counted apart, under ``left/rollout``, as are the values that came for them, under ``left/late_value``. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final

from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans

from otel_bridge.otlp_content import limit_of
from otel_bridge.records import Record
from otel_bridge.redaction import Redaction
from otel_bridge.translation.assembly import TRAIN, Assembler, Facts, Trace
from otel_bridge.translation.choice import Step, Steps, Verdict
from otel_bridge.translation.late import Evaluation, LateValues, base_of
from otel_bridge.translation.options import Options, OtherTraces
from otel_bridge.translation.parting import late_value, revised
from otel_bridge.translation.producer import Producer
from otel_bridge.translation.state import State, count
from otel_bridge.translation.told import LeftOut
from otel_bridge.translation.traces import Ended, EndedTraces, OpenTrace, TraceStore, ended_as

_ENDED_LIMIT: Final = 20_000
_OTHER_LIMIT: Final = 5_000
_NEVER: Final = 1 << 63


class Release:
    """Decides when and as what each rollout leaves, and remembers what has left.

    Args:
        state: Key spaces ``step/``, ``trace/done/``, ``trace/other/``, ``left/``; counts in ``drop/``, axes of
            statistics in ``key/``.
        options: Bounds, waiting times, selection.
        store: The traces that wait; what leaves is forgotten there.
        late: The late values that wait.
        axes: Returns every axis known so far to its last step.
        attempt_of: From an axis to the start that its role is in.

    Attributes:
        steps: Every step that is open or remembered.
        ended: The rollouts that left or were left out.
        other: The traces that were no rollouts.
        waiting: How many rollouts wait for their step.
    """

    def __init__(
        self,
        state: State,
        options: Options,
        store: TraceStore,
        late: LateValues,
        *,
        axes: Callable[[], Mapping[str, int]],
        attempt_of: Callable[[str], int],
    ) -> None:
        self._state, self._options, self._store, self._late, self._axes = state, options, store, late, axes
        limit, redaction = limit_of(options.message_content), Redaction(options.redact_secrets, options.redact_email)
        self._assembler = Assembler(options.rollout_key, limit, options.rollout_bytes, redaction)
        complete = [(t.id, t.facts, t.last_ns) for t in store.traces.values() if t.facts is not None]
        self.steps = Steps(state, options, axes, iter(complete), attempt_of=attempt_of)
        self.ended = EndedTraces(state, "trace/done/", _ENDED_LIMIT)
        self.other = EndedTraces(state, "trace/other/", _OTHER_LIMIT)
        self.waiting = len(complete)

    def rollout(
        self, trace: OpenTrace, source: Trace, now_unix_ns: int, unstored: tuple[Producer, ScopeSpans] | None = None
    ) -> list[Record]:
        """Emit, leave out or let wait a rollout that has all its spans.

        Args:
            trace: The rollout; an earlier step of its role and split closes by it.
            source: Its spans.
            now_unix_ns: Now.
            unstored: Those of them that the store does not hold.
        """
        facts = self._assembler.facts(source)
        records = self._close_steps(self.steps.passed(facts.role, facts.split, facts.step))
        verdict = self.steps.take(trace.id, revised(facts, self._late.scores(trace.id)), now_unix_ns)
        if verdict is Verdict.KEEP:
            records.append(self._emit(trace, source, facts))
        elif verdict is Verdict.LEAVE_OUT:
            self._leave(trace, facts)
        else:
            trace.facts = facts
            if unstored is not None:
                self._store.keep(trace, *unstored)
            else:
                self._store.note(trace)
            self.waiting += 1
        return records

    def revise(self, trace: OpenTrace) -> None:
        """Look again at a rollout that waits for its step: more of its spans have come. Its step stays."""
        before = trace.facts
        if before is None:
            return
        found = self._assembler.facts(self._store.read(trace))
        trace.facts = replace(found, role=before.role, split=before.split, step=before.step)
        self._store.note(trace)
        self.steps.revise(before, trace.id, trace.facts)

    def no_rollout(self, trace: OpenTrace, fate: OtherTraces) -> list[Record]:
        """Show or count a trace that is no rollout, and forget its values."""
        records: list[Record] = []
        if fate is not OtherTraces.COUNTED:
            records.append(self._assembler.other(self._store.read(trace)))
        if fate is not OtherTraces.SHOWN:
            count(self._state, "trace/other")
        self._late.adopt(trace.id, {})
        if values := len(self._late.scores(trace.id)):
            count(self._state, "evaluation/other", values)
        self._store.forget(trace)
        self._late.forget(trace.id)
        self.other.add(trace.id, Ended(False, "", None, None, None))
        return records

    def value(self, evaluation: Evaluation, now_unix_ns: int) -> list[Record]:
        """Keep a late value for its rollout, or, when that has left, let it follow."""
        ended = self.ended.get(evaluation.trace_id)
        pending = ended is None and base_of(evaluation.trace_id) not in self._store.traces
        new = self._late.add(evaluation, now_unix_ns, pending=pending, settled=ended is not None)
        records: list[Record] = []
        if new is None:
            count(self._state, "evaluation/too_many")
        elif new and ended is not None and ended.kept:
            records.append(late_value(evaluation, ended))
        elif new and ended is not None:
            self._left("late_value")
        return records + self._overdue(-1)

    def left_out(self, told: LeftOut, now_unix_ns: int) -> list[Record]:
        """Add what an emitter tells of rollouts that it left out to the statistics of their step."""
        records = self._close_steps(self.steps.passed(told.role, told.split, told.step))
        new = self.steps.left_out(told, now_unix_ns)
        if new:
            self._left("rollout", new)
        return records

    def tick(self, now_unix_ns: int) -> list[Record]:
        """Let time pass: steps whose time is up, then corrected statistics, then values without a trace."""
        records = self._close_steps(self.steps.due(now_unix_ns))
        for step in self.steps.corrected(now_unix_ns):
            records.append(self._row(step))
        return records + self._overdue(now_unix_ns - self._options.trace_timeout_ns)

    def close(self) -> list[Record]:
        """Let everything go that `tick` would in the end."""
        records = self._close_steps(self.steps.open())
        for step in self.steps.corrected(None):
            records.append(self._row(step))
        return records + self._overdue(_NEVER)

    def close_oldest(self) -> list[Record]:
        """Close the oldest step that rollouts wait for, before it is due; there must be one (`waiting`)."""
        return self._close_steps([next(step for step in self.steps.open() if step.waiting)])

    def _close_steps(self, steps: Iterable[Step]) -> list[Record]:
        """Choose among the rollouts of each step, emit them and the statistics."""
        records: list[Record] = []
        for step in steps:
            kept, left = self.steps.close(step, self._reward)
            for trace_id in kept:
                trace = self._store.traces[trace_id]
                if trace.facts is not None:
                    records.append(self._emit(trace, self._store.read(trace), trace.facts))
            for trace_id in left:
                trace = self._store.traces[trace_id]
                if trace.facts is not None:
                    self._leave(trace, trace.facts)
            self.waiting -= len(kept) + len(left)
            records.append(self._row(step))
        return records

    def _reward(self, trace_id: str, facts: Facts) -> float | None:
        return revised(facts, self._late.scores(trace_id)).reward

    def _row(self, step: Step) -> Record:
        row = self.steps.row(step)
        if row.axis is not None:
            for key in row.values:
                if self._state.get(f"key/{key}") is None:
                    self._state.set(f"key/{key}", row.axis)
        return row

    def _emit(self, trace: OpenTrace, source: Trace, facts: Facts) -> Record:
        rollout = self._assembler.rollout(source, facts, self._late.scores(trace.id), self._axes())
        self._end(trace, ended_as(trace, rollout.key, facts.role, facts.step, kept=True))
        return rollout

    def _leave(self, trace: OpenTrace, facts: Facts) -> None:
        values = len(self._late.scores(trace.id))
        if values:
            self._left("late_value", values)
        self._left("rollout")
        self._end(trace, ended_as(trace, "", facts.role, facts.step, kept=False))

    def _end(self, trace: OpenTrace, ended: Ended) -> None:
        self._store.forget(trace)
        self._late.settle(trace.id)
        forgotten = self.ended.add(trace.id, ended)
        if forgotten is not None:
            self._late.forget(forgotten)

    def _left(self, what: str, number: int = 1) -> None:
        before = self._state.get(f"left/{what}")
        self._state.set(f"left/{what}", (before if isinstance(before, int) else 0) + number)

    def _overdue(self, before_ns: int) -> list[Record]:
        """Send values whose trace never came: another bridge may have written it."""
        records: list[Record] = []
        for values in self._late.overdue(before_ns, self._options.max_open_traces):
            for waiting in values:
                value = replace(waiting, trace_id=base_of(waiting.trace_id))
                key = self._assembler.rollout_key(value.role, TRAIN)
                records.append(late_value(value, Ended(True, key, value.role, value.step, None)))
        self._late.bound(_ENDED_LIMIT)
        return records
