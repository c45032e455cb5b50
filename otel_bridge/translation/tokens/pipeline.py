"""Values of the tokens of rollouts -> one row a step, and the figures of each rollout that trackers show. Pure.

Spans may come from several ranks and processes, in any order, before or after their rollouts. A
step's row is sent when nothing came for it for `TranslationOptions.row_wait_ns` after a later step
of its role, or for `step_watermark_ns`, or when the run ends. What arrives later gives a further
row, which replaces the values of the first. Log-probabilities of engine and trainer that come in
different spans are joined here, by rollout. Bad input is counted (``drop/tokens/<reason>``) and
never raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_bridge.records import TOKENS_ID, Json, Record, RolloutRecord, Value
from otel_bridge.tokens.statistics import ENGINE, MISMATCH, TRAINER, figures_of_rollouts
from otel_bridge.translation.frame_decoder import DecodedFrame
from otel_bridge.translation.generated_rollouts import GeneratedRollouts
from otel_bridge.translation.processes.producers import ProducerContext
from otel_bridge.translation.rollouts.assembly import EvaluationScore
from otel_bridge.translation.rollouts.evaluations import ReceivedEvaluation
from otel_bridge.translation.run_context import RunContext
from otel_bridge.translation.state import count
from otel_bridge.translation.step_rows import SpanPipeline, StepKey
from otel_bridge.translation.tokens.rollouts import RolloutTokens, TokenRollouts
from otel_bridge.translation.tokens.step import TokenStep, step_values
from otel_bridge.translation.tokens.token_span import TokenSpan, read_token_span

TWICE = "tokens/twice"
OTHER_LENGTH = "tokens/length"
EVICTED = "tokens/evicted"
_SENDER = "tokens"


class TokenPipeline(SpanPipeline[TokenStep, TokenSpan]):
    """Collects the tokens of one run.

    Args:
        run: The run; key space ``tokens/`` of its state.
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
        super().__init__(run, TokenStep)
        self._generated = generated
        self._publish = publish
        self._rollouts = TokenRollouts(run)

    def read(self, span: Span, attributes: Mapping[str, Json]) -> TokenSpan | None:
        """Return what *span* holds."""
        return read_token_span(span, attributes)

    def take(
        self, frame: DecodedFrame, context: ProducerContext, spans: Iterable[Span]
    ) -> list[Record]:
        """Take spans of a process; return what waits of steps that have no room any more.

        Rows come from `tick`. Spans that cannot be read are counted as ``tokens/invalid``, rollouts
        whose figure the step has already as `TWICE`.
        """
        now_unix_ns = frame.now_unix_ns
        for step, span in self.new_spans(context, spans, now_unix_ns):
            figures = span.figures or figures_of_rollouts(
                [span.streams.get(trace_id, {}) for trace_id in span.rollouts]
            )
            if twice := step.add(span.rollouts, figures, self._may_show):
                count(self._run.state, TWICE, twice, name=f"step {step.number}")
            self._keep(step.key, span, now_unix_ns)
        # After all spans of the frame: the other half of a stream may be in the same one.
        for rollout in self._rollouts.evict():
            # Only then is something lost that no tracker has.
            if rollout.waiting:
                count(self._run.state, EVICTED, name=rollout.trace_id)
        return self.beyond_bound(now_unix_ns)

    def due(self, now_unix_ns: int) -> list[Record]:
        """Return pages and rows that are due, and the figures of rollouts that have arrived since."""
        records = [*self._rollouts.pages(now_unix_ns), *super().due(now_unix_ns)]
        for step in self.ordered():
            # Once the row is sent: until then a further span may change the figures.
            if step.changed_ns is None:
                records += self._facts(step, now_unix_ns)
        return records

    def close_pages(self) -> list[Record]:
        """Return the pages that wait; call after the last rollouts."""
        return [*self._rollouts.pages(None)]

    def shown(self, rollout: RolloutRecord, now_unix_ns: int) -> None:
        """Note that trackers get *rollout*: its tokens are shown with its messages.

        Kept for tokens to come once the run has had any: others would fill the state for nothing.
        """
        self._rollouts.show(rollout, now_unix_ns, keep=bool(self.steps))

    def _may_show(self, trace_id: str) -> bool:
        """Return whether trackers show a rollout, or may do so once it arrives.

        One that is not known counts as shown: tokens often come before their rollout.
        """
        rollout = self._generated.get(trace_id)
        return rollout is None or not rollout.is_sampled_out

    # --- streams ----------------------------------------------------------------------------------
    def _keep(self, key: StepKey, span: TokenSpan, now_unix_ns: int) -> None:
        """Keep the streams of rollouts that trackers may show, and those that wait for their other half.

        The trainer's half waits for each step, since a replayed rollout has one in several. The
        engine's is the same in all.
        """
        # Else the sender has compared both sides.
        needs_mismatch = not span.has_mismatch
        for trace_id, streams in span.streams.items():
            rollout = self._rollouts.get(trace_id)
            if needs_mismatch and TRAINER in streams:
                rollout.waiting[key] = streams[TRAINER]
            if self._may_show(trace_id):
                texts = span.texts.get(trace_id)
                rollout.add(streams, texts, span.end_unix_ns)
            # Of a rollout that no tracker shows, a mismatch needs this half alone.
            elif needs_mismatch and ENGINE in streams:
                rollout.add({ENGINE: streams[ENGINE]}, None, span.end_unix_ns)
            self._join(rollout, now_unix_ns)
            if rollout.streams or rollout.waiting:
                self._rollouts.put(rollout, now_unix_ns)

    def _join(self, rollout: RolloutTokens, now_unix_ns: int) -> None:
        """Add the mismatch of the steps that wait for the log-probabilities of the engine, if they are there.

        Halves of different lengths are counted as `OTHER_LENGTH`, those of a forgotten step as
        ``tokens/late``. Neither waits any longer.
        """
        engine = rollout.streams.get(ENGINE)
        if engine is None:
            return
        for key, trainer in rollout.waiting.items():
            step = self.steps.get(key)
            if len(trainer) != len(engine):
                count(self._run.state, OTHER_LENGTH, name=rollout.trace_id)
            elif step is None:
                self.note_drop("late", str(key[1]))
            else:
                figures = figures_of_rollouts([{ENGINE: engine, TRAINER: trainer}])
                # Steps have the figures of the two sides already.
                mismatch = {name: figures[name] for name in MISMATCH}
                step.add((rollout.trace_id,), mismatch, self._may_show)
                step.change(now_unix_ns)
        rollout.waiting.clear()

    # --- rows and figures -------------------------------------------------------------------------
    def last_records(self, step: TokenStep, now_unix_ns: int) -> list[Record]:
        """Return what waits of *step*: its row, and the figures of its rollouts."""
        row = super().last_records(step, now_unix_ns)
        return row + self._facts(step, now_unix_ns)

    def values(self, step: TokenStep) -> dict[str, Value]:
        """Return the values of a row of *step*."""
        return step_values(step.totals, len(step.counted))

    def _facts(self, step: TokenStep, now_unix_ns: int) -> list[Record]:
        """Return the figures of the rollouts of *step* that have arrived.

        Those of others wait, as long as the step is remembered. Those of a rollout that is sampled
        out are dropped uncounted: the row of the step has them.
        """
        records: list[Record] = []
        # A copy, because those that have arrived are removed.
        for trace_id in list(step.facts):
            rollout = self._generated.get(trace_id)
            if rollout is None:
                continue
            facts = step.take_facts(trace_id)
            if rollout.is_sampled_out:
                continue
            for name, number in facts.items():
                value = _value(step, trace_id, name, number)
                records += self._publish(value, now_unix_ns)
        return records


def _value(
    step: TokenStep, trace_id: str, name: str, number: float
) -> ReceivedEvaluation:
    """Return a figure of a rollout as a value; that of a later step replaces it.

    So its number is the time: steps of several roles have no common order.
    """
    return ReceivedEvaluation(
        id=f"{TOKENS_ID}{trace_id}:{step.number}:{step.revision}:{name}",
        trace_id=trace_id,
        score=EvaluationScore(name, number),
        instance_id=_SENDER,
        seq=step.end_unix_ns,
        time_unix_ns=step.end_unix_ns,
        role=None,
        step=step.number,
    )
