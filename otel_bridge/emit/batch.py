"""Finished rollouts of one call: chosen by columns first, then the kept ones are built, encoded and appended."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from otel_bridge.emit import facts
from otel_bridge.emit.encoding import Frame, caller_link, encode_rollout
from otel_bridge.emit.left_out import left_out_event
from otel_bridge.emit.rollout import TRUNCATED_REASONS, Rollout, rollout_of
from otel_bridge.emit.rollout_options import RolloutOptions
from otel_bridge.selection import choose_columns

if TYPE_CHECKING:
    from otel_bridge.emit.rollouts import EmitRun

TRACES: Final = 2
LOGS: Final = 3


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
    told = [entry if isinstance(entry, dict) else vars(entry) for entry in entries]

    def build(index: int) -> Rollout:
        entry = entries[index]
        rollout = rollout_of(entry) if isinstance(entry, dict) else entry
        return rollout if rollout.batch_index is not None else _with_index(rollout, index)

    def key(index: int) -> str:
        entry = entries[index]
        given = facts.name(entry.get("id") if isinstance(entry, dict) else entry.id)
        return given or str(index)

    for place, indices in _places(run, told, own).items():
        columns = _columns(run, [told[index] for index in indices], indices)
        emit(run, options, place, columns, build=build, key=key)


def _entries(run: EmitRun, rollouts: object) -> list[Rollout | dict[str, Any]]:
    if rollouts is None:
        return []
    if isinstance(rollouts, (Rollout, Mapping)):
        rollouts = [cast("object", rollouts)]
    entries: list[Rollout | dict[str, Any]] = []
    for entry in cast("Iterable[object]", rollouts):
        if isinstance(entry, Rollout):
            entries.append(entry)
        elif isinstance(entry, Mapping):
            entries.append(dict(cast("Mapping[str, Any]", entry)))
        else:
            run.count_drop("rollout_no_mapping")
    return entries


def _places(run: EmitRun, told: Sequence[Mapping[str, Any]], own: Defaults) -> dict[Defaults, list[int]]:
    """Part the rollouts of a call by step and split; most calls have one of each."""
    if all(one.get("step") is None and one.get("split") is None for one in told):
        return {own: list(range(len(told)))}
    places: dict[Defaults, list[int]] = {}
    for index, one in enumerate(told):
        given = one.get("step")
        step = own.step if given is None else facts.integer(given)
        if given is not None and step is None:
            run.count_drop("rollout_step")
            step = own.step
        places.setdefault(Defaults(step, facts.name(one.get("split")) or own.split, own.role), []).append(index)
    return places


def place_of(run: EmitRun, step: object, split: object, role: object) -> Defaults:
    """Return step, split and role of a call; without a step it is the role's last."""
    named = facts.name(role)
    number = None if step is None else facts.integer(step)
    if number is None and step is not None:
        run.count_drop("rollout_step")
    return Defaults(run.last_step(named) if number is None else number, facts.name(split), named)


def _columns(run: EmitRun, told: Sequence[Mapping[str, Any]], indices: list[int]) -> Columns:
    # One pass a column: this is what a left-out rollout costs.
    groups = [one.get("group") for one in told]
    return Columns(
        indices,
        finite_rewards(run, [one.get("reward") for one in told]),
        [(group or None) if group is None or type(group) is str else facts.name(group) for group in groups],
        [place for place, one in enumerate(told) if one.get("error") is not None],
        truncated([one.get("finish_reason") for one in told]),
    )


def finite_rewards(run: EmitRun, given: Sequence[object]) -> list[float | None]:
    """Return rewards as numbers; those that are none are counted."""
    # x - x is 0 but for infinities and NaN.
    rewards = [one if type(one) is float and one - one == 0 else facts.number(one) for one in given]
    if None in rewards:
        bad = sum(reward is None and one is not None for reward, one in zip(rewards, given, strict=True))
        if bad:
            run.count_drop("rollout_reward", bad)
    return rewards


def truncated(reasons: Sequence[object]) -> list[int]:
    """Return the places of finish reasons that say so."""
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
    link = caller_link() if kept else b""
    for index in kept:
        _emit_one(run, options, place, lambda: build(columns.indices[index]), link)  # noqa: B023  # called at once
    if len(kept) < len(columns.indices):
        _emit_left_out(run, place, columns, kept)


def _emit_one(
    run: EmitRun, options: RolloutOptions, place: Defaults, build: Callable[[], Rollout], link: bytes
) -> None:
    try:
        frame = Frame(run.id, place.step, place.split, place.role if place.role != run.role else None, options, link)
        encoded = encode_rollout(build(), frame, time.time_ns())
    except Exception:  # noqa: BLE001  # one rollout that cannot be read costs only itself
        run.count_drop("rollout_unreadable")
        return
    if encoded.skipped_messages:
        run.count_drop("rollout_message", encoded.skipped_messages)
    run.append(TRACES, encoded.payload)


def _emit_left_out(run: EmitRun, place: Defaults, columns: Columns, kept: Sequence[int]) -> None:
    role = place.role if place.role != run.role else None
    payload = left_out_event(
        columns.rewards, columns.groups, kept, (place.step, place.split, role), run.next_event_seq()
    )
    run.append(LOGS, payload)
