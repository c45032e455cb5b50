"""Completions of a TRL trainer -> rollouts, each once.

TRL keeps the last generation batch in ``trainer._logs`` (``_textual_logs`` in TRL 0.18 and 0.19),
gathered from all ranks on each of them, and leaves it there until the next one. So the main process
records all rollouts, and each rank the streams that it has of its own. A batch that is already
recorded is recognised by the identity of its entries. What raises here is counted as
``adapter_failed`` by the callback, and the training goes on.
"""

from __future__ import annotations

import functools
import hashlib
import math
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, cast

from otel_bridge.adapters.parts.framework_run import guarded
from otel_bridge.adapters.parts.training_batch import (
    new_rollout_id,
    row_of,
    token_streams,
)
from otel_bridge.emit.rollouts.rollout import Rollout
from otel_bridge.messages.reader import messages_of
from otel_bridge.tokens.statistics import LOSS_MASK
from otel_bridge.values.mappings import present

_GENERATE = "_generate_and_score_completions"
_WRAPPED = "otel_bridge_wrapped"
_BOTH = frozenset({"sampling_per_token_logps", "old_per_token_logps"})
_streams: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()
"""Trainer to the streams of its last batch, in the order of its completions: TRL keeps only shuffled ones."""


def keep_streams(trainer: Any) -> None:
    """Wrap the class of a trainer of TRL, once, so that `streams_of` has what it generates.

    Nothing happens for another trainer, or a version without that method.
    """
    cls: Any = trainer.__class__
    real: Any = getattr(cls, _GENERATE, None)
    if real is None or getattr(real, _WRAPPED, False):
        return

    @functools.wraps(real)
    def generate(self: Any, *arguments: Any, **keywords: Any) -> Any:
        """Generate as TRL does, whose exceptions pass, and keep the streams of the batch."""
        output = real(self, *arguments, **keywords)
        _keep(self, output)
        return output

    setattr(generate, _WRAPPED, True)
    setattr(cls, _GENERATE, generate)


@guarded
def _keep(trainer: Any, output: Mapping[str, Any]) -> None:
    """Keep the streams of a batch to train on, if TRL corrects log-probabilities of vLLM by its own.

    Nothing is kept without both log-probabilities, since their mismatch cannot be shown, nor of
    an evaluation, which trains on nothing.
    """
    # Evaluations generate by the same method.
    if not trainer.model.training or not output.keys() >= _BOTH:
        return
    mask = output["completion_mask"]
    tool_mask = output.get("tool_mask")
    # What a tool answered was not sampled.
    _streams[trainer] = token_streams(
        mask if tool_mask is None else mask * tool_mask,
        logprobs=output["sampling_per_token_logps"],
        trainer_logprobs=output["old_per_token_logps"],
        token_ids=output["completion_ids"],
    )


def has_streams(trainer: Any) -> bool:
    """Return whether this process has streams of the last batch that it has not recorded."""
    return trainer in _streams


def streams_of(trainer: Any, completions: int) -> tuple[slice, dict[str, Any]]:
    """Return which of the last *completions* of all ranks this process generated, and their streams.

    There are none if the last batch was not that of the completions.

    Then TRL generated another batch meanwhile, or its ranks have parts of other sizes.
    """
    # Taken once: they are of this batch, and TRL may generate the next one without streams.
    streams = _streams.pop(trainer, {})
    local = len(streams.get(LOSS_MASK, ()))
    if not local or local * trainer.accelerator.num_processes != completions:
        return slice(0), {}
    start = trainer.accelerator.process_index * local
    return slice(start, start + local), streams


class CompletionReader:
    """Reads the new completions of one trainer; remembers its last batch. For the thread that trains.

    Attributes:
        training_ids: Ids of the last rollouts to train on: those generated for one step, also in several batches.
            The steps after it may consume them again.
    """

    def __init__(self) -> None:
        self.training_ids: list[str] = []
        self._training_step: int | None = None
        # Kept, so that no new entry can have the identity of one of these.
        self._before: list[object] = []
        self._blocks: tuple[int, str] = (-1, "")
        self._groups = 0

    def new(self, trainer: Any, step: int, split: str) -> list[Rollout]:
        """Return the rollouts that are new since the last call.

        Empty too where the batch is that of the last call: TRL logs it again at the end (TRL 1.16).
        A reward function that did not apply to a row gave NaN, and is left out. Raises what columns
        of another form raise; the caller counts that, and the batch is not read again.

        Args:
            trainer: A trainer of TRL; the result of any other trainer is empty.
            step: Step that consumes the completions.
            split: ``train`` or ``eval``.
        """
        logs = _logs_of(trainer)
        prompts = _column(logs, "prompt")
        completions = _column(logs, "completion")
        advantages = _column(logs, "advantages")
        # Advantages are new objects in every batch; equal texts may be one object.
        entries: list[object] = (
            advantages if len(advantages) == len(completions) else completions
        )
        earlier_ids = set(map(id, self._before))
        self._before = entries
        new = [
            place for place, entry in enumerate(entries) if id(entry) not in earlier_ids
        ]
        if not new:
            return []
        groups = self._group_names(len(new), _generations(trainer, split), step, split)
        ids = _ids(trainer, [completions[place] for place in new], step)
        columns = _columns(logs, "rewards")
        extra = _columns(logs, "extra")
        weights = dict(zip(columns, _weights(trainer, len(columns)), strict=True))
        rollouts: list[Rollout] = []
        for place, (group, sample), rollout_id in zip(new, groups, ids, strict=True):
            rewards = _finite_at(columns, place)
            answer = messages_of(completions[place], "assistant")
            rollout = Rollout(
                messages=messages_of(prompts[place]) + answer,
                reward=_total(rewards, weights),
                rewards=rewards,
                advantage=_finite(advantages, place),
                group=group,
                sample=sample,
                metadata=row_of(extra, place),
                id=rollout_id,
            )
            rollouts.append(rollout)
        if split == "train":
            self._note_training(step, rollouts)
        return rollouts

    def _note_training(self, step: int, rollouts: Sequence[Rollout]) -> None:
        """Note the ids that *step* and the steps after it consume."""
        if step != self._training_step:
            self._training_step = step
            self.training_ids = []
        self.training_ids += [
            rollout.id for rollout in rollouts if rollout.id is not None
        ]

    def forget_training(self) -> None:
        """Forget the last rollouts to train on: what else records them gives them ids of its own."""
        self.training_ids = []

    def _group_names(
        self, number: int, size: int, step: int, split: str
    ) -> list[tuple[str, int]]:
        """Return group and place in it: TRL repeats each prompt *size* times in a row.

        Parts of a step count on.

        A batch whose head is missing fills its first group from the end, so that the others stay
        whole.
        """
        if (step, split) != self._blocks:
            self._blocks = (step, split)
            self._groups = 0
        missing = -number % size  # a long evaluation batch may have lost its head
        names: list[tuple[str, int]] = []
        for place in range(missing, missing + number):
            group = self._groups + place // size
            names.append((f"{split}-{step}-{group}", place % size))
        self._groups += (missing + number) // size
        return names


def _ids(trainer: Any, completions: Sequence[Any], step: int) -> list[str]:
    """Return the ids of new rollouts; each rank with streams gives those of a batch the same ones.

    Without streams they are random.
    """
    if not has_streams(trainer) or trainer.accelerator.num_processes == 1:
        return [new_rollout_id() for _ in completions]
    # Of the texts, which all ranks have: a random number in common would take a collective call.
    text = repr((step, completions)).encode("utf-8", "backslashreplace")
    batch_id = hashlib.blake2b(text, digest_size=16).hexdigest()
    return [f"{batch_id}-{place}" for place in range(len(completions))]


def consumes_whole_batch(trainer: Any) -> bool:
    """Return whether each step of *trainer* consumes all of a generation batch, and not a shuffled part of it.

    TRL shuffles a batch and trains on ``steps_per_generation`` parts of it; the shuffle is not
    known here. ``True`` for a trainer without these arguments.
    """
    args: Any = getattr(trainer, "args", None)
    steps_per_generation = getattr(args, "steps_per_generation", None) or 1
    return int(steps_per_generation) <= int(
        getattr(args, "gradient_accumulation_steps", 1)
    )


def _logs_of(trainer: Any) -> Mapping[str, Any]:
    """Return what TRL keeps of the last batch; empty for trainers and versions without it."""
    logs: object = getattr(trainer, "_logs", None)
    if isinstance(logs, Mapping):
        return cast("Mapping[str, Any]", logs)
    older: object = getattr(trainer, "_textual_logs", None)
    if not isinstance(older, Mapping):
        return {}
    # Without advantages: TRL 0.17, whose batches have no sure identity, or GOLD, which has no
    # rewards.
    older_logs = cast("Mapping[str, Any]", older)
    if _column(older_logs, "advantages"):
        return older_logs
    return {}


def _column(logs: Mapping[str, Any], name: str) -> list[Any]:
    """Return a copy of a column.

    TRL's own is a deque, which the next batch fills anew; a missing one is empty.
    """
    return list(logs.get(name, ()))


def _columns(logs: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return columns by name, as lists; empty where TRL has none of them."""
    listed_columns: Mapping[str, Any] = logs.get(name, {})
    return {key: list(values) for key, values in listed_columns.items()}


def _generations(trainer: Any, split: str) -> int:
    """Return how many completions TRL generates of one prompt, for an evaluation as its own argument says, else 1."""
    train = getattr(trainer, "num_generations", None)
    eval_size = (
        getattr(trainer, "num_generations_eval", None) if split == "eval" else None
    )
    size = eval_size or train or 1
    if isinstance(size, int) and size > 0:
        return size
    return 1


def _weights(trainer: Any, number: int) -> list[float]:
    """Return the weight of each reward function; TRL holds them as a tensor.

    1 for each where the numbers differ, e.g. in a version without weights.
    """
    reward_weights: Any = getattr(trainer, "reward_weights", None)
    listed: list[float] = (
        reward_weights.tolist()
        if hasattr(reward_weights, "tolist")
        else list(reward_weights or ())
    )
    if len(listed) == number:
        return listed
    return [1.0] * number


def _total(rewards: Mapping[str, float], weights: Mapping[str, float]) -> float | None:
    """Return the weighted sum of the functions that applied, as TRL computes the reward.

    ``None`` where none applied.
    """
    if rewards:
        return sum(value * weights[name] for name, value in rewards.items())
    return None


def _finite_at(columns: Mapping[str, Sequence[Any]], place: int) -> dict[str, float]:
    """Return the finite numbers of a row, by column."""
    numbers = {name: _finite(values, place) for name, values in columns.items()}
    return present(numbers)


def _finite(values: Sequence[Any], place: int) -> float | None:
    """Return a number; ``None`` for the NaN of a reward function that did not apply."""
    value: Any = values[place] if place < len(values) else None
    if value is None or math.isnan(value):
        return None
    return float(value)
