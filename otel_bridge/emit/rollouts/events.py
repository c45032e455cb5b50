"""Events about rollouts: evaluations that arrive later, and statistics of sampled-out rollouts."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import nan
from struct import pack
from typing import TYPE_CHECKING, NamedTuple

from otel_bridge import semconv
from otel_bridge.emit.arguments import role_of
from otel_bridge.emit.encode import coerce
from otel_bridge.emit.encode.log_record import event
from otel_bridge.emit.encode.protobuf import Attribute
from otel_bridge.emit.encode.row import SCOPE
from otel_bridge.emit.encode.values import to_step
from otel_bridge.emit.rollouts.identity import id_of
from otel_bridge.emit.rollouts.spans import CallContext, trace_id_bytes
from otel_bridge.journal.frames import Signal
from otel_bridge.messages.content_filter import ContentFilter
from otel_bridge.text.secret_patterns import MARGIN_CHARS
from otel_bridge.values.plain import CLIPPED
from otel_bridge.values.scalars import any_text

if TYPE_CHECKING:
    from otel_bridge.emit.emit_run import EmitRun

# Values that arrive after their rollout -> events ``gen_ai.evaluation.result`` with the rollout's
# trace id.

BAD_STEP = "rollout_step"
_MAX_LABEL_CHARS = 256
_EVENTS_A_RECORD = 1000


class EvaluationContext(NamedTuple):
    """Holds what the values of one call share."""

    name: str
    role: str | None
    step: int | None
    explanation: str | None = None


def log_values(
    run: EmitRun, values: Iterable[tuple[object, object]], shared: EvaluationContext
) -> None:
    """Append one event for each rollout, or its id, and value, many in one record.

    A value without an id is counted as ``evaluation_id``, one that is neither a number nor a text
    as ``evaluation_value``; the others are recorded. Each event has a number of its process, by
    which a bridge drops it when it is redelivered. A record holds a thousand, far below the 4 MiB
    that a Collector takes.
    """
    now = time.time_ns()
    limits = run.rollout_options.limits
    content_filter = ContentFilter(limits.policy, limits.rollout_bytes)
    shared_pairs = _shared(run, shared, content_filter)
    events: list[bytes] = []
    for rollout, value in values:
        rollout_id = id_of(rollout)
        if rollout_id is None:
            run.count_drop("evaluation_id")
            continue
        pairs = _score(value, content_filter, rollout_id)
        if pairs is None:
            run.count_drop("evaluation_value", 1, rollout_id)
            continue
        numbered = {**shared_pairs, **pairs, semconv.EVENT_SEQ: run.next_event_seq()}
        name = semconv.EVENT_EVALUATION
        record = event(
            name,
            time_unix_ns=now,
            pairs=numbered,
            trace_id=trace_id_bytes(run.id, rollout_id),
        )
        events.append(record[len(SCOPE) :])
    content_filter.losses.report(run.count_drop)
    for start in range(0, len(events), _EVENTS_A_RECORD):
        run.append(
            Signal.LOGS,
            SCOPE + b"".join(events[start : start + _EVENTS_A_RECORD]),
            time_unix_ns=now,
        )


def _score(
    value: object, content_filter: ContentFilter, rollout_id: str
) -> dict[str, Attribute] | None:
    """Return a number or label as an attribute.

    ``None`` for anything else, which the caller counts. A label that is cut is counted as
    ``clipped``. It is redacted with a margin, so that a secret at the cut is recognised.
    """
    number = coerce.number(value)
    if number is not None:
        return {semconv.EVALUATION_VALUE: number}
    if isinstance(value, str) and value:
        if content_filter.off:
            # Empty, not left out: an evaluation needs a number or a label.
            return {semconv.EVALUATION_LABEL: ""}
        if len(value) > _MAX_LABEL_CHARS:
            content_filter.losses.add(CLIPPED, 1, rollout_id)
        label = content_filter.text(value[: _MAX_LABEL_CHARS + MARGIN_CHARS])
        return {semconv.EVALUATION_LABEL: label[:_MAX_LABEL_CHARS]}
    return None


def _shared(
    run: EmitRun, shared: EvaluationContext, content_filter: ContentFilter
) -> dict[str, Attribute]:
    """Return the attributes that all values of a call have.

    A step that is not a number is left out and counted as ``rollout_step``; an explanation that is
    cut, as ``clipped``. The role is left out when it is the resource's, which the bridge reads
    anyway.
    """
    step = to_step(shared.step, run.count_drop, reason=BAD_STEP)
    role = role_of(shared.role)
    pairs: dict[str, Attribute] = {
        semconv.EVALUATION_NAME: coerce.name(shared.name) or "reward",
        semconv.STEP: step,
        semconv.ROLE: None if role == run.role else role,
    }
    if shared.explanation is not None and not content_filter.off:
        pairs[semconv.EVALUATION_EXPLANATION] = content_filter.text(
            any_text(shared.explanation)
        )
        if content_filter.clipped_bytes:
            content_filter.losses.add(CLIPPED, 1, "explanation")
    return pairs


# Sampled-out rollouts -> the event ``rl.rollouts``: for each group the mergeable statistics of its
# rewards.


class SampledRollout(NamedTuple):
    """Holds the facts of one rollout by which it is sampled, and shown when it is left out.

    Attributes:
        call_index: Index in its call.
        key: Stable id, which decides between equals.
        id: Id that the user gave.
    """

    call_index: int
    key: str
    reward: float | None
    group: str | None
    id: str | None
    dataset: str | None
    policy_version: int | None
    failed: bool
    truncated: bool


def append_sampled_out(
    run: EmitRun, rollouts: Sequence[SampledRollout], call: CallContext
) -> None:
    """Append statistics of *rollouts*, which are left out of one step and split.

    Trackers show figures over all of a step. Sums by group, below ``""`` without one, so that the
    bridge can merge those of several calls and workers. A rollout without a reward adds to their
    number only.
    """
    rewards_by_group: defaultdict[str, list[float]] = defaultdict(list)
    for rollout in rollouts:
        if rollout.reward is not None:
            rewards_by_group[rollout.group or ""].append(rollout.reward)
    pairs: dict[str, Attribute] = {
        semconv.STEP: call.step,
        semconv.SPLIT: call.split,
        semconv.ROLE: call.role,
        semconv.ROLLOUTS_COUNT: len(rollouts),
        semconv.EVENT_SEQ: run.next_event_seq(),
        semconv.ROLLOUTS_OPEN_STEPS: call.open_steps,
        **_named_rollouts(rollouts),
        semconv.ROLLOUTS_STALENESS: _staleness(rollouts, call.step),
    }
    payload = event(
        semconv.EVENT_ROLLOUTS,
        time_unix_ns=time.time_ns(),
        body={
            group: _statistics(rewards) for group, rewards in rewards_by_group.items()
        },
        pairs=pairs,
    )
    run.append(Signal.LOGS, payload)


def _statistics(rewards: Sequence[float]) -> dict[str, Attribute]:
    """Return what a bridge can merge with those of other calls and workers.

    Mean and deviation follow from the sums.
    """
    return {
        "count": len(rewards),
        "sum": sum(rewards),
        "sum_squares": sum(reward * reward for reward in rewards),
        "min": min(rewards),
        "max": max(rewards),
    }


def _staleness(
    rollouts: Iterable[SampledRollout], step: int | None
) -> dict[str, Attribute] | None:
    """Return count, sum and maximum of step less policy version.

    ``None`` without a step, or if no rollout names a version as a number. Kept rollouts carry their
    version themselves.
    """
    if step is None:
        return None
    ages: list[int] = []
    for rollout in rollouts:
        if rollout.policy_version is not None:
            ages.append(step - rollout.policy_version)
    if ages:
        return {"count": len(ages), "sum": sum(ages), "max": max(ages)}
    return None


def _named_rollouts(rollouts: Iterable[SampledRollout]) -> dict[str, Attribute]:
    """Return ids, rewards, policy versions and datasets of the rollouts that have ids.

    Empty without ids. An entry each, in one order: texts one a line, numbers packed. With them a
    bridge can assign later evaluations, and knows the rollouts that a training step consumes. It
    derives the trace ids, which would cost the caller a hash each. An id with a line break, and
    those beyond `MAX_ROLLOUTS_IDS`, are left out.
    """
    ids: list[str] = []
    rewards: list[float] = []
    versions: list[int] = []
    datasets: list[str] = []
    for rollout in rollouts:
        if rollout.id is None or "\n" in rollout.id:
            continue
        if len(ids) == semconv.MAX_ROLLOUTS_IDS:
            break
        version = rollout.policy_version
        ids.append(rollout.id)
        rewards.append(nan if rollout.reward is None else rollout.reward)
        versions.append(semconv.NO_VERSION if version is None else version)
        datasets.append((rollout.dataset or "").replace("\n", " "))
    if not ids:
        return {}
    pairs: dict[str, Attribute] = {
        semconv.ROLLOUTS_IDS: "\n".join(ids),
        semconv.ROLLOUTS_REWARDS: pack(f"<{len(ids)}d", *rewards),
    }
    if set(versions) != {semconv.NO_VERSION}:
        pairs[semconv.ROLLOUTS_POLICY_VERSIONS] = pack(f"<{len(ids)}q", *versions)
    if any(datasets):
        pairs[semconv.ROLLOUTS_DATASETS] = "\n".join(datasets)
    return pairs
