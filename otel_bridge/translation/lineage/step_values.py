"""Rollouts that one training step consumed, beside all that were generated -> the values of the step's row. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from statistics import fmean

from otel_bridge.records import Distribution, Value
from otel_bridge.translation.generated_rollouts import GeneratedRollout

PREFIX = "lineage/"
_NS = 1e9
_MAX_BUCKETS = 64
_MAX_DATASETS = 64
UNKNOWN_REASON = "unknown"


def step_values(
    step: int,
    consumed: Sequence[GeneratedRollout],
    *,
    unknown: int,
    end_unix_ns: int,
    generated: Collection[GeneratedRollout],
) -> dict[str, Value]:
    """Return the values of a training step's row, by key without role.

    Args:
        step: The training step.
        consumed: The rollouts that it consumed.
        unknown: Number of further ones that no process has recorded, or that are forgotten.
        end_unix_ns: Time of the step, by the clock of its process.
        generated: All rollouts of the run that are remembered.

    Returns:
        The number of rollouts alone while none of them is known: everything else is a fact of
        theirs.
    """
    values: dict[str, Value] = {f"{PREFIX}consumed": len(consumed) + unknown}
    if unknown:
        values[f"{PREFIX}unknown"] = unknown
    if not consumed:
        return values
    values |= _staleness_values(step, consumed)
    values |= _mean_and_max(
        "age_s", [(end_unix_ns - rollout.end_unix_ns) / _NS for rollout in consumed]
    )
    values |= _mean_and_max("uses", [rollout.uses(step) for rollout in consumed])
    steps = {rollout.step for rollout in consumed if rollout.step is not None}
    of_same_steps = [rollout for rollout in generated if rollout.step in steps]
    values |= _mean_reward("consumed", consumed)
    values |= _mean_reward("generated", of_same_steps)
    values |= _composition(consumed)
    # Without steps it is unknown which rollouts training has passed.
    if steps:
        values |= _unused(
            step, [rollout for rollout in generated if _is_before(rollout, min(steps))]
        )
    return values


def _mean_and_max(name: str, numbers: Sequence[float]) -> dict[str, Value]:
    return {f"{PREFIX}{name}/mean": fmean(numbers), f"{PREFIX}{name}/max": max(numbers)}


def _staleness_values(
    step: int, consumed: Sequence[GeneratedRollout]
) -> dict[str, Value]:
    """Return how far behind the weights of the consumed rollouts are.

    Nothing if no rollout names a version or step; those that name none are left out.
    """
    stalenesses = (_staleness(step, rollout) for rollout in consumed)
    staleness = [
        steps_behind for steps_behind in stalenesses if steps_behind is not None
    ]
    if not staleness:
        return {}
    return {
        f"{PREFIX}staleness/distribution": _histogram(staleness),
        **_mean_and_max("staleness", staleness),
    }


def _staleness(step: int, rollout: GeneratedRollout) -> int | None:
    """Return how many steps the weights of *rollout* are behind; ``None`` without a version and step.

    Without a policy version, the step of the rollout is used instead: weights are commonly
    numbered by the step that made them.
    """
    version = rollout.step if rollout.policy_version is None else rollout.policy_version
    if version is None:
        return None
    return step - version


def _histogram(numbers: Sequence[int]) -> Distribution:
    """Return the distribution of whole numbers: a bucket each, or equal wider ones if they are far apart."""
    low = min(numbers)
    # Rounded up, or the highest number would be beyond the last bucket.
    width = -(-(max(numbers) - low + 1) // _MAX_BUCKETS)
    counts = Counter((number - low) // width for number in numbers)
    buckets = max(counts) + 1
    return Distribution(
        count=len(numbers),
        sum=float(sum(numbers)),
        min=float(low),
        max=float(max(numbers)),
        # By halves, so that each whole number lies inside its bucket.
        edges=tuple(low - 0.5 + width * index for index in range(buckets + 1)),
        counts=tuple(counts[index] for index in range(buckets)),
    )


def _mean_reward(name: str, rollouts: Iterable[GeneratedRollout]) -> dict[str, Value]:
    rewards = [rollout.reward for rollout in rollouts if rollout.reward is not None]
    if rewards:
        return {f"{PREFIX}reward/{name}": fmean(rewards)}
    return {}


def _composition(consumed: Sequence[GeneratedRollout]) -> dict[str, Value]:
    """Return the share of each dataset among the consumed rollouts, the most frequent ones only.

    Each is a key of the run. Nothing when no rollout names a dataset.
    """
    datasets = Counter(rollout.dataset for rollout in consumed if rollout.dataset)
    return {
        f"{PREFIX}dataset/{dataset}": number / len(consumed)
        for dataset, number in datasets.most_common(_MAX_DATASETS)
    }


def _is_before(rollout: GeneratedRollout, step: int) -> bool:
    return rollout.step is not None and rollout.step < step


def _unused(step: int, passed: Sequence[GeneratedRollout]) -> dict[str, Value]:
    """Return the share of the rollouts that training has passed without a use, in all and by reason.

    Nothing when none is older. Newer ones are left out, since a replay buffer may still use them.

    Args:
        step: The training step.
        passed: Rollouts that are older than the oldest one that the step consumed.
    """
    if not passed:
        return {}
    unused = [rollout for rollout in passed if not rollout.uses(step)]
    values: dict[str, Value] = {f"{PREFIX}unused": len(unused) / len(passed)}
    for reason, number in Counter(
        rollout.unused or UNKNOWN_REASON for rollout in unused
    ).items():
        values[f"{PREFIX}unused/{reason}"] = number / len(passed)
    return values
