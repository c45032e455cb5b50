"""Finished rollouts of one call: sampled by a few facts first, then those kept are built, encoded and appended."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from otel_bridge.emit.arguments import role_of
from otel_bridge.emit.encode import coerce
from otel_bridge.emit.encode.values import to_step
from otel_bridge.emit.live_registry import Track, open_steps
from otel_bridge.emit.rollouts.events import (
    BAD_STEP,
    SampledRollout,
    append_sampled_out,
)
from otel_bridge.emit.rollouts.finished import encode_rollout
from otel_bridge.emit.rollouts.rollout import (
    Rollout,
    rollout_of,
    turns_of,
)
from otel_bridge.emit.rollouts.spans import CallContext, caller_link
from otel_bridge.errors import any_error_but_signals
from otel_bridge.journal.frames import Signal
from otel_bridge.records import TRAIN
from otel_bridge.sampling_rule import choose, is_truncated
from otel_bridge.values.reading import is_text

if TYPE_CHECKING:
    from otel_bridge.emit.emit_run import EmitRun


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
    seats, and do not enter the statistics of those that it uses. Entries that are not rollouts are
    counted as ``rollout_no_mapping``. What iterating over *rollouts* raises reaches
    `Run.log_rollouts`, which counts it as ``internal_error``: then nothing of the call is recorded.
    """
    entries = _entries(run, rollouts)
    call_defaults = defaults_of(run, step, split, role)
    state_name = coerce.name(state)
    fields: list[Mapping[str, Any]] = []
    batches: defaultdict[RolloutDefaults, list[SampledRollout]] = defaultdict(list)
    for index, entry in enumerate(entries):
        entry_fields = entry if isinstance(entry, dict) else vars(entry)
        fields.append(entry_fields)
        defaults = _defaults_in(run, entry_fields, call_defaults, state_name)
        rollout = sampled_rollout(run, index, entry_fields, str(index))
        batches[defaults].append(rollout)

    def build(index: int) -> Rollout:
        entry = entries[index]
        # A copy: the user's object stays unchanged.
        rollout = rollout_of(entry) if isinstance(entry, dict) else copy(entry)
        if rollout.batch_index is None:
            rollout.batch_index = index
        return rollout

    for defaults, sampled in batches.items():
        emit(run, defaults, sampled, build)
        annotate_rollouts(
            run, [fields[rollout.call_index] for rollout in sampled], defaults
        )


def annotate_rollouts(
    run: EmitRun,
    rollouts: Sequence[Mapping[str, Any]],
    defaults: RolloutDefaults,
    decode: object = None,
) -> None:
    """Record the tokens that turns of rollouts to train on carry; most rollouts have none.

    Rollouts of another split than ``train`` have none: tokens compare the engine with the trainer,
    which does not see them. `annotate_turns` counts streams that cannot be used.

    Args:
        run: The run.
        rollouts: Fields of each rollout.
        defaults: Step, split and role.
        decode: The user's function from token ids to text.
    """
    if defaults.split not in {None, TRAIN}:
        return
    with_turns: list[tuple[object, Sequence[object]]] = []
    for fields in rollouts:
        turns = turns_of(fields.get("turns"))
        if turns:
            with_turns.append((fields.get("id"), turns))
    if with_turns:
        from otel_bridge.emit.tokens.turns import annotate_turns  # noqa: PLC0415  # only rollouts with turns pay for it

        annotate_turns(
            run,
            with_turns,
            step=defaults.step,
            role=defaults.role,
            decode=decode,
        )


def _entries(run: EmitRun, rollouts: object) -> list[Rollout | dict[str, Any]]:
    """Return the rollouts and mappings among *rollouts*, which may be one of them.

    Empty for ``None``. Anything else, a text too, is counted as ``rollout_no_mapping``. What its
    iterator raises is raised. Mappings are copied: `rollout_of` and sampling read them later.
    """
    entries: list[Rollout | dict[str, Any]] = []
    if rollouts is None:
        return entries
    if isinstance(rollouts, (Rollout, Mapping)):
        rollouts = [cast("object", rollouts)]
    elif is_text(rollouts) or not isinstance(rollouts, Iterable):
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


def _defaults_in(
    run: EmitRun,
    fields: Mapping[str, Any],
    defaults: RolloutDefaults,
    state: str | None,
) -> RolloutDefaults:
    """Return step and split of one rollout; most name neither, and have those of the call.

    A step that is not a number is counted as ``rollout_step``, and the rollout has that of the
    call: without a step it would never be sampled. The trainer does not use rollouts of a *state*:
    it is their split in place of ``train``, and stands behind any other split, as ``eval/stale``.
    """
    step = to_step(fields.get("step"), run.count_drop, reason=BAD_STEP)
    split = coerce.name(fields.get("split"))
    if step is not None:
        defaults = defaults._replace(step=step)
    if split is not None:
        defaults = defaults._replace(split=split)
    if state is None:
        return defaults
    is_trained = defaults.split in {None, TRAIN}
    return defaults._replace(split=state if is_trained else f"{defaults.split}/{state}")


def defaults_of(
    run: EmitRun, step: object, split: object, role: object
) -> RolloutDefaults:
    """Return step, split and role of a call.

    Without a step that of the role's last row, ``None`` before it. A step that is not a number is
    counted as ``rollout_step``, and replaced in the same way.
    """
    role_name = role_of(role)
    number = to_step(step, run.count_drop, reason=BAD_STEP)
    return RolloutDefaults(
        run.last_step(role_name) if number is None else number,
        coerce.name(split),
        role_name,
    )


def track_of(run: EmitRun, defaults: RolloutDefaults) -> Track:
    """Return the run, role and split under which this process's open live rollouts are registered."""
    return run.id, defaults.role or run.role or "", defaults.split or ""


def sampled_rollout(
    run: EmitRun, index: int, fields: Mapping[str, Any], name: str
) -> SampledRollout:
    """Return what sampling needs of a rollout, before it is built: the whole cost of one that is left out.

    A reward that is not a number is counted as ``rollout_reward``: nothing reads it again.

    Args:
        run: The run, which counts.
        index: Index of the rollout in its call.
        fields: Its fields by the names of `Rollout`.
        name: What stands for its id if it has none. By a stable one the choice is the same in
            whatever order workers answer.
    """
    rollout_id = coerce.name(fields.get("id"))
    raw_reward = fields.get("reward")
    reward = coerce.number(raw_reward)
    if reward is None and raw_reward is not None:
        run.count_drop("rollout_reward", 1, "rewards")
    # By position, which takes half the time of names: a step may have thousands.
    return SampledRollout(
        index,
        rollout_id or name,
        reward,
        coerce.name(fields.get("group")),
        rollout_id,
        coerce.name(fields.get("dataset")),
        coerce.integer(fields.get("policy_version")),
        fields.get("error") is not None,
        is_truncated(coerce.name(fields.get("finish_reason"))),
    )


def emit(
    run: EmitRun,
    defaults: RolloutDefaults,
    rollouts: Sequence[SampledRollout],
    build: Callable[[int], Rollout],
) -> None:
    """Append the kept rollouts of one step and split whole, and the statistics of the others.

    Only kept rollouts are built: of a batch of 1,024 with 16 seats the others cost a few
    microseconds each. The choice has no random number but a seed of run and step, so that it is
    the same after a restart. Without seats for the split all are left out, and only count.

    Args:
        run: The run.
        defaults: Step, split and role.
        rollouts: Facts for sampling.
        build: Callable from an index in the call to the rollout; called for kept rollouts only.
    """
    options = run.rollout_options
    places = range(len(rollouts))
    kept_places = choose(
        [rollout.reward for rollout in rollouts],
        [rollout.group for rollout in rollouts],
        options.cap_of(defaults.split),
        failed=[place for place in places if rollouts[place].failed],
        truncated=[place for place in places if rollouts[place].truncated],
        key=lambda place: rollouts[place].key,
        rule=options.rule,
        seed=f"{run.id}/{defaults.step}",
    )
    call = call_context(run, defaults)._replace(link=caller_link())
    left_out = dict(enumerate(rollouts))
    for place in kept_places:
        _emit_one(run, call, build, left_out.pop(place).call_index)
    if left_out:
        append_sampled_out(run, list(left_out.values()), call)


def call_context(run: EmitRun, defaults: RolloutDefaults) -> CallContext:
    """Return what the rollouts of a call share, without a link."""
    return CallContext(
        run.id,
        defaults.step,
        defaults.split,
        role=None if defaults.role == run.role else defaults.role,
        options=run.rollout_options,
        open_steps=open_steps(track_of(run, defaults)),
    )


def _emit_one(
    run: EmitRun, call: CallContext, build: Callable[[int], Rollout], index: int
) -> None:
    """Append one rollout, with a count of what of it is lost.

    One that raises when it is built or read is counted as ``rollout_unreadable``, and costs only
    itself.
    """
    try:
        payload, losses = encode_rollout(build(index), call, time.time_ns())
    except any_error_but_signals():  # one rollout that cannot be read costs only itself
        run.count_drop("rollout_unreadable")
        return
    losses.report(run.count_drop)
    run.append(Signal.TRACES, payload)
