"""Finished rollouts of one call: sampled by columns first, then the kept rollouts are built, encoded and appended."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from otel_bridge.emit.encode import coerce
from otel_bridge.emit.live_registry import Track, open_steps
from otel_bridge.emit.rollouts.events import SampledColumns, append_sampled_out
from otel_bridge.emit.rollouts.rollout import TRUNCATED_REASONS, Rollout, rollout_of
from otel_bridge.emit.rollouts.spans import CallContext, caller_link, encode_rollout
from otel_bridge.emit.values.reading import is_text
from otel_bridge.errors import any_error
from otel_bridge.journal.frames import Signal
from otel_bridge.sampling_rule import choose_columns

if TYPE_CHECKING:
    from otel_bridge.emit.emit_run import EmitRun

TRAIN = "train"
_NOTHING = {type(None)}
_TEXT_OR_NOTHING = {str, type(None)}


class RolloutDefaults(NamedTuple):
    """Holds step, split and role of rollouts that name none."""

    step: int | None = None
    split: str | None = None
    role: str | None = None


def log_rollouts(
    run: EmitRun,
    rollouts: Iterable[Rollout | Mapping[str, Any]] | None,
    *,
    step: int | None = None,
    split: str | None = None,
    role: str | None = None,
    state: object = None,
) -> None:
    """Sample, build and append *rollouts*; each step and split among them has its own seats.

    Those of a *state*, which the trainer does not use, are a split of their own: they have other
    seats, and do not enter the statistics of those that it uses.
    """
    entries = _entries(run, rollouts)
    if not entries:
        return
    call_defaults = defaults_of(run, step, split, role)
    state_name = coerce.name(state)
    rollout_columns = _columns_of(entries)

    def build(index: int) -> Rollout:
        entry = entries[index]
        rollout = rollout_of(entry) if isinstance(entry, dict) else entry
        if rollout.batch_index is not None:
            return rollout
        return _with_index(rollout, index)

    def key(index: int) -> str:
        entry = entries[index]
        rollout_id = coerce.name(
            entry.get("id") if isinstance(entry, dict) else entry.id
        )
        return rollout_id or str(index)

    for of_group, indices in _by_defaults(run, rollout_columns, call_defaults).items():
        columns = sampled_columns(
            run,
            rollout_columns
            if len(indices) == len(entries)
            else rollout_columns.of(indices),
            indices,
        )
        if state_name is None:
            defaults_of_group = of_group
        else:
            defaults_of_group = _of_state(of_group, state_name)
        emit(run, defaults_of_group, columns, build=build, key=key)
        annotate_rollouts(run, [entries[index] for index in indices], defaults_of_group)


def annotate_rollouts(
    run: EmitRun, entries: Sequence[Rollout | dict[str, Any]], defaults: RolloutDefaults
) -> None:
    """Record the tokens that turns of rollouts to train on carry; most rollouts have none."""
    if defaults.split not in {None, TRAIN}:
        return
    with_turns: list[tuple[object, Sequence[object]]] = []
    for entry in entries:
        fields = entry if isinstance(entry, dict) else vars(entry)
        turns = fields.get("turns")
        if isinstance(turns, (list, tuple)):
            with_turns.append((fields.get("id"), cast("Sequence[object]", turns)))
    if with_turns:
        from otel_bridge.emit.tokens.annotate import TokensCall  # noqa: PLC0415  # only rollouts with turns pay for it
        from otel_bridge.emit.tokens.turns import annotate_turns  # noqa: PLC0415

        annotate_turns(run, with_turns, TokensCall(defaults.step, defaults.role))


def _of_state(defaults: RolloutDefaults, state: str) -> RolloutDefaults:
    """Return the split of rollouts that the trainer does not use: of a state of ``train`` its name."""
    is_trained = defaults.split in {None, TRAIN}
    return defaults._replace(split=state if is_trained else f"{defaults.split}/{state}")


def _entries(run: EmitRun, rollouts: object) -> list[Rollout | dict[str, Any]]:
    if rollouts is None:
        return []
    if isinstance(rollouts, (Rollout, Mapping)):
        rollouts = [cast("object", rollouts)]
    # Nearly every call: one type, so that nothing is looked at one by one.
    if type(rollouts) in {list, tuple} and set(
        map(type, cast("list[object]", rollouts))
    ) == {Rollout}:
        return list(cast("list[Rollout | dict[str, Any]]", rollouts))
    entries: list[Rollout | dict[str, Any]] = []
    if is_text(rollouts) or not isinstance(rollouts, Iterable):
        run.count_drop("rollout_no_mapping", 1, type(rollouts).__name__)
        return entries
    for entry in cast("Iterable[object]", rollouts):
        if isinstance(entry, Rollout):
            entries.append(entry)
        elif isinstance(entry, Mapping):
            entries.append(dict(cast("Mapping[str, Any]", entry)))
        else:
            run.count_drop("rollout_no_mapping", 1, type(entry).__name__)
    return entries


class RolloutColumns(NamedTuple):
    """Holds what sampling needs of a call's rollouts, one column each: the whole cost of one that is sampled out."""

    reward: Sequence[object]
    group: Sequence[object]
    error: Sequence[object]
    finish_reason: Sequence[object]
    policy_version: Sequence[object]
    id: Sequence[object]
    dataset: Sequence[object]
    step: Sequence[object] = ()
    split: Sequence[object] = ()

    def of(self, indices: Sequence[int]) -> RolloutColumns:
        """Return the columns of some of the rollouts."""
        return RolloutColumns(
            *([column[index] for index in indices] for column in self)
        )


_facts_of = itemgetter(
    "reward",
    "group",
    "error",
    "finish_reason",
    "policy_version",
    "id",
    "dataset",
    "step",
    "split",
)
"""Getter of the fields in the order of `RolloutColumns`."""


def _columns_of(entries: Sequence[Rollout | dict[str, Any]]) -> RolloutColumns:
    fields = [entry if isinstance(entry, dict) else vars(entry) for entry in entries]
    try:
        return RolloutColumns(*zip(*map(_facts_of, fields), strict=True))
    except KeyError:  # mappings need not have every field
        return RolloutColumns(
            *(
                [entry_fields.get(name) for entry_fields in fields]
                for name in RolloutColumns._fields
            )
        )


def _by_defaults(
    run: EmitRun, rollout_columns: RolloutColumns, call_defaults: RolloutDefaults
) -> dict[RolloutDefaults, list[int]]:
    """Group the rollouts of a call by step and split; most calls have one of each."""
    if _types(rollout_columns.step) == _types(rollout_columns.split) == _NOTHING:
        return {call_defaults: list(range(len(rollout_columns.step)))}
    by_defaults: dict[RolloutDefaults, list[int]] = {}
    for index, (raw_step, split) in enumerate(
        zip(rollout_columns.step, rollout_columns.split, strict=True)
    ):
        if raw_step is None:
            step = call_defaults.step
        else:
            step = coerce.integer(raw_step)
        if raw_step is not None and step is None:
            run.count_drop("rollout_step")
            step = call_defaults.step
        by_defaults.setdefault(
            RolloutDefaults(
                step, coerce.name(split) or call_defaults.split, call_defaults.role
            ),
            [],
        ).append(index)
    return by_defaults


def _types(values: Sequence[object]) -> set[type]:
    return set(map(type, values))


def defaults_of(
    run: EmitRun, step: object, split: object, role: object
) -> RolloutDefaults:
    """Return step, split and role of a call; the default step is the role's last."""
    role_name = coerce.name(role)
    number = None if step is None else coerce.integer(step)
    if number is None and step is not None:
        run.count_drop("rollout_step")
    return RolloutDefaults(
        run.last_step(role_name) if number is None else number,
        coerce.name(split),
        role_name,
    )


def track_of(run: EmitRun, defaults: RolloutDefaults) -> Track:
    """Return the run, role and split under which this process's open live rollouts are registered."""
    return run.id, defaults.role or run.role or "", defaults.split or ""


def sampled_columns(
    run: EmitRun, rollout_columns: RolloutColumns, indices: list[int]
) -> SampledColumns:
    """Return the facts for sampling of the rollouts *indices* of a call; rewards that are not numbers are counted."""
    failed = [
        index for index, error in enumerate(rollout_columns.error) if error is not None
    ]
    return SampledColumns(
        indices,
        _finite_rewards(run, rollout_columns.reward),
        _groups(rollout_columns.group),
        failed,
        _truncated(rollout_columns.finish_reason),
        _any_of(rollout_columns.policy_version),
        _any_of(rollout_columns.id),
        _any_of(rollout_columns.dataset),
    )


def _any_of(column: Sequence[object]) -> Sequence[object]:
    """Return *column*, empty when no rollout has a value of it."""
    if _types(column) == _NOTHING:
        return ()
    return column


def _groups(raw_groups: Sequence[object]) -> list[str | None]:
    if _types(raw_groups) == {str} and "" not in raw_groups:
        return list(cast("Sequence[str | None]", raw_groups))
    return [coerce.name(group) for group in raw_groups]


def _finite_rewards(run: EmitRun, raw_rewards: Sequence[object]) -> list[float | None]:
    """Return rewards as numbers; values that are not numbers are counted."""
    if _types(raw_rewards) == {float} and all(
        map(isfinite, cast("Sequence[float]", raw_rewards))
    ):
        return list(cast("Sequence[float | None]", raw_rewards))
    rewards = [coerce.number(reward) for reward in raw_rewards]
    missing = sum(reward is None for reward in raw_rewards)
    bad = rewards.count(None) - missing
    if bad:
        run.count_drop("rollout_reward", bad, "rewards")
    return rewards


def _truncated(reasons: Sequence[object]) -> list[int]:
    """Return the indices of finish reasons that mean truncation."""
    if _types(reasons) <= _TEXT_OR_NOTHING and TRUNCATED_REASONS.isdisjoint(
        cast("Sequence[str]", reasons)
    ):
        return []
    return [
        index
        for index, reason in enumerate(reasons)
        if coerce.name(reason) in TRUNCATED_REASONS
    ]


def _with_index(rollout: Rollout, index: int) -> Rollout:
    """Return a copy with its index in the call; the user's object stays unchanged."""
    copy = object.__new__(
        Rollout
    )  # all fields are set below, so no defaults are needed
    copy.__dict__.update(vars(rollout), batch_index=index)
    return copy


def emit(
    run: EmitRun,
    defaults: RolloutDefaults,
    columns: SampledColumns,
    *,
    build: Callable[[int], Rollout],
    key: Callable[[int], str],
) -> None:
    """Append the rollouts of one step and split: kept rollouts whole, and the statistics of the others.

    Args:
        run: The run.
        defaults: Step, split and role.
        columns: Facts for sampling.
        build: Callable from an index in the call to the rollout; called for kept rollouts only.
        key: Callable from an index in the call to a stable id.
    """
    options = run.rollout_options
    kept_indices = choose_columns(
        columns.rewards,
        columns.groups,
        options.cap_of(defaults.split),
        failed=columns.failed,
        truncated=columns.truncated,
        key=lambda index: key(columns.indices[index]),
        rule=options.rule,
        seed=f"{run.id}/{defaults.step}",
    )
    call = CallContext(
        run.id,
        defaults.step,
        defaults.split,
        role=None if defaults.role == run.role else defaults.role,
        options=options,
        link=caller_link(),
        open_steps=open_steps(track_of(run, defaults)),
    )
    for index in kept_indices:
        _emit_one(run, call, build, columns.indices[index])
    if len(kept_indices) < len(columns.indices):
        append_sampled_out(run, columns, kept_indices, call)


def _emit_one(
    run: EmitRun, call: CallContext, build: Callable[[int], Rollout], index: int
) -> None:
    try:
        encoded = encode_rollout(build(index), call, time.time_ns())
    except any_error():  # one rollout that cannot be read costs only itself
        run.count_drop("rollout_unreadable")
        return
    if encoded.unread:
        run.count_drop("rollout_message", encoded.unread)
    encoded.losses.report(run.count_drop)
    run.append(Signal.TRACES, encoded.payload)
