"""Training steps and the rollouts they consume -> one row a step, and the steps of each rollout. Pure.

Spans of a step may come from several ranks, in any order, before or after the rollouts that they
name. A step's row is sent when nothing came for it for `TranslationOptions.row_wait_ns` after a
later step of its role, or for `step_watermark_ns`, or when the run ends. What arrives later gives
a further row, which replaces the values of the first. A rollout that trackers show gets the value
`TRAINED_STEP`, as evaluations do.
Bad input is counted (``drop/lineage/<reason>``) and never raises. Source:
``semconv/registry/spans.yaml``, ``span.rl.train``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import ClassVar, TypeAlias

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_bridge import semconv
from otel_bridge.records import LINEAGE_ID, Distribution, Json, Record, Value
from otel_bridge.translation.decode.attributes import text_in
from otel_bridge.translation.generated_rollouts import (
    TRAINED_STEP,
    GeneratedRollout,
)
from otel_bridge.translation.packing import NOT_STORED, packed, unpacked
from otel_bridge.translation.rollouts.assembly import EvaluationScore
from otel_bridge.translation.rollouts.evaluations import ReceivedEvaluation
from otel_bridge.translation.rollouts.pipeline import RolloutPipeline
from otel_bridge.translation.run_context import RunContext
from otel_bridge.translation.step_rows import (
    CollectedStep,
    SpanBatch,
    SpanPipeline,
    StepKey,
    linked_rollouts,
)

_Uses: TypeAlias = tuple[list[str], str]
"""Trace ids of rollouts, and the reason for which they are not used; empty: they are consumed."""
_OUTDATED = "lineage/outdated"
_PREFIX = "lineage/"
_NS = 1e9
_MAX_BUCKETS = 64
_MAX_DATASETS = 64
_UNKNOWN_REASON = "unknown"
_MAX_REASON_CHARS = 64
_MAX_STEPS = 64
"""Most training steps that are remembered of one rollout, the last ones."""


@dataclass(slots=True)
class TrainStep(CollectedStep):
    """Holds one training step of one role and attempt.

    Attributes:
        rollouts: Trace id of each rollout to the reason for which the step left it out; empty: the
            step consumed it.
        newest: Latest step that a consumed rollout was generated for; ``None``: not looked up.
    """

    SPACE: ClassVar[str] = "lineage"
    ROW_ID: ClassVar[str] = LINEAGE_ID

    rollouts: dict[str, str] = field(default_factory=dict[str, str])
    newest: int | None = field(default=None, metadata=NOT_STORED)

    @property
    def size(self) -> int:
        """Number of spans, and of rollouts that the step consumed or left out."""
        return len(self.spans) + len(self.rollouts)

    @property
    def consumed(self) -> list[str]:
        """Trace ids of the rollouts that the step consumed."""
        return [trace_id for trace_id, reason in self.rollouts.items() if not reason]

    def add(self, trace_id: str, unused: str) -> None:
        """Add a rollout. One rank may leave out what another one consumed: then it is consumed."""
        if self.rollouts.get(trace_id) != "":
            self.rollouts[trace_id] = unused


class LineagePipeline(SpanPipeline[TrainStep, _Uses]):
    """Collects the training steps of one run.

    Args:
        run: The run; key space ``lineage/`` of its state.
        rollouts: The rollouts of the run, which get values.
    """

    def __init__(self, run: RunContext, rollouts: RolloutPipeline) -> None:
        super().__init__(run, TrainStep)
        self._generated = rollouts.generated
        self._publish = rollouts.value
        self._outdated = set(unpacked(list[StepKey], run.state.get(_OUTDATED) or []))
        """Steps whose row lacks rollouts that it compares with, and gets them in its last row."""

    def read(self, span: Span, attributes: Mapping[str, Json]) -> _Uses | None:
        """Return the rollouts that *span* names, ``None`` without any."""
        rollouts = linked_rollouts(span)
        reason = text_in(attributes, semconv.TRAIN_UNUSED)[:_MAX_REASON_CHARS]
        if rollouts:
            return rollouts, reason
        return None

    def take(self, batch: SpanBatch) -> list[Record]:
        """Take spans of a process; return the values of the rollouts that they name.

        Rollouts that have not arrived are awaited, without a time limit, while their step is
        remembered. A span without a step, time or link is counted as ``lineage/invalid``.
        """
        now_unix_ns = batch.frame.now_unix_ns
        records: list[Record] = []
        for step, (rollouts, reason) in self.new_spans(batch):
            for trace_id in rollouts:
                step.add(trace_id, reason)
                records += self._assign(trace_id, step, now_unix_ns)
        return records + self.beyond_bound(now_unix_ns)

    def arrived(self, now_unix_ns: int) -> list[Record]:
        """Assign the rollouts that have arrived, or have another reward now, to the steps that named them before.

        Nothing for a step that is forgotten: its row can no longer be corrected. To be called after
        every frame, since the state does not have what has arrived.
        """
        records: list[Record] = []
        for trace_id in self._generated.take_news():
            rollout = self._generated.get(trace_id)
            for step in self.steps.values():
                if trace_id in step.rollouts:
                    step.change(now_unix_ns)
                    records += self._assign(trace_id, step, now_unix_ns)
                elif rollout is not None:
                    self._outdate(step, rollout)
        return records

    def _outdate(self, step: TrainStep, rollout: GeneratedRollout) -> None:
        """Note that the row of *step* compares with *rollout*, and had another figure of it or none.

        It is corrected once, by its last row: workers that are behind the trainer send such
        rollouts all the time, and each of them concerns the rows of many steps.
        """
        if not step.revision or rollout.step is None:
            return
        if step.newest is None:
            step.newest = _newest_step(self._known(step))
        if rollout.step <= step.newest and step.key not in self._outdated:
            self._outdated.add(step.key)
            self._run.state.set(_OUTDATED, packed(self._outdated))

    def is_whole(self, step: TrainStep) -> bool:
        """Return whether all rollouts have arrived that *step* consumed."""
        return all(map(self._generated.get, step.consumed))

    def _assign(self, trace_id: str, step: TrainStep, now_unix_ns: int) -> list[Record]:
        """Note what *step* did with a rollout; return the value that trackers show on it.

        Nothing when the rollout has not arrived, when the step left it out or has counted it
        before, or when no tracker shows it.
        """
        rollout = self._generated.get(trace_id)
        reason = step.rollouts[trace_id]
        if rollout is None:
            return []
        if reason:
            self._generated.revise(trace_id, unused=reason)
            return []
        steps = sorted({*rollout.trained_steps, step.number})[-_MAX_STEPS:]
        # Two spans of a step, or a redelivered one, count as one use.
        if steps == rollout.trained_steps:
            return []
        self._generated.revise(trace_id, trained_steps=steps)
        for later in self.steps.values():
            if later.number <= step.number:
                continue
            # The row of a later step counts this use as well, and else does not count it as unused.
            if later.rollouts.get(trace_id) == "":
                later.change(now_unix_ns)
            else:
                self._outdate(later, rollout)
        # No tracker shows it, so the value would have no place.
        if rollout.is_sampled_out:
            return []
        label = ",".join(map(str, steps))
        value = ReceivedEvaluation(
            id=f"t:{trace_id}:{step.number}",
            trace_id=trace_id,
            score=EvaluationScore(TRAINED_STEP, float(steps[-1]), label),
            instance_id=TRAINED_STEP,
            seq=len(steps),
            time_unix_ns=step.end_unix_ns,
            role=None,
            step=rollout.step,
        )
        return self._publish(value, now_unix_ns)

    def last_records(self, step: TrainStep, now_unix_ns: int) -> list[Record]:
        """Return what waits of *step*: its row, also if only rollouts that it did not consume have come since."""
        if step.key in self._outdated:
            step.change(now_unix_ns)
        return super().last_records(step, now_unix_ns)

    def values(self, step: TrainStep) -> dict[str, Value]:
        """Return the values of a row of *step*, which has all that is known of its rollouts then."""
        if step.key in self._outdated:
            self._outdated.discard(step.key)
            self._run.state.set(_OUTDATED, packed(self._outdated))
        consumed = self._known(step)
        step.newest = _newest_step(consumed)
        return step_values(
            step.number,
            consumed,
            unknown=len(step.consumed) - len(consumed),
            end_unix_ns=step.end_unix_ns,
            generated=self._generated.all(),
        )

    def _known(self, step: TrainStep) -> list[GeneratedRollout]:
        """Return the rollouts that *step* consumed, as far as they have arrived and are remembered."""
        return list(filter(None, map(self._generated.get, step.consumed)))


def _newest_step(rollouts: Iterable[GeneratedRollout]) -> int:
    """Return the latest step that any of *rollouts* was generated for; -1 when none has a step."""
    steps = [rollout.step for rollout in rollouts if rollout.step is not None]
    return max(steps, default=-1)


# --- the values of a row ----------------------------------------------------------------------------
def step_values(
    step: int,
    consumed: Sequence[GeneratedRollout],
    *,
    unknown: int,
    end_unix_ns: int,
    generated: Collection[GeneratedRollout],
) -> dict[str, Value]:
    """Return the values of a training step's row, by key without role.

    Args:
        step: The training step.
        consumed: The rollouts that it consumed.
        unknown: Number of further ones that no process has recorded, or that are forgotten.
        end_unix_ns: Time of the step, by the clock of its process.
        generated: All rollouts of the run that are remembered.

    Returns:
        The number of rollouts alone while none of them is known: everything else is a fact of
        theirs.
    """
    values: dict[str, Value] = {f"{_PREFIX}consumed": len(consumed) + unknown}
    if unknown:
        values[f"{_PREFIX}unknown"] = unknown
    staleness: list[int] = []
    ages_s: list[float] = []
    uses: list[int] = []
    datasets: Counter[str] = Counter()
    steps: set[int] = set()
    for rollout in consumed:
        # Weights are commonly numbered by the step that made them.
        version = rollout.policy_version
        if version is None:
            version = rollout.step
        if version is not None:
            staleness.append(step - version)
        ages_s.append((end_unix_ns - rollout.end_unix_ns) / _NS)
        uses.append(rollout.uses(step))
        if rollout.dataset:
            datasets[rollout.dataset] += 1
        if rollout.step is not None:
            steps.add(rollout.step)
    if staleness:
        values[f"{_PREFIX}staleness/distribution"] = _histogram(staleness)
    for name, numbers in (("staleness", staleness), ("age_s", ages_s), ("uses", uses)):
        if numbers:
            values[f"{_PREFIX}{name}/mean"] = fmean(numbers)
            values[f"{_PREFIX}{name}/max"] = max(numbers)
    values |= _mean_reward("consumed", consumed)
    # Each is a key of the run.
    for dataset, number in datasets.most_common(_MAX_DATASETS):
        values[f"{_PREFIX}dataset/{dataset}"] = number / len(consumed)
    return values | _of_generated(step, steps, generated)


def _mean_reward(name: str, rollouts: Iterable[GeneratedRollout]) -> dict[str, Value]:
    rewards = [rollout.reward for rollout in rollouts if rollout.reward is not None]
    if rewards:
        # Not `fmean`, which raises where they are beyond a double together.
        return {f"{_PREFIX}reward/{name}": sum(rewards) / len(rewards)}
    return {}


def _of_generated(
    step: int, steps: Collection[int], generated: Iterable[GeneratedRollout]
) -> dict[str, Value]:
    """Return the mean reward of all rollouts of *steps*, and the share of older ones without a use, also by reason.

    Newer ones are left out, since a replay buffer may still use them. Nothing without steps: it is
    unknown then which rollouts training has passed.

    Args:
        step: The training step.
        steps: Steps of the rollouts that it consumed.
        generated: All rollouts of the run that are remembered.
    """
    oldest_step = min(steps, default=None)
    of_same_steps: list[GeneratedRollout] = []
    passed = 0
    unused: Counter[str] = Counter()
    for rollout in generated:
        if rollout.step is None or oldest_step is None:
            continue
        if rollout.step in steps:
            of_same_steps.append(rollout)
        elif rollout.step < oldest_step:
            passed += 1
            if not rollout.uses(step):
                unused[rollout.unused or _UNKNOWN_REASON] += 1
    values = _mean_reward("generated", of_same_steps)
    if passed:
        values[f"{_PREFIX}unused"] = sum(unused.values()) / passed
    for reason, number in unused.items():
        values[f"{_PREFIX}unused/{reason}"] = number / passed
    return values


def _histogram(numbers: Sequence[int]) -> Distribution:
    """Return the distribution of whole numbers: a bucket each, or equal wider ones if they are far apart."""
    low = min(numbers)
    # Rounded up, or the highest number would be beyond the last bucket.
    width = -(-(max(numbers) - low + 1) // _MAX_BUCKETS)
    # In whole numbers: doubles would lose some of versions that are times in ns.
    counts = [0] * ((max(numbers) - low) // width + 1)
    for number in numbers:
        counts[(number - low) // width] += 1
    # By halves, so that each whole number lies inside its bucket.
    edges = tuple(low - 0.5 + width * index for index in range(len(counts) + 1))
    return Distribution(
        len(numbers),
        float(sum(numbers)),
        float(low),
        float(max(numbers)),
        edges,
        tuple(counts),
    )
