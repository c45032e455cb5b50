"""Calls of `Run` for rollouts: live, finished in batches, as parallel lists, and evaluations that arrive later.

Nothing here waits: values that cannot be recorded are left out and counted. `Run` catches what is raised.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, cast

from otel_bridge.emit.arguments import INTERNAL_ERROR
from otel_bridge.emit.emit_run import EmitRun
from otel_bridge.emit.encode import coerce
from otel_bridge.emit.rollouts import batch, events, generations
from otel_bridge.errors import any_error

if TYPE_CHECKING:
    from otel_bridge.emit.rollouts.live import LiveRollout
    from otel_bridge.emit.rollouts.rollout import Rollout


def open_rollout(run: EmitRun, /, **fields: object) -> AbstractContextManager[LiveRollout]:
    """Open a live rollout: calls inside become its children.

    Args:
        run: The run.
        fields: Any field of `Rollout`, and ``role``; other keys become metadata.
    """
    from otel_bridge.emit.rollouts.live import LiveRollout  # noqa: PLC0415  # brings the OTel API: only when it is used

    try:
        return LiveRollout(run, run.rollout_options, fields)
    except any_error():  # what a user put into its fields
        run.count_drop(INTERNAL_ERROR)
        return LiveRollout(run, run.rollout_options, {})


def log_rollouts(
    run: EmitRun,
    rollouts: Iterable[Rollout | Mapping[str, Any]] | None,
    *,
    step: int | None = None,
    split: str | None = None,
    role: str | None = None,
    state: str | None = None,
) -> None:
    """Record finished rollouts; at most the cap of a step leaves the process, sampled before anything is built.

    Args:
        run: The run.
        rollouts: `Rollout` objects, or mappings with its fields; other keys become metadata.
        step: The consuming step of rollouts that name none; ``None``: the role's last.
        split: Split of rollouts that name none.
        role: Another role than the run's own.
        state: Why the trainer does not use them.
    """
    defaults = batch.RolloutDefaults(step, split, role)
    batch.log_rollouts(run, run.rollout_options, rollouts, defaults, coerce.name(state))


def log_generations(run: EmitRun, /, **columns: Any) -> None:
    """Record finished rollouts given as parallel lists; see `otel_bridge.emit.rollouts.generations.Generations`."""
    generations.log_generations(run, run.rollout_options, columns)


def log_reward(
    run: EmitRun,
    rollout_id: object,
    value: object,
    *,
    name: str = "reward",
    explanation: str | None = None,
    role: str | None = None,
    step: int | None = None,
) -> None:
    """Record a value of a finished or future rollout, from any process.

    Args:
        run: The run.
        rollout_id: The user's id of the rollout, or its trace id.
        value: A number; a text is a label.
        name: ``reward``, ``advantage``, or a part's name.
        explanation: Reason for the value.
        role: Role of the rollout, when it is not this run's.
        step: Step of the rollout, when known.
    """
    facts = events.EvaluationContext(name, role, step, explanation)
    events.log_values(run, run.rollout_options, [(rollout_id, value)], facts)


def log_rewards(
    run: EmitRun,
    values: object,
    *,
    name: str = "reward",
    role: str | None = None,
    step: int | None = None,
) -> None:
    """Record one value for each of many rollouts, by rollout id; see `log_reward`."""
    if not isinstance(values, Mapping):
        run.count_drop("evaluation_not_a_mapping")
        return
    pairs = list(cast("Mapping[object, object]", values).items())
    events.log_values(
        run, run.rollout_options, pairs, events.EvaluationContext(name, role, step, None)
    )
