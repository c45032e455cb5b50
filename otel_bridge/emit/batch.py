"""Finished rollouts of one call: chosen by columns first, then the kept ones are built, encoded and appended."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from otel_bridge.emit import facts
from otel_bridge.emit.encoding import Frame, caller_link, encode_rollout
from otel_bridge.emit.left_out import left_out_event
from otel_bridge.emit.rollout import TRUNCATED_REASONS, Rollout, rollout_of
from otel_bridge.emit.rollout_options import RolloutOptions
from otel_bridge.selection import choose_columns

if TYPE_CHECKING:
    from otel_bridge.emit.emit_run import EmitRun

TRACES: Final = 2
LOGS: Final = 3
_NOTHING: Final = {type(None)}
_TEXT_OR_NOTHING: Final = {str, type(None)}


class Defaults(NamedTuple):
    """Step, split and role of the rollouts that name none."""

    step: int | None = None
    split: str | None = None
    role: str | None = None


@dataclass(slots=True)
class Columns:
    """What the choice looks at, for the rollouts of one step and split of a call: one entry each.

    Attributes:
        indices: Places in the call.
        failed: Those that failed, as places in these lists.
        truncated: Those that were cut off, as places in these lists.
    """

    indices: list[int] = field(default_factory=list[int])
    rewards: list[float | None] = field(default_factory=list["float | None"])
    groups: list[str | None] = field(default_factory=list["str | None"])
    failed: list[int] = field(default_factory=list[int])
    truncated: list[int] = field(default_factory=list[int])


def log_rollouts(
    run: EmitRun, options: RolloutOptions, rollouts: Iterable[Rollout | Mapping[str, Any]] | None, defaults: Defaults
) -> None:
    """Choose, build and append *rollouts*; each step and split among them has its own seats."""
    entries = _entries(run, rollouts)
    if not entries:
        return
    own = place_of(run, *defaults)
    told = _told(entries)

    def build(index: int) -> Rollout:
        entry = entries[index]
        rollout = rollout_of(entry) if isinstance(entry, dict) else entry
        return rollout if rollout.batch_index is not None else _with_index(rollout, index)

    def key(index: int) -> str:
        entry = entries[index]
        given = facts.name(entry.get("id") if isinstance(entry, dict) else entry.id)
        return given or str(index)

    for place, indices in _places(run, told, own).items():
        columns = _columns(run, told if len(indices) == len(entries) else told.of(indices), indices)
        emit(run, options, place, columns, build=build, key=key)


def _entries(run: EmitRun, rollouts: object) -> list[Rollout | dict[str, Any]]:
    if rollouts is None:
        return []
    if isinstance(rollouts, (Rollout, Mapping)):
        rollouts = [cast("object", rollouts)]
    if type(rollouts) in {list, tuple} and set(map(type, cast("list[object]", rollouts))) == {Rollout}:
        return list(cast("list[Rollout | dict[str, Any]]", rollouts))
    entries: list[Rollout | dict[str, Any]] = []
    for entry in cast("Iterable[object]", rollouts):
        if isinstance(entry, Rollout):
            entries.append(entry)
        elif isinstance(entry, Mapping):
            entries.append(dict(cast("Mapping[str, Any]", entry)))
        else:
            run.count_drop("rollout_no_mapping")
    return entries


class _Told(NamedTuple):
    """What the rollouts of a call say of what the choice looks at, a column each: this is what a left-out one costs."""

    step: Sequence[object]
    split: Sequence[object]
    reward: Sequence[object]
    group: Sequence[object]
    error: Sequence[object]
    finish_reason: Sequence[object]

    def of(self, indices: Sequence[int]) -> _Told:
        """Return the columns of some of the rollouts."""
        return _Told(*([column[index] for index in indices] for column in self))


_facts_of: Final = itemgetter("step", "split", "reward", "group", "error", "finish_reason")


def _told(entries: Sequence[Rollout | dict[str, Any]]) -> _Told:
    fields = [entry if isinstance(entry, dict) else vars(entry) for entry in entries]
    try:
        return _Told(*zip(*map(_facts_of, fields), strict=True))
    except KeyError:  # mappings need not have every field
        return _Told(*([one.get(name) for one in fields] for name in _Told._fields))


def _places(run: EmitRun, told: _Told, own: Defaults) -> dict[Defaults, list[int]]:
    """Part the rollouts of a call by step and split; most calls have one of each."""
    if _types(told.step) == _types(told.split) == _NOTHING:
        return {own: list(range(len(told.step)))}
    places: dict[Defaults, list[int]] = {}
    for index, (given, split) in enumerate(zip(told.step, told.split, strict=True)):
        step = own.step if given is None else facts.integer(given)
        if given is not None and step is None:
            run.count_drop("rollout_step")
            step = own.step
        places.setdefault(Defaults(step, facts.name(split) or own.split, own.role), []).append(index)
    return places


def _types(values: Sequence[object]) -> set[type]:
    return set(map(type, values))


def place_of(run: EmitRun, step: object, split: object, role: object) -> Defaults:
    """Return step, split and role of a call; without a step it is the role's last."""
    named = facts.name(role)
    number = None if step is None else facts.integer(step)
    if number is None and step is not None:
        run.count_drop("rollout_step")
    return Defaults(run.last_step(named) if number is None else number, facts.name(split), named)


def _columns(run: EmitRun, told: _Told, indices: list[int]) -> Columns:
    failed = [] if _types(told.error) == _NOTHING else [i for i, error in enumerate(told.error) if error is not None]
    return Columns(
        indices, finite_rewards(run, told.reward), _groups(told.group), failed, truncated(told.finish_reason)
    )


def _groups(given: Sequence[object]) -> list[str | None]:
    if _types(given) == {str} and "" not in given:
        return list(cast("Sequence[str | None]", given))
    return [facts.name(group) for group in given]


def finite_rewards(run: EmitRun, given: Sequence[object]) -> list[float | None]:
    """Return rewards as numbers; those that are none are counted."""
    if _types(given) == {float} and all(map(isfinite, cast("Sequence[float]", given))):
        return list(cast("Sequence[float | None]", given))
    # x - x is 0 but for infinities and NaN.
    rewards = [one if type(one) is float and one - one == 0 else facts.number(one) for one in given]
    if None in rewards:
        bad = sum(reward is None and one is not None for reward, one in zip(rewards, given, strict=True))
        if bad:
            run.count_drop("rollout_reward", bad)
    return rewards


def truncated(reasons: Sequence[object]) -> list[int]:
    """Return the places of finish reasons that say so."""
    if _types(reasons) <= _TEXT_OR_NOTHING and TRUNCATED_REASONS.isdisjoint(cast("Sequence[str]", reasons)):
        return []
    return [
        place
        for place, reason in enumerate(reasons)
        if reason is not None and reason != "stop" and str(reason) in TRUNCATED_REASONS
    ]


def _with_index(rollout: Rollout, index: int) -> Rollout:
    """Return a copy with its place in the call: the user's object stays as it is."""
    copy = object.__new__(Rollout)  # its fields are all there: no default need be made
    copy.__dict__.update(vars(rollout), batch_index=index)
    return copy


def emit(
    run: EmitRun,
    options: RolloutOptions,
    place: Defaults,
    columns: Columns,
    *,
    build: Callable[[int], Rollout],
    key: Callable[[int], str],
) -> None:
    """Append the rollouts of one step and split: the kept ones whole, of the others their statistics.

    Args:
        run: The run.
        options: Seats, rule and limits.
        place: Step, split and role.
        columns: What the choice looks at.
        build: From a place in the call to the rollout; called for kept ones only.
        key: From a place in the call to a stable id.
    """
    kept = choose_columns(
        columns.rewards,
        columns.groups,
        options.cap_of(place.split),
        failed=columns.failed,
        truncated=columns.truncated,
        key=lambda index: key(columns.indices[index]),
        rule=options.rule,
        seed=f"{run.id}/{place.step}",
    )
    role = place.role if place.role != run.role else None
    if kept:
        frame = Frame(run.id, place.step, place.split, role, options, caller_link())
        for index in kept:
            _emit_one(run, frame, build, columns.indices[index])
    if len(kept) < len(columns.indices):
        where = (place.step, place.split, role)
        run.append(LOGS, left_out_event(columns.rewards, columns.groups, kept, where, run.next_event_seq()))


def _emit_one(run: EmitRun, frame: Frame, build: Callable[[int], Rollout], index: int) -> None:
    try:
        encoded = encode_rollout(build(index), frame, time.time_ns())
    except Exception:  # noqa: BLE001  # one rollout that cannot be read costs only itself
        run.count_drop("rollout_unreadable")
        return
    if encoded.skipped_messages:
        run.count_drop("rollout_message", encoded.skipped_messages)
    run.append(TRACES, encoded.payload)
