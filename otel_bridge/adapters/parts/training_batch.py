"""Rollouts that a framework hands over when it trains on them -> the rollouts, and the step that consumes them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from otel_bridge.emit.rollouts.rollout import Rollout
    from otel_bridge.emit.run import Run


def new_rollout_id() -> str:
    """Return an id for a rollout: frameworks have none that is unique in the run."""
    return os.urandom(16).hex()


def log_training_batch(
    run: Run, rollouts: Sequence[dict[str, Any] | Rollout], step: int, role: str | None = None
) -> list[str]:
    """Record *rollouts*, and that training step *step* consumes all of them; return their ids.

    Args:
        run: The run.
        rollouts: Rollouts without ids, which this gives them.
        step: The training step.
        role: Another role than the run's own.
    """
    ids = [new_rollout_id() for _ in rollouts]
    for rollout, rollout_id in zip(rollouts, ids, strict=True):
        if isinstance(rollout, dict):
            rollout["id"] = rollout_id
        else:
            rollout.id = rollout_id
    run.log_rollouts(rollouts, step=step, split="train", role=role)
    run.train_on(step, ids, role=role)
    return ids
