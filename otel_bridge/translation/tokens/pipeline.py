"""Values of the tokens of rollouts -> one row a step, and the figures of each rollout that trackers show. Pure.

Spans may come from several ranks and processes, in any order, before or after their rollouts. A
step's row is sent when nothing came for it for `TranslationOptions.row_wait_ns` after a later step
of its role, or for `step_watermark_ns`, or when the run ends. What arrives later gives a further
row, which replaces the values of the first. Log-probabilities of engine and trainer that come in
different spans are joined here, by rollout. Bad input is counted (``drop/tokens/<reason>``) and
never raises.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_bridge.records import TOKENS_ID, Json, Record, RolloutRecord, Value
from otel_bridge.tokens.statistics import (
    ABSOLUTE,
    ENGINE,
    FIGURES,
    MISMATCH,
    TENTHS,
    TRAINER,
    Figure,
    distribution_of,
    figures_of_rollouts,
)
from otel_bridge.translation.rollouts.assembly import EvaluationScore
from otel_bridge.translation.rollouts.evaluations import ReceivedEvaluation
from otel_bridge.translation.rollouts.pipeline import RolloutPipeline
from otel_bridge.translation.run_context import RunContext
from otel_bridge.translation.step_rows import (
    CollectedStep,
    SpanBatch,
    SpanPipeline,
    StepKey,
)
from otel_bridge.translation.tokens.rollouts import (
    PREFIX,
    RolloutTokens,
    TokenRollouts,
    rollout_values,
)
from otel_bridge.translation.tokens.token_span import TokenSpan, read_token_span

_SENDER = "tokens"


_QUANTILES = {"p01": 0.01, "p10": 0.1, "p50": 0.5, "p90": 0.9, "p99": 0.99}
_BY_POSITION = (ABSOLUTE, FIGURES["entropies"])
_MAX_FIGURES = 64
_HALF = 16
"""Hex digits of a trace id that are stored; a chance collision within a step is practically
impossible."""


@dataclass(slots=True)
class Total:
    """Holds the sums of one quantity over all tokens of a step, as `Figure` does over those of a span."""

    count: float = 0.0
    sum: float = 0.0
    maximum: float = 0.0
    tenths: list[list[float]] = field(
        default_factory=lambda: [[0.0] * TENTHS, [0.0] * TENTHS]
    )
    buckets: dict[int, int] = field(default_factory=dict[int, int])

    def add(self, count: float, subtotal: float, maximum: float = 0.0) -> None:
        """Add the tokens of one rollout."""
        self.count += count
        self.sum += subtotal
        self.maximum = max(self.maximum, maximum)

    def add_positions(self, figure: Figure) -> None:
        """Add what a figure has of all its rollouts together: tenths and buckets.

        A third party may leave out either; then it adds zeros.
        """
        self.tenths = (figure.tenths + self.tenths).tolist()
        for bucket, tokens in figure.buckets.tolist():
            self.buckets[bucket] = self.buckets.get(bucket, 0) + tokens


@dataclass(slots=True)
class TokenStep(CollectedStep):
    """Holds the tokens of one step of one role and attempt.

    Attributes:
        totals: Sums by figure.
        counted: Half of a trace id to a bit for each figure, in the order of `totals`, that counts
            the rollout.
        facts: What trackers show of rollouts that have not arrived yet, or of which more may come:
            trace id, then name, to the value.
    """

    SPACE: ClassVar[str] = "tokens"
    ROW_ID: ClassVar[str] = TOKENS_ID

    totals: dict[str, Total] = field(default_factory=dict[str, Total])
    counted: dict[str, int] = field(default_factory=dict[str, int])
    facts: dict[str, dict[str, float]] = field(
        default_factory=dict[str, dict[str, float]]
    )

    @property
    def size(self) -> int:
        """Number of spans of the step, and of rollouts that it counts."""
        return len(self.spans) + len(self.counted)

    def add(
        self,
        rollouts: Sequence[str],
        figures: Mapping[str, Figure],
        is_shown: Callable[[str], bool],
    ) -> int:
        """Add figures of *rollouts*.

        Return how many of them the step has already, each of a rollout and a name. These are not
        added: ranks of one model may all send the same rollout. Figures beyond `_MAX_FIGURES` are
        ignored.

        Args:
            rollouts: Trace ids, in the order of the figures.
            figures: Figures by name.
            is_shown: Callable that decides whether trackers may show a rollout.
        """
        twice = 0
        for name, figure in figures.items():
            # Each figure is a bit of every rollout and several keys of metrics.
            if name not in self.totals and len(self.totals) >= _MAX_FIGURES:
                continue
            total = self.totals.setdefault(name, Total())
            bit = 1 << list(self.totals).index(name)
            repeated = 0
            for trace_id, sums in zip(
                rollouts, figure.rollouts.T.tolist(), strict=True
            ):
                half = trace_id[:_HALF]
                counted_bits = self.counted.get(half, 0)
                # Each rollout counts once a figure; the caller reports what came twice.
                if counted_bits & bit:
                    repeated += 1
                    continue
                facts = rollout_values(name, *sums)
                # Without tokens it is not counted, so that a later span with its tokens still is.
                if not facts:
                    continue
                self.counted[half] = counted_bits | bit
                total.add(*sums)
                if is_shown(trace_id):
                    self.facts.setdefault(trace_id, {}).update(facts)
            # These are sums over all rollouts of a span: no single one can be left out.
            if not repeated:
                total.add_positions(figure)
            twice += repeated
        return twice

    def take_facts(self, trace_id: str) -> dict[str, float]:
        """Remove and return what trackers show of a rollout."""
        self.is_stored = False
        return self.facts.pop(trace_id)


class TokenPipeline(SpanPipeline[TokenStep, TokenSpan]):
    """Collects the tokens of one run.

    Args:
        run: The run; key space ``tokens/`` of its state.
        rollouts: The rollouts of the run, which get values.
    """

    def __init__(self, run: RunContext, rollouts: RolloutPipeline) -> None:
        super().__init__(run, TokenStep)
        self._generated = rollouts.generated
        self._publish = rollouts.value
        self._rollouts = TokenRollouts(run)

    def read(self, span: Span, attributes: Mapping[str, Json]) -> TokenSpan | None:
        """Return what *span* holds."""
        return read_token_span(span, attributes)

    def take(self, batch: SpanBatch) -> list[Record]:
        """Take spans of a process; return what waits of steps that have no room any more.

        Rows come from `tick`. Spans that cannot be read are counted as ``tokens/invalid``, rollouts
        whose figure the step has already as ``tokens/twice``.
        """
        now_unix_ns = batch.frame.now_unix_ns
        for step, span in self.new_spans(batch):
            figures = span.figures or figures_of_rollouts(
                [span.streams.get(trace_id, {}) for trace_id in span.rollouts]
            )
            if twice := step.add(span.rollouts, figures, self._may_show):
                self.note_drop("twice", f"step {step.number}", twice)
            self._keep(step.key, span, now_unix_ns)
        # After all spans of the frame: the other half of a stream may be in the same one.
        self._rollouts.evict()
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

        Halves of different lengths are counted as ``tokens/length``, those of a forgotten step as
        ``tokens/late``. Neither waits any longer.
        """
        engine = rollout.streams.get(ENGINE)
        if engine is None:
            return
        for key, trainer in rollout.waiting.items():
            step = self.steps.get(key)
            if len(trainer) != len(engine):
                self.note_drop("length", rollout.trace_id)
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
                # That of a later step replaces it. So its number is the time: steps of several
                # roles have no common order.
                value = ReceivedEvaluation(
                    id=f"{TOKENS_ID}{trace_id}:{step.number}:{step.revision}:{name}",
                    trace_id=trace_id,
                    score=EvaluationScore(name, number),
                    instance_id=_SENDER,
                    seq=step.end_unix_ns,
                    time_unix_ns=step.end_unix_ns,
                    role=None,
                    step=step.number,
                )
                records += self._publish(value, now_unix_ns)
        return records


def step_values(totals: Mapping[str, Total], rollouts: int) -> dict[str, Value]:
    """Return the values of a step's row, by key without role; of figures without tokens none.

    Quantiles are of log-probabilities alone, and positions of two figures, or a step would have
    hundreds of keys.

    Args:
        totals: Sums over all tokens, by figure.
        rollouts: Number of rollouts.
    """
    tokens = max((total.count for total in totals.values()), default=0.0)
    values: dict[str, Value] = {
        f"{PREFIX}rollouts": rollouts,
        f"{PREFIX}count": int(tokens),
    }
    for name, total in totals.items():
        # A third party may send buckets of rollouts without tokens.
        if not total.count:
            continue
        values |= rollout_values(name, total.count, total.sum, total.maximum)
        if total.buckets:
            distribution = distribution_of(total.buckets)
            for label, share in _QUANTILES.items():
                values[f"{PREFIX}{name}/{label}"] = distribution.quantile(share)
        if name in _BY_POSITION:
            for tenth, (count, subtotal) in enumerate(zip(*total.tenths), 1):  # noqa: B905  # both are of ten
                if count:
                    values[f"{PREFIX}{name}/tenth_{tenth:02d}"] = subtotal / count
    return values
