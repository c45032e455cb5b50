"""Events about rollouts: evaluations that arrive later, and statistics of sampled-out rollouts."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import nan
from struct import Struct, pack
from typing import TYPE_CHECKING, Final, NamedTuple

from otel_bridge import semconv
from otel_bridge.emit.config.snapshot import RolloutOptions
from otel_bridge.emit.encode import coerce
from otel_bridge.emit.encode.log_record import event
from otel_bridge.emit.encode.protobuf import (
    MASK_64,
    Attribute,
    attributes,
    fixed64,
    message,
    text,
    varint,
)
from otel_bridge.emit.encode.row import SCOPE
from otel_bridge.emit.messages.content_filter import ContentFilter
from otel_bridge.emit.rollouts.spans import trace_id_bytes
from otel_bridge.emit.values.plain import CLIPPED
from otel_bridge.emit.values.scalars import any_text
from otel_bridge.text.secret_patterns import MARGIN_CHARS

if TYPE_CHECKING:
    from otel_bridge.emit.emit_run import EmitRun

# Values that arrive after their rollout -> events ``gen_ai.evaluation.result`` with the rollout's trace id.

LOGS: Final = 3
_MAX_LABEL_CHARS: Final = 256
_EVENTS_A_RECORD: Final = 1000


class EvaluationContext(NamedTuple):
    """Holds what the values of one call share."""

    name: str
    role: str | None
    step: int | None
    explanation: str | None


def log_values(
    run: EmitRun,
    options: RolloutOptions,
    values: Iterable[tuple[object, object]],
    shared: EvaluationContext,
) -> None:
    """Append one event for each id and value, many in one record; other values than numbers and texts are counted."""
    now = time.time_ns()
    content_filter = ContentFilter(options.limits.policy, options.limits.rollout_bytes)
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
            name, time_unix_ns=now, pairs=numbered, trace_id=trace_id_bytes(run.id, rollout_id)
        )
        events.append(record[len(SCOPE) :])
    content_filter.losses.report(run.count_drop)
    for start in range(0, len(events), _EVENTS_A_RECORD):
        run.append(
            LOGS, SCOPE + b"".join(events[start : start + _EVENTS_A_RECORD]), time_unix_ns=now
        )


def _score(
    value: object, content_filter: ContentFilter, rollout_id: str
) -> dict[str, Attribute] | None:
    """Return a number or label as an attribute; ``None`` for anything else. A label that is cut is counted."""
    number = coerce.number(value)
    if number is not None:
        return {semconv.EVALUATION_VALUE: number}
    if isinstance(value, str) and value:
        if content_filter.off:
            return {semconv.EVALUATION_LABEL: ""}
        if len(value) > _MAX_LABEL_CHARS:
            content_filter.losses.add(CLIPPED, 1, rollout_id)
        label = content_filter.text(value[: _MAX_LABEL_CHARS + MARGIN_CHARS])
        return {semconv.EVALUATION_LABEL: label[:_MAX_LABEL_CHARS]}
    return None


def _shared(
    run: EmitRun, shared: EvaluationContext, content_filter: ContentFilter
) -> dict[str, Attribute]:
    """Return the attributes that all values of a call have; what of them cannot be used is counted."""
    pairs: dict[str, Attribute] = {semconv.EVALUATION_NAME: coerce.name(shared.name) or "reward"}
    if shared.explanation is not None and not content_filter.off:
        pairs[semconv.EVALUATION_EXPLANATION] = content_filter.text(any_text(shared.explanation))
        if content_filter.clipped_bytes:
            content_filter.losses.add(CLIPPED, 1, "explanation")
    step = coerce.integer(shared.step)
    if step is not None:
        pairs[semconv.STEP] = step
    elif shared.step is not None:
        content_filter.losses.add("rollout_step", 1, any_text(shared.step))
    role = coerce.name(shared.role)
    if role is not None and role != run.role:
        pairs[semconv.ROLE] = role
    return pairs


# Sampled-out rollouts -> the event ``rl.rollouts``: for each group the mergeable statistics of its rewards.
#
# Packed by hand: a call may sample out a thousand rollouts of a hundred groups.

_COUNT: Final = text(1, "count")
_NAMES: Final = [text(1, name) + b"\x12\x09\x21" for name in ("sum", "sum_squares", "min", "max")]
# Each KeyValue as an element of the list: its tag, its length, then key and a double.
_SUM, _SQUARES, _MIN, _MAX = (b"\x0a" + varint(len(head) + 8) + head for head in _NAMES)
_NUMBERS: Final = Struct("<" + "".join(f"{len(head)}sd" for head in (_SUM, _SQUARES, _MIN, _MAX)))


def sampled_out_event(
    rewards: Sequence[float | None],
    groups: Sequence[str | None],
    kept: Sequence[int],
    step_key: tuple[int | None, str | None, str | None],
    event_seq: int,
    *,
    staleness: tuple[int, int, int] | None = None,
    named: NamedRollouts | None = None,
    open_steps: Sequence[int] | None = None,
) -> bytes:
    """Encode the event as a ``ScopeLogs``.

    Args:
        rewards: Rewards of all rollouts of the call, one each.
        groups: Groups, one each; rollouts without a group count under the empty name.
        kept: Indices of the kept rollouts.
        step_key: Step, split, and the role where it differs from the resource's.
        event_seq: Number of the event.
        staleness: Result of `staleness_of`.
        named: Result of `named_rollouts`.
        open_steps: Steps with open live rollouts; ``None``: nothing new.
    """
    left = list(rewards)
    for index in kept:
        left[index] = None
    members: defaultdict[str | None, list[float]] = defaultdict(list)
    for reward, group in zip(left, groups, strict=True):
        if reward is not None:
            members[group].append(reward)
    body = b"".join([_entry(name or "", values) for name, values in members.items()])
    step, split, role = step_key
    pairs: list[tuple[str, Attribute]] = [
        (semconv.STEP, step),
        (semconv.SPLIT, split),
        (semconv.ROLE, role),
        (semconv.ROLLOUTS_COUNT, len(rewards) - len(kept)),
        (semconv.EVENT_SEQ, event_seq),
        (semconv.ROLLOUTS_OPEN_STEPS, open_steps),
        *(() if named is None else named.pairs()),
    ]
    now = time.time_ns()
    record = (
        fixed64(1, now),
        message(5, message(6, body)),
        attributes(6, [pair for pair in pairs if pair[1] is not None]),
        _staleness(staleness) if staleness is not None else b"",
        fixed64(11, now),
        text(12, semconv.EVENT_ROLLOUTS),
    )
    return SCOPE + message(2, b"".join(record))


def staleness_of(
    versions: Sequence[object], step: int | None, kept: Sequence[int]
) -> tuple[int, int, int] | None:
    """Return count, sum and maximum of step less policy version, over rollouts not *kept* that name a version."""
    if step is None:
        return None
    known = set(kept)
    found = [
        step - version
        for index, given in enumerate(versions)
        if index not in known
        and (version := given if type(given) is int else coerce.integer(given)) is not None
    ]
    return (len(found), sum(found), max(found)) if found else None


@dataclass(slots=True)
class SampledColumns:
    """Holds the columns that sampling uses, for the rollouts of one step and split: one entry per rollout.

    Attributes:
        indices: Indices in the call.
        failed: Failed rollouts, as indices in these lists.
        truncated: Truncated rollouts, as indices in these lists.
        versions: Policy version of each rollout; empty when no rollout names one.
        ids: Id of each rollout; empty when no rollout has one.
        datasets: Dataset of each rollout; empty when no rollout names one.
    """

    indices: list[int] = field(default_factory=list[int])
    rewards: list[float | None] = field(default_factory=list["float | None"])
    groups: list[str | None] = field(default_factory=list["str | None"])
    failed: list[int] = field(default_factory=list[int])
    truncated: list[int] = field(default_factory=list[int])
    versions: Sequence[object] = ()
    ids: Sequence[object] = ()
    datasets: Sequence[object] = ()


class NamedRollouts(NamedTuple):
    """Holds facts of the sampled-out rollouts that have ids of users: an entry each, in one order.

    Attributes:
        ids: Ids, one per line. The bridge derives the trace ids, which would cost the caller a hash each.
        rewards: Little-endian doubles; NaN without a reward.
        policy_versions: Little-endian int64, the lowest one without a version; empty when there are none.
        datasets: Names, one per line; empty when there are none.
    """

    ids: str
    rewards: bytes
    policy_versions: bytes
    datasets: str

    def pairs(self) -> list[tuple[str, Attribute]]:
        """Return the attributes of the event."""
        pairs: list[tuple[str, Attribute]] = []
        if self.ids:
            pairs += [(semconv.ROLLOUTS_IDS, self.ids), (semconv.ROLLOUTS_REWARDS, self.rewards)]
        if self.policy_versions:
            pairs.append((semconv.ROLLOUTS_POLICY_VERSIONS, self.policy_versions))
        if self.datasets:
            pairs.append((semconv.ROLLOUTS_DATASETS, self.datasets))
        return pairs


def named_rollouts(columns: SampledColumns, kept: Sequence[int]) -> NamedRollouts:
    """Return facts of the rollouts of *columns* that are not *kept*, as far as they have ids.

    With them a bridge can assign later evaluations, and knows the rollouts that a training step consumes.
    """
    kept_indices = set(kept)
    ids: list[str] = []
    indices: list[int] = []
    for index, given in enumerate(columns.ids):
        if index in kept_indices:
            continue
        name = given if type(given) is str else coerce.name(given)
        if name and "\n" not in name:
            ids.append(name)
            indices.append(index)
    del ids[semconv.MAX_ROLLOUTS_IDS :], indices[semconv.MAX_ROLLOUTS_IDS :]
    rewards = [columns.rewards[index] for index in indices]
    return NamedRollouts(
        "\n".join(ids),
        pack(f"<{len(ids)}d", *[nan if reward is None else reward for reward in rewards]),
        _packed_versions([columns.versions[index] for index in indices])
        if columns.versions and ids
        else b"",
        "\n".join([_line(columns.datasets[index]) for index in indices])
        if columns.datasets
        else "",
    )


def _packed_versions(versions: Sequence[object]) -> bytes:
    numbers = [coerce.integer(version) for version in versions]
    return pack(
        f"<{len(numbers)}q",
        *[semconv.NO_VERSION if number is None else number for number in numbers],
    )


def _line(name: object) -> str:
    return (coerce.name(name) or "").replace("\n", " ")


def _staleness(numbers: tuple[int, int, int]) -> bytes:
    """Encode the statistics as an attribute of the record: a map of three integers."""
    names = ("count", "sum", "max")
    entries = (
        message(1, text(1, name) + message(2, b"\x18" + varint(number & MASK_64)))
        for name, number in zip(names, numbers, strict=True)
    )
    return message(
        6, text(1, semconv.ROLLOUTS_STALENESS) + message(2, message(6, b"".join(entries)))
    )


def _entry(name: str, values: Sequence[float]) -> bytes:
    """Encode ``name: {count, sum, sum_squares, min, max}`` as one element of a ``KeyValueList``."""
    squares = sum([value * value for value in values])
    numbers = _NUMBERS.pack(
        _SUM, sum(values), _SQUARES, squares, _MIN, min(values), _MAX, max(values)
    )
    return message(1, b"".join((text(1, name), _head(len(values)), numbers)))


@lru_cache(maxsize=1024)
def _head(count: int) -> bytes:
    """Encode the part of an entry between its name and its numbers."""
    counted = message(1, _COUNT + message(2, b"\x18" + varint(count)))
    size = len(counted) + _NUMBERS.size
    inner = b"\x32" + varint(size)
    return b"\x12" + varint(len(inner) + size) + inner + counted
