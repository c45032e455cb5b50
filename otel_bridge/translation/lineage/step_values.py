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
    staleness: list[int] = []
    ages_s: list[float] = []
    uses: list[int] = []
    datasets: Counter[str] = Counter()
    steps: set[int] = set()
    for rollout in consumed:
        # Weights are commonly numbered by the step that made them.
        version = rollout.policy_version
        if version is None:
            version = rollout.step
        if version is not None:
            staleness.append(step - version)
        ages_s.append((end_unix_ns - rollout.end_unix_ns) / _NS)
        uses.append(rollout.uses(step))
        if rollout.dataset:
            datasets[rollout.dataset] += 1
        if rollout.step is not None:
            steps.add(rollout.step)
    if staleness:
        values[f"{PREFIX}staleness/distribution"] = _histogram(staleness)
    for name, numbers in (("staleness", staleness), ("age_s", ages_s), ("uses", uses)):
        if numbers:
            values[f"{PREFIX}{name}/mean"] = fmean(numbers)
            values[f"{PREFIX}{name}/max"] = max(numbers)
    values |= _mean_reward("consumed", consumed)
    # Each is a key of the run.
    for dataset, number in datasets.most_common(_MAX_DATASETS):
        values[f"{PREFIX}dataset/{dataset}"] = number / len(consumed)
    return values | _of_generated(step, steps, generated)


def _mean_reward(name: str, rollouts: Iterable[GeneratedRollout]) -> dict[str, Value]:
    rewards = [rollout.reward for rollout in rollouts if rollout.reward is not None]
    if rewards:
        return {f"{PREFIX}reward/{name}": fmean(rewards)}
    return {}


def _of_generated(
    step: int, steps: Collection[int], generated: Iterable[GeneratedRollout]
) -> dict[str, Value]:
    """Return the mean reward of all rollouts of *steps*, and the share of older ones without a use, also by reason.

    Newer ones are left out, since a replay buffer may still use them. Nothing without steps: it is
    unknown then which rollouts training has passed.

    Args:
        step: The training step.
        steps: Steps of the rollouts that it consumed.
        generated: All rollouts of the run that are remembered.
    """
    oldest_step = min(steps, default=None)
    of_same_steps: list[GeneratedRollout] = []
    passed = 0
    unused: Counter[str] = Counter()
    for rollout in generated:
        if rollout.step is None or oldest_step is None:
            continue
        if rollout.step in steps:
            of_same_steps.append(rollout)
        elif rollout.step < oldest_step:
            passed += 1
            if not rollout.uses(step):
                unused[rollout.unused or UNKNOWN_REASON] += 1
    values = _mean_reward("generated", of_same_steps)
    if passed:
        values[f"{PREFIX}unused"] = sum(unused.values()) / passed
    for reason, number in unused.items():
        values[f"{PREFIX}unused/{reason}"] = number / passed
    return values


def _histogram(numbers: Sequence[int]) -> Distribution:
    """Return the distribution of whole numbers: a bucket each, or equal wider ones if they are far apart."""
    low = min(numbers)
    # Rounded up, or the highest number would be beyond the last bucket.
    width = -(-(max(numbers) - low + 1) // _MAX_BUCKETS)
    counts = [0] * ((max(numbers) - low) // width + 1)
    for number in numbers:
        counts[(number - low) // width] += 1
    # By halves, so that each whole number lies inside its bucket.
    edges = tuple(low - 0.5 + width * index for index in range(len(counts) + 1))
    return Distribution(
        len(numbers),
        float(sum(numbers)),
        float(low),
        float(max(numbers)),
        edges,
        tuple(counts),
    )
