"""Records rollouts of slime and miles, by their two functions for logging rollouts, and what the trainer makes of them.

.. code-block:: sh

    --custom-rollout-log-function-path otel_bridge.adapters.slime.log_rollouts
    --custom-eval-rollout-log-function-path otel_bridge.adapters.slime.log_eval_rollouts
    --rollout-data-postprocess-path otel_bridge.adapters.slime.annotate_rollouts

Metrics arrive by ``otel-bridge run --capture wandb``. The first two functions return ``False``, so
that the default logging continues; the third one changes nothing.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, cast

from otel_bridge.adapters.parts.calling_object import calling_argument
from otel_bridge.adapters.parts.framework_run import FrameworkRun, RunNames, guarded
from otel_bridge.adapters.parts.training_batch import is_number, log_training_batch
from otel_bridge.messages.reader import messages_of

ROLE = "rollout"
"""Role of the rollouts, the same as of slime's metrics ``rollout/*``, unless the run of the process has one."""
_MEGATRON = "megatron.core.parallel_state"
_STREAMS = {
    "trainer_logprobs": "log_probs",
    "entropies": "entropy",
    "advantages": "advantages",
}
"""Stream to its name in the trainer's data."""
_FINISH_REASONS = {"completed": "stop", "truncated": "length"}
_lock = threading.Lock()
_recordings: list[FrameworkRun] = []


def log_rollouts(  # slime gives all of them by place
    rollout_id: int,
    args: Any,
    samples: Any,
    rollout_extra_metrics: object = None,  # noqa: ARG001
    rollout_time: object = None,  # noqa: ARG001
) -> Literal[False]:
    """Record the samples of one training rollout.

    ``False`` lets slime's own logging go on. Failures are counted as ``adapter_failed``, and never
    reach slime.
    """
    _log_training(rollout_id, args, samples)
    return False


def log_eval_rollouts(
    rollout_id: int,
    args: Any,
    data: Any,
    extra_metrics: object = None,  # noqa: ARG001
) -> Literal[False]:
    """Record the samples of one evaluation, by data set.

    As `log_rollouts`. A data set without samples has no rollouts.
    """
    _log_evaluation(rollout_id, args, data)
    return False


def annotate_rollouts(
    args: Any, rollout_id: Any = None, rollout_data: Any = None
) -> None:
    """Record log-probabilities, entropies and advantages that the trainer computed, in each data-parallel rank.

    Failures are counted as ``adapter_failed``.
    """
    _annotate(args, rollout_id, rollout_data)


@guarded
def _log_training(rollout_id: int, args: Any, samples: Any) -> None:
    """Record the rollouts of a batch, and that the step consumes all of them.

    Ids come from slime's numbers, since the trainer annotates them from another process.
    """
    run = _recording(args, ROLE).begin()
    rollouts = _rollouts_of(samples, getattr(args, "reward_key", None))
    ids = _shared_ids(args, rollout_id, [rollout["sample"] for rollout in rollouts])
    for rollout, shared_id in zip(rollouts, ids, strict=True):
        rollout["id"] = shared_id
    log_training_batch(run, rollouts, _step(args, rollout_id), run.role or ROLE)


@guarded
def _log_evaluation(
    rollout_id: int, args: Any, data: Mapping[str, Mapping[str, Any]]
) -> None:
    """Record the rollouts of an evaluation; an unreadable sample costs only itself.

    A data set in another form is counted as ``adapter_failed``, with all those after it.
    """
    reward_key = getattr(args, "eval_reward_key", None) or getattr(
        args, "reward_key", None
    )
    run = _recording(args, ROLE).begin()
    step = _step(args, rollout_id)
    for dataset, of_dataset in data.items():
        rollouts = _rollouts_of(of_dataset.get("samples"), reward_key)
        for rollout in rollouts:
            rollout["dataset"] = dataset
        run.log_rollouts(rollouts, step=step, split="eval", role=run.role or ROLE)


@guarded
def _annotate(args: Any, rollout_id: Any, rollout_data: Any) -> None:
    """Record the streams that the trainer has computed; nothing in a stage of a pipeline that computes none.

    Where miles does not call it from a method with the data, or Megatron is not loaded, that is
    counted as ``adapter_failed``.
    """
    if rollout_data is None:  # miles gives the hook only the arguments of the job
        rollout_id = calling_argument("rollout_id")
        rollout_data = calling_argument("rollout_data")
    streams = {
        name: rollout_data[column]
        for name, column in _STREAMS.items()
        if column in rollout_data
    }
    if not streams or not _has_whole_samples():
        return
    # Its role is not that of the rollouts: their bridge would wait for this process.
    run = _recording(args, None).begin()
    ids = _shared_ids(args, rollout_id, rollout_data["sample_indices"])
    step = _step(args, rollout_id)
    mask = rollout_data["loss_masks"]
    run.annotate(ids, step=step, role=run.role or ROLE, loss_mask=mask, **streams)


def _has_whole_samples() -> bool:
    """Return whether this process is the one of its data-parallel rank that records.

    Tensor-parallel ranks have the same samples. Context-parallel ones have parts of each, so none
    of them records. Raises `KeyError` where Megatron is not loaded, which the caller counts.
    """
    state: Any = sys.modules[_MEGATRON]
    is_first = state.get_tensor_model_parallel_rank() == 0
    return bool(is_first and state.get_context_parallel_world_size() == 1)


def _shared_ids(args: Any, rollout_id: int, indices: Sequence[Any]) -> list[str | None]:
    """Return the ids by which both processes know the samples; ``None`` for one whose index is not its own.

    Ids of several samples of one index would be equal, so their tokens are not annotated.
    """
    # W&B's id differs after a restart, in which rollouts have the numbers of earlier ones.
    prefix = f"{getattr(args, 'wandb_run_id', None)}-{rollout_id}"
    uses = Counter(indices)
    return [
        f"{prefix}-{index}" if index is not None and uses[index] == 1 else None
        for index in indices
    ]


def _recording(args: Any, role: str | None) -> FrameworkRun:
    """Return the run of this process; captured metrics or the program may have begun it.

    One a process, whichever of the three functions is called first. The default project is slime's
    own.
    """
    with _lock:
        if not _recordings:
            names = RunNames(
                getattr(args, "wandb_project", None),
                getattr(args, "wandb_group", None),
                role,
                default_project="slime",
            )
            _recordings.append(FrameworkRun("slime", names))
        return _recordings[0]


def _step(args: Any, rollout_id: int) -> int:
    """Return the step of slime's metrics ``rollout/*``: the rollout's number, or the training steps before it.

    Raises `AttributeError` where the arguments lack a size of the batch; the callers count it.
    """
    if not getattr(args, "wandb_always_use_train_step", False):
        return rollout_id
    return int(
        rollout_id
        * args.rollout_batch_size
        * args.n_samples_per_prompt
        // args.global_batch_size
    )


def _rollouts_of(samples: Any, reward_key: str | None) -> list[dict[str, Any]]:
    """Return the rollouts of the readable samples; an unreadable one is counted.

    As ``adapter_failed``. Its place in the batch stays free.
    """
    rollouts: list[dict[str, Any]] = []
    for place, sample in enumerate(_flat(samples)):
        rollout = _rollout_of(sample, place, reward_key)
        if rollout is not None:
            rollouts.append(rollout)
    return rollouts


def _flat(samples: Any) -> Iterable[Any]:
    """Yield the samples of nested lists in their order; none for ``None``."""
    for entry in samples or ():
        if isinstance(entry, list):  # a group, or one prompt's several trajectories
            yield from _flat(entry)
        else:
            yield entry


@guarded
def _rollout_of(sample: Any, place: int, reward_key: str | None) -> dict[str, Any]:
    """Return the fields of one rollout; ``None``, counted, when the sample cannot be read.

    Prompt tokens are what is left of ``tokens`` beside the response; in a sample with fewer they
    are unknown.
    """
    reward, parts, facts = _reward(sample.reward, reward_key)
    status = str(getattr(sample.status, "value", sample.status))
    tokens = len(_list(sample, "tokens"))
    output = getattr(sample, "response_length", None)
    sample_metadata: Mapping[str, Any] = getattr(sample, "metadata", None) or {}
    metadata: dict[str, Any] = {**sample_metadata, **facts, "status": status}
    if getattr(sample, "label", None) is not None:
        metadata["label"] = sample.label
    return {
        "messages": messages_of(sample.prompt)
        + messages_of(sample.response or "", "assistant"),
        "reward": reward,
        "rewards": parts,
        "group": sample.group_index,
        "sample": sample.index,
        "batch_index": place,
        "policy_version": _policy_version(_list(sample, "weight_versions")),
        "finish_reason": _FINISH_REASONS.get(status, status),
        "error": "failed" if status == "failed" else None,
        "trajectory_id": getattr(sample, "session_id", None),
        "input_tokens": tokens - output if output and tokens >= output else None,
        "output_tokens": output or None,
        "turns": _turns(sample, output or 0),
        "metadata": metadata,
    }


def _turns(sample: Any, output: int) -> list[dict[str, Any]]:
    """Return the tokens of the response as those of one turn.

    Nothing without log-probabilities of the engine.
    """
    logprobs = _list(sample, "rollout_log_probs")
    if not len(logprobs):
        return []
    tokens = _list(sample, "tokens")
    return [
        {
            # slime has prompt and response in one list.
            "token_ids": tokens[len(tokens) - output :],
            "logprobs": logprobs,
            "loss_mask": _list(sample, "loss_mask"),
        }
    ]


def _reward(
    reward: Any, reward_key: str | None
) -> tuple[Any, dict[str, float], dict[str, Any]]:
    """Return the reward, its parts, and the other entries of a dict of rewards.

    Without a key there are parts only.
    """
    if not isinstance(reward, Mapping):
        return reward, {}, {}
    parts: dict[str, float] = {}
    facts: dict[str, Any] = {}
    for name, value in cast("Mapping[str, Any]", reward).items():
        if is_number(value):
            parts[name] = float(value)
        elif value is not None:
            facts[name] = value
    return parts.get(reward_key) if reward_key else None, parts, facts


def _policy_version(versions: Iterable[Any]) -> int | None:
    """Return the oldest version of the weights that sampled a part of the response.

    ``None`` without a number.
    """
    return min(
        (int(version) for version in versions if str(version).isdecimal()), default=None
    )


def _list(sample: Any, name: str) -> Sequence[Any]:
    """Return a list of a sample; empty where the sample has none.

    Versions of slime and miles have different fields.
    """
    values: Sequence[Any] | None = getattr(sample, name, None)
    if values is None:
        return ()
    return values
