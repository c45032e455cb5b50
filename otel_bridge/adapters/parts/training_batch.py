"""A batch that a framework trains on -> its rollouts, the step that consumes them, and their tokens.

What raises here is counted as ``adapter_failed`` by the adapters, and the framework goes on.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from otel_bridge.tokens.statistics import LOSS_MASK

if TYPE_CHECKING:
    from otel_bridge.emit.run import Run


def new_rollout_id() -> str:
    """Return an id for a rollout: frameworks have none that is unique in the run."""
    return os.urandom(16).hex()


def is_number(value: object) -> bool:
    """Return whether *value* is a number, of numpy or torch too."""
    return hasattr(value, "__float__") and not isinstance(value, str)


def row_of(columns: Mapping[str, Sequence[Any]], place: int) -> dict[str, Any]:
    """Return the values of a row, of the columns that have one.

    A column that is too short, or has ``None`` there, is left out: frameworks fill columns for some
    samples only.
    """
    return {
        name: values[place]
        for name, values in columns.items()
        if place < len(values) and values[place] is not None
    }


def token_streams(mask: Any, **tensors: Any) -> dict[str, Any]:
    """Return the streams of a padded batch as `Run.annotate` takes them.

    They have the tokens of each rollout from the first to the last that the policy sampled.

    Other tokens before the first and after the last one are padding; those between, such as a
    tool's answer, stay, and the mask says which they are. Raises what torch raises, e.g. for
    tensors of other shapes.

    Args:
        mask: Tensor of a row for each rollout, positive for the tokens that the policy sampled.
        tensors: Tensors of the same shape by the name of the stream; ``None`` for one that the batch lacks.
    """
    parts = [_sampled_part(row) for row in _rows(mask)]
    streams: dict[str, Any] = {}
    for name, tensor in {LOSS_MASK: mask, **tensors}.items():
        if tensor is not None:
            streams[name] = [
                row[part] for row, part in zip(_rows(tensor), parts, strict=True)
            ]
    return streams


def _sampled_part(mask: Any) -> slice:
    """Return where the tokens of a rollout are; frameworks pad before or after them.

    Empty where none was sampled.
    """
    positions = mask.nonzero()[0]
    if len(positions):
        return slice(int(positions[0]), int(positions[-1]) + 1)
    return slice(0)


def _rows(tensor: Any) -> Any:
    """Return a tensor of torch as an array: one copy to the CPU. numpy lacks bfloat16."""
    return tensor.detach().float().cpu().numpy()


def log_training_batch(
    run: Run,
    rollouts: Sequence[dict[str, Any]],
    step: int,
    role: str | None = None,
) -> list[str]:
    """Record *rollouts*, and that training step *step* consumes all of them; return their ids.

    The rollouts go first, so that the step links what is there. A dict gets its id in place, since
    the caller annotates its tokens by it.

    Args:
        run: The run.
        rollouts: Rollouts; those without an id get one.
        step: The training step.
        role: Another role than the run's own.
    """
    ids: list[str] = []
    for rollout in rollouts:
        rollout["id"] = str(rollout.get("id") or new_rollout_id())
        ids.append(rollout["id"])
    run.log_rollouts(rollouts, step=step, split="train", role=role)
    run.train_on(step, ids, role=role)
    return ids
