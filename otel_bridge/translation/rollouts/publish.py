"""Publication of rollouts, statistics of steps, evaluations, and traces that are not rollouts.

A complete rollout is emitted at once or when its step closes. Rollouts that are sampled out do not
count as lost: they are counted under ``sampled_out/rollout``, and values that arrived for them
under ``sampled_out/evaluation``. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from functools import partial

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_bridge.conventions import switch_of
from otel_bridge.records import TRAIN, Evaluation, Record, axis_of, is_evaluation
from otel_bridge.translation.decode.spans import is_bare, is_rollout
from otel_bridge.translation.generated_rollouts import (
    TRAINED_STEP,
    GeneratedRollout,
    GeneratedRollouts,
)
from otel_bridge.translation.options import OtherTraces
from otel_bridge.translation.processes.step_workers import StepWorkers
from otel_bridge.translation.rollouts.assembly import (
    EvaluationScore,
    ReceivedTrace,
    RolloutAssembler,
    SamplingFacts,
)
from otel_bridge.translation.rollouts.evaluations import (
    Evaluations,
    ReceivedEvaluation,
    base_of,
)
from otel_bridge.translation.rollouts.sampled_out import SampledOut
from otel_bridge.translation.rollouts.sampling import SamplingDecision, StepSampler
from otel_bridge.translation.rollouts.step import SampledStep
from otel_bridge.translation.rollouts.trace_store import (
    CompletedTrace,
    CompletedTraces,
    PendingTrace,
    TraceStore,
    completed_by,
    ended_as,
    unknown,
)
from otel_bridge.translation.run_context import RunContext
from otel_bridge.translation.state import count, number_at, uncount

_ENDED_LIMIT = 20_000
"""Most finished rollouts that are remembered; a late span of an older one begins a trace anew."""
_OTHER_LIMIT = 5_000
"""Most traces that were not rollouts whose late spans are recognised."""
_NEVER = 1 << 63
REWARD = "reward"
"""Name of the value that is the reward of a rollout."""


BARE_SCOPE = "bare/"
"""Key space of the state: scopes whose rollouts have no messages, to the setting that makes them
record messages."""
_MAX_SCOPE = 128
_MAX_SCOPES = 20


class RolloutPublisher:
    """Decides when and how each rollout is emitted, and remembers emitted rollouts.

    Args:
        run: The run; key spaces ``step/``, ``trace/done/``, ``trace/other/``, ``sampled_out/`` of
            its state.
        store: The waiting traces; a published trace is removed from this store.
        evaluations: The waiting evaluations.
        workers: Progress of each worker.
        generated: Remembers each rollout for the training steps that consume it.

    Attributes:
        steps: Every step that is open or remembered.
        ended: The rollouts that were emitted or sampled out.
        other: The traces that were not rollouts.
    """

    def __init__(
        self,
        run: RunContext,
        store: TraceStore,
        evaluations: Evaluations,
        workers: StepWorkers,
        generated: GeneratedRollouts,
    ) -> None:
        state = run.state
        options = run.options
        self.generated = generated
        self._run = run
        self._state = state
        self._workers = workers
        self._store = store
        self._evaluations = evaluations
        self._assembler = RolloutAssembler(
            options.rollout_key,
            options.content,
            options.rollout_bytes,
            partial(count, state),
        )
        self.steps = StepSampler(run, store.traces.values(), workers, self._reward)
        self.ended = CompletedTraces(state, "trace/done/", _ENDED_LIMIT, store.owners)
        self.other = CompletedTraces(state, "trace/other/", _OTHER_LIMIT, store.owners)

    @property
    def waiting(self) -> int:
        """Number of rollouts that wait for their step."""
        return sum(len(step.waiting) for step in self.steps.open())

    def rollout(
        self, trace: PendingTrace, source: ReceivedTrace, now_unix_ns: int
    ) -> list[Record]:
        """Emit, sample out or hold a complete rollout; return its record, if any, behind those of steps that it closes.

        Args:
            trace: The rollout; it may close earlier steps of its role and split.
            source: Spans of the rollout.
            now_unix_ns: Now.
        """
        facts = self._assembler.facts(source)
        # The root does not know how often its role was started; its process does.
        facts = replace(facts, attempt=self._run.attempt_of(trace.sender, facts.role))
        records: list[Record] = []
        current = _revised(facts, self._evaluations.scores(trace.id))
        # Training consumes no rollouts of an evaluation.
        if not is_evaluation(facts.split):
            self.generated.add(
                trace.id,
                GeneratedRollout(
                    facts.step,
                    facts.policy_version,
                    current.reward,
                    facts.end_unix_ns,
                    facts.dataset or "",
                ),
            )
        verdict = self.steps.take(trace.id, current, now_unix_ns)
        if verdict is SamplingDecision.KEEP:
            records.append(self._emit(trace, source, facts))
        elif verdict is SamplingDecision.LEAVE_OUT:
            self._sample_out(trace, facts)
        else:
            trace.wait(facts, now_unix_ns)
            self._store.note(trace)
        # Only now: the step may have been held open for this rollout.
        passed = self._advance(trace.sender, facts, now_unix_ns, done=trace.id)
        return passed + records

    def revise(self, trace: PendingTrace) -> None:
        """Update the facts of a rollout that waits for its step, after more of its spans arrived.

        Role, split, step and attempt stay: its step counts on it already. Nothing happens once it
        is decided on.

        The choice at the end of the step must use the newest reward and state.
        """
        facts = trace.facts
        if facts is None:
            return
        new_facts = self._assembler.facts(self._store.read(trace))
        revised = replace(
            new_facts,
            role=facts.role,
            split=facts.split,
            step=facts.step,
            attempt=facts.attempt,
        )
        trace.revise(revised)
        self._store.note(trace)
        self.steps.wait(trace)

    def no_rollout(self, trace: PendingTrace, fate: OtherTraces) -> list[Record]:
        """Show or count a trace that is not a rollout, and forget its values.

        No record if no exporter of the run takes such traces; then, or if only some do, it is
        counted (``trace/other``). Its values are counted (``evaluation/other``), since nothing
        shows them.
        """
        records: list[Record] = []
        if fate is not OtherTraces.COUNTED:
            records += self._assembler.other(self._store.read(trace))
        if fate is not OtherTraces.SHOWN:
            count(self._state, "trace/other")
        self._evaluations.adopt(trace.id, {})
        if values := len(self._evaluations.scores(trace.id)):
            count(self._state, "evaluation/other", values)
        self._store.forget(trace)
        self._evaluations.forget(trace.id)
        # Remembered, so that its late spans do not begin a trace that waits again.
        is_shown = fate is not OtherTraces.COUNTED
        self.other.add(trace.id, ended_as(trace, "", None, None, emitted=is_shown))
        return records

    def is_other(self, trace_id: str, spans: list[Span]) -> bool:
        """Return whether *spans* belong to a trace that was not a rollout; then nothing else becomes of them.

        Those that arrive after it was shown are counted (``span/late``); one that no exporter shows
        is counted as a whole. ``False`` for a rollout that begins in such a trace after all: from
        then on the trace waits as a new one does.
        """
        completed = self.other.get(trace_id)
        if completed is None:
            return False
        if any(map(is_rollout, spans)):
            self.other.forget(trace_id)
            return False
        late = unknown(completed, spans) if completed.emitted else []
        if late:
            self.other.add(trace_id, completed_by(completed, late))
            count(self._state, "span/late", len(late))
        return True

    def late(self, source: ReceivedTrace, ended: CompletedTrace) -> list[Record]:
        """Emit spans that arrived after their rollout was emitted, with its role, key and step.

        Nothing without spans. Those of a rollout that was sampled out are counted (``span/late``),
        since no tracker shows it; also those of one with too many spans to tell new ones from
        redelivered ones. Log records whose span was emitted with the rollout are counted
        (``event/no_span``).
        """
        if not source.spans:
            return []
        spans = [span for _, span in source.spans]
        # Remembered first: a late span that is redelivered must not be emitted twice.
        self.ended.add(source.id, completed_by(ended, spans))
        if not ended.emitted or not ended.is_whole:
            count(self._state, "span/late", len(spans))
            return []
        return [
            replace(record, role=ended.role, rollout_key=ended.key, step=ended.step)
            for record in self._assembler.other(source)
        ]

    def claim(self, trace_id: str) -> None:
        """Note that a trace has arrived: its values wait for its rollout, and none of them counts as without one.

        A later process of a resumed run may send a rollout whose values were counted at an earlier
        end of the run.
        """
        if values := self._evaluations.claim(trace_id):
            uncount(self._state, "evaluation/no_rollout", values)

    def value(self, evaluation: ReceivedEvaluation, now_unix_ns: int) -> list[Record]:
        """Keep an evaluation for its rollout, or emit it when the rollout was already emitted.

        Nothing for a redelivered value, for one that waits for its rollout, and for one of a
        rollout that was sampled out, which is counted. A value beyond the most of its rollout is
        dropped and counted (``evaluation/too_many``).
        """
        ended = self.ended.get(evaluation.trace_id)
        # Only pending values have a time limit, since their trace may never arrive.
        pending = (
            ended is None and base_of(evaluation.trace_id) not in self._store.traces
        )
        is_new = self._evaluations.add(
            evaluation, now_unix_ns, pending=pending, settled=ended is not None
        )
        records: list[Record] = []
        if is_new:
            records += self._new_value(evaluation, ended, pending=pending)
        # At no time: only the values beyond the limit of traces.
        return records + self._overdue(-1)

    def _new_value(
        self,
        evaluation: ReceivedEvaluation,
        ended: CompletedTrace | None,
        *,
        pending: bool,
    ) -> list[Record]:
        """Return the record of an evaluation whose rollout was emitted.

        Nothing while it waits, or was sampled out.

        A value of a sampled-out rollout is counted under ``sampled_out/evaluation``, not as a loss.
        """
        # Rows of training steps show the rewards of the rollouts that they consumed.
        score = evaluation.score
        if score.name == REWARD and score.value is not None:
            self.generated.revise(evaluation.trace_id, reward=score.value)
        if ended is None:
            rollout = self.generated.get(base_of(evaluation.trace_id))
            if pending and rollout is not None and rollout.is_sampled_out:
                self._sampled_out_value(evaluation.trace_id)
            return []
        if not ended.emitted:
            self._count_sampled_out("evaluation")
            return []
        return [_evaluation_record(evaluation, ended)]

    def sampled_out(
        self, sampled_out: SampledOut, instance_id: str, now_unix_ns: int
    ) -> list[Record]:
        """Add statistics of sampled-out rollouts, sent by process *instance_id*, to the statistics of their step.

        Nothing unless this closes steps. A redelivered event changes no statistics, but may still
        advance its process.
        """
        attempt = self._run.attempt_of(instance_id, sampled_out.role)
        new = self.steps.sampled_out(sampled_out, attempt, now_unix_ns)
        # A redelivered event adds nothing, and must not count its rollouts again.
        if new:
            self._count_sampled_out("rollout", new)
            for trace_id, rollout in sampled_out.generated.items():
                self.generated.add(trace_id, rollout)
                # Its values may have arrived before, and no trace will ever claim them.
                self._sampled_out_value(trace_id)
        return self._advance(instance_id, sampled_out, now_unix_ns)

    def _advance(
        self,
        instance_id: str,
        sent: SamplingFacts | SampledOut,
        now_unix_ns: int,
        *,
        done: str = "",
    ) -> list[Record]:
        """Note that a process sent a rollout, and close the steps that every worker has passed as a result.

        Nothing while the progress of the workers is the same as before, as after most rollouts:
        then no step can have become due, and the other workers need not be asked.
        """
        role = sent.role
        split = sent.split
        # All three first: each may be what the step was held open for.
        was_awaited = self._workers.complete(instance_id, done)
        has_advanced = self._workers.sent(
            instance_id, role, split, sent.step, now_unix_ns
        )
        has_closed = sent.open_steps is not None and self._workers.has_open(
            instance_id, role, split, sent.open_steps
        )
        if has_advanced and sent.step is not None:
            self._run.axes.reached(axis_of(role), sent.step)
        if has_advanced or was_awaited or has_closed:
            self.steps.reconsider()
            return self._close_steps(self.steps.due(now_unix_ns))
        return []

    def tick(self, now_unix_ns: int) -> list[Record]:
        """Release everything due: steps, then corrected statistics, then values without a trace."""
        steps = [*self.steps.due(now_unix_ns), *self.steps.corrected(now_unix_ns)]
        return self._close_steps(steps) + self._overdue(
            now_unix_ns - self._run.options.trace_timeout_ns
        )

    def close(self) -> list[Record]:
        """Release everything that `tick` would eventually release."""
        # Without the usual wait for more rollouts, since none will come.
        steps = [*self.steps.open(), *self.steps.corrected(_NEVER)]
        return self._close_steps(steps) + self._overdue(_NEVER)

    def thin(self) -> bool:
        """Sample out some rollouts before their step closes.

        Return whether any step had more rollouts than seats.

        It is for the limit of open traces: the step stays open, so that its later rollouts are
        still compared.
        """
        sampled_out = self.steps.thin()
        self._sample_out_all(sampled_out)
        return bool(sampled_out)

    def close_oldest(self) -> list[Record]:
        """Close the oldest step with waiting rollouts before it is due.

        Requires `waiting` above 0, and raises `StopIteration` else.
        """
        return self._close_steps(
            [next(step for step in self.steps.open() if step.waiting)]
        )

    def _close_steps(self, steps: Iterable[SampledStep]) -> list[Record]:
        """Sample the rollouts of each step; emit the kept rollouts and the statistics.

        The row of statistics follows the step's rollouts. It is emitted also when nothing is kept.
        The rollouts that were sampled out count in it. Of a step that closed before, nothing waits: its
        corrected statistics are all.
        """
        records: list[Record] = []
        for step in steps:
            chosen, sampled_out = self.steps.close(step)
            for trace_id in chosen:
                trace = self._store.traces[trace_id]
                if trace.facts is not None:
                    records.append(
                        self._emit(trace, self._store.read(trace), trace.facts)
                    )
            self._sample_out_all(sampled_out)
            records.append(self._row(step))
        return records

    def _sample_out_all(self, trace_ids: Collection[str]) -> None:
        """Count and forget rollouts that waited for their step and were not chosen."""
        for trace_id in trace_ids:
            trace = self._store.traces[trace_id]
            if trace.facts is not None:
                self._sample_out(trace, trace.facts)

    def _reward(self, trace_id: str, facts: SamplingFacts) -> float | None:
        return _revised(facts, self._evaluations.scores(trace_id)).reward

    def _row(self, step: SampledStep) -> Record:
        row = self.steps.row(step)
        # Not `admit`: a key that a program uses itself keeps the program's values.
        return replace(
            row, values=self._run.axes.admit_statistics(row.values, row.axis)
        )

    def _emit(
        self, trace: PendingTrace, source: ReceivedTrace, facts: SamplingFacts
    ) -> Record:
        """Return the record of a kept rollout, and forget its spans.

        One without messages, although the content policy allows them, names the instrumentation
        that recorded none.
        """
        rollout = self._assembler.rollout(
            source, facts, self._evaluations.scores(trace.id), self._run.axes.steps()
        )
        if not rollout.messages and not self._assembler.content.off:
            self._note_scope(source)
        self._end(
            trace, ended_as(trace, rollout.key, facts.role, facts.step, emitted=True)
        )
        return rollout

    def _note_scope(self, source: ReceivedTrace) -> None:
        """Remember an instrumentation that recorded no messages, and the setting that makes it record them.

        The first one with a name. Nothing for rollouts of our emitter, for a scope that is noted
        already, and beyond `_MAX_SCOPES`, since producers choose the names. `status` shows the setting.
        """
        scope = ""
        for origin, span in source.spans:
            if origin.scope and not origin.is_native and is_bare(span):
                scope = origin.scope
                break
        key = f"{BARE_SCOPE}{scope[:_MAX_SCOPE]}"
        if (
            scope
            and self._state.get(key) is None
            and len([*self._state.items(BARE_SCOPE)]) < _MAX_SCOPES
        ):
            self._state.set(key, switch_of(scope))

    def _sample_out(self, trace: PendingTrace, facts: SamplingFacts) -> None:
        """Count and forget a rollout without a seat, with the values that arrived for it.

        They are counted under ``sampled_out/``, not as a loss: the choice is the user's.
        """
        self.generated.revise(trace.id, is_sampled_out=True)
        # The step that trained on it is the bridge's own value: no process sent it.
        values = sum(
            score.name != TRAINED_STEP for score in self._evaluations.scores(trace.id)
        )
        if values:
            self._count_sampled_out("evaluation", values)
        self._count_sampled_out("rollout")
        self._end(trace, ended_as(trace, "", facts.role, facts.step, emitted=False))

    def _end(self, trace: PendingTrace, ended: CompletedTrace) -> None:
        self._store.forget(trace)
        self._evaluations.settle(trace.id)
        forgotten = self.ended.add(trace.id, ended)
        if forgotten is not None:
            # Its values are kept only as long as the rollout is remembered.
            self._evaluations.forget(forgotten)

    def _sampled_out_value(self, trace_id: str) -> None:
        """Count the values that wait for a rollout that an emitter sampled out.

        Its spans will never arrive.
        """
        if values := len(self._evaluations.drop_pending(trace_id)):
            self._count_sampled_out("evaluation", values)

    def _count_sampled_out(self, kind: str, number: int = 1) -> None:
        key = f"sampled_out/{kind}"
        self._state.set(key, number_at(self._state, key) + number)

    def _overdue(self, before_ns: int) -> list[Record]:
        """Return values whose trace never arrived before *before_ns*, or beyond the limit of traces, and count them.

        They are emitted all the same, because another bridge may have written that trace. Only
        values that a process sent count (``evaluation/no_rollout``).
        """
        records: list[Record] = []
        for values in self._evaluations.overdue(
            before_ns, self._run.options.max_open_traces
        ):
            for waiting in values:
                value = replace(waiting, trace_id=base_of(waiting.trace_id))
                key = self._assembler.rollout_key(value.role, TRAIN)
                records.append(
                    _evaluation_record(
                        value, CompletedTrace(True, key, value.role, value.step)
                    )
                )
                if value.is_sent:
                    count(self._state, "evaluation/no_rollout", name=value.trace_id)
        self._evaluations.bound(_ENDED_LIMIT)
        return records


def _revised(facts: SamplingFacts, scores: Iterable[EvaluationScore]) -> SamplingFacts:
    """Return *facts* with the reward that arrived apart from the trace, if any: it is the newer one."""
    for score in scores:
        if score.name == REWARD and score.value is not None:
            return replace(facts, reward=score.value)
    return facts


def _evaluation_record(value: ReceivedEvaluation, ended: CompletedTrace) -> Evaluation:
    """Return the record of a value whose rollout was already emitted."""
    return Evaluation(
        id=value.id,
        rollout_id=value.trace_id,
        rollout_key=ended.key,
        name=value.score.name,
        value=value.score.value,
        label=value.score.label,
        explanation=value.score.explanation,
        role=ended.role,
        step=ended.step,
        axis=axis_of(ended.role) if ended.step is not None else None,
        time_unix_ns=value.time_unix_ns,
    )
