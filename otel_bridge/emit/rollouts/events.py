"""Events about rollouts: evaluations that arrive later, and statistics of sampled-out rollouts."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from math import nan
from struct import pack
from typing import TYPE_CHECKING, NamedTuple

from otel_bridge import semconv
from otel_bridge.emit.encode import coerce
from otel_bridge.emit.encode.log_record import event
from otel_bridge.emit.encode.protobuf import Attribute
from otel_bridge.emit.encode.row import SCOPE
from otel_bridge.emit.messages.content_filter import ContentFilter
from otel_bridge.emit.rollouts.spans import CallContext, trace_id_bytes
from otel_bridge.emit.values.plain import CLIPPED
from otel_bridge.emit.values.scalars import any_text
from otel_bridge.journal.frames import Signal
from otel_bridge.text.secret_patterns import MARGIN_CHARS

if TYPE_CHECKING:
    from otel_bridge.emit.emit_run import EmitRun

# Values that arrive after their rollout -> events ``gen_ai.evaluation.result`` with the rollout's
# trace id.

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
    """Append one event for each id and value, many in one record.

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
    for raw_id, value in values:
        rollout_id = coerce.name(raw_id)
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
    step = coerce.integer(shared.step)
    role = coerce.name(shared.role)
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
    if step is None and shared.step is not None:
        content_filter.losses.add("rollout_step", 1, any_text(shared.step))
    return pairs


# Sampled-out rollouts -> the event ``rl.rollouts``: for each group the mergeable statistics of its
# rewards.


def append_sampled_out(
    run: EmitRun,
    columns: SampledColumns,
    kept_rollouts: Sequence[int],
    call: CallContext,
) -> None:
    """Append statistics of the rollouts of *columns* that are not *kept_rollouts*.

    Trackers show figures over all of a step. Sums by group, below ``""`` without one, so that the
    bridge can merge those of several calls and workers. Rollouts without a reward only count.

    Args:
        run: The run.
        columns: All rollouts of one step and split.
        kept_rollouts: Indices of the kept ones in *columns*.
        call: Step, split, role and open steps.
    """
    kept_indices = set(kept_rollouts)
    rewards_by_group: defaultdict[str, list[float]] = defaultdict(list)
    for index, (reward, group) in enumerate(
        zip(columns.rewards, columns.groups, strict=True)
    ):
        if reward is not None and index not in kept_indices:
            rewards_by_group[group or ""].append(reward)
    pairs: dict[str, Attribute] = {
        semconv.STEP: call.step,
        semconv.SPLIT: call.split,
        semconv.ROLE: call.role,
        semconv.ROLLOUTS_COUNT: len(columns.rewards) - len(kept_rollouts),
        semconv.EVENT_SEQ: run.next_event_seq(),
        semconv.ROLLOUTS_OPEN_STEPS: call.open_steps,
        **_named_rollouts(columns, kept_indices),
        semconv.ROLLOUTS_STALENESS: _staleness(
            columns.versions, call.step, kept_indices
        ),
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
    return {
        "count": len(rewards),
        "sum": sum(rewards),
        "sum_squares": sum([reward * reward for reward in rewards]),
        "min": min(rewards),
        "max": max(rewards),
    }


def _staleness(
    versions: Sequence[object], step: int | None, kept_indices: Container[int]
) -> dict[str, Attribute] | None:
    """Return count, sum and maximum of step less policy version over the rollouts that are not kept.

    ``None`` without a step, or if no rollout names a version as a number. Kept rollouts carry their
    version themselves.
    """
    if step is None:
        return None
    ages: list[int] = []
    for index, version in enumerate(versions):
        number = coerce.integer(version)
        if number is not None and index not in kept_indices:
            ages.append(step - number)
    if ages:
        return {"count": len(ages), "sum": sum(ages), "max": max(ages)}
    return None


@dataclass(slots=True)
class SampledColumns:
    """Holds the columns that sampling uses, for the rollouts of one step and split: one entry per rollout.

    Attributes:
        indices: Indices in the call.
        failed: Failed rollouts, as indices in these lists.
        truncated: Truncated rollouts, as indices in these lists.
        versions: Policy version of each rollout, as given.
        ids: Id of each rollout, as given.
        datasets: Dataset of each rollout, as given.
    """

    indices: list[int]
    rewards: list[float | None]
    groups: list[str | None]
    versions: Sequence[object]
    ids: Sequence[object]
    datasets: Sequence[object]
    failed: Sequence[int] = ()
    truncated: Sequence[int] = ()


def _named_rollouts(
    columns: SampledColumns, kept_indices: Container[int]
) -> dict[str, Attribute]:
    """Return ids, rewards, policy versions and datasets of the rollouts that are not kept and have ids.

    Empty without ids. An entry each, in one order: texts one a line, numbers packed. With them a
    bridge can assign later evaluations, and knows the rollouts that a training step consumes. It
    derives the trace ids, which would cost the caller a hash each. An id with a line break, and
    those beyond `MAX_ROLLOUTS_IDS`, are left out.
    """
    ids: list[str] = []
    indices: list[int] = []
    for index, raw_id in enumerate(columns.ids):
        name = coerce.name(raw_id)
        if name and "\n" not in name and index not in kept_indices:
            ids.append(name)
            indices.append(index)
    if not ids:
        return {}
    del ids[semconv.MAX_ROLLOUTS_IDS :]
    del indices[semconv.MAX_ROLLOUTS_IDS :]
    pairs: dict[str, Attribute] = {
        semconv.ROLLOUTS_IDS: "\n".join(ids),
        semconv.ROLLOUTS_REWARDS: _packed_rewards(
            [columns.rewards[index] for index in indices]
        ),
    }
    versions = [columns.versions[index] for index in indices]
    if _has_any(versions):
        pairs[semconv.ROLLOUTS_POLICY_VERSIONS] = _packed_versions(versions)
    datasets = [columns.datasets[index] for index in indices]
    if _has_any(datasets):
        pairs[semconv.ROLLOUTS_DATASETS] = _lines(datasets)
    return pairs


def _has_any(values: Iterable[object]) -> bool:
    return any(value is not None for value in values)


def _lines(values: Iterable[object]) -> str:
    """Return names, one a line; an empty line for what is not a name."""
    names = [coerce.name(value) or "" for value in values]
    return "\n".join(name.replace("\n", " ") for name in names)


def _packed_rewards(rewards: Sequence[float | None]) -> bytes:
    numbers = [nan if reward is None else reward for reward in rewards]
    return pack(f"<{len(numbers)}d", *numbers)


def _packed_versions(versions: Sequence[object]) -> bytes:
    numbers = map(coerce.integer, versions)
    packed = [semconv.NO_VERSION if number is None else number for number in numbers]
    return pack(f"<{len(packed)}q", *packed)
