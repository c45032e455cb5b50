"""GRPO in numpy: group-relative advantages, a clipped policy gradient, a few passes a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from otel_bridge.demo.episode import Episode
from otel_bridge.demo.policy import Decision, Floats, log_softmax

CLIP = 0.2
ENTROPY_BONUS = 0.003


@dataclass(frozen=True, slots=True)
class Update:
    """Holds what one training step did.

    Attributes:
        log_probs: Log-probability of each decision under the weights before the step, by episode.
        entropies: Entropy of the policy at each decision, by episode.
    """

    loss: float
    entropy: float
    kl: float
    clip_fraction: float
    grad_norm: float
    log_probs: Sequence[Floats]
    entropies: Sequence[Floats]


def group_advantages(rewards: Floats, groups: Sequence[int]) -> Floats:
    """Return (reward - mean of its group) / (std of its group), shape as *rewards*.

    0 where a group does not vary.
    """
    advantages = np.zeros_like(rewards)
    numbers = np.asarray(groups)
    for group in np.unique(numbers):
        chosen = numbers == group
        centred = rewards[chosen] - rewards[chosen].mean()
        spread = float(rewards[chosen].std())
        # All answers of a group equally good: it teaches nothing, and its spread is only rounding.
        advantages[chosen] = centred / spread if spread > 1e-8 else 0.0
    return advantages


def train(
    weights: Floats, episodes: Sequence[Episode], advantages: Floats, *, lr: float
) -> tuple[Floats, Update]:
    """Take one gradient step on *weights*, shape (FEATURES,); return the new weights and what was seen.

    The loss is that of GRPO with a bonus for entropy. *advantages* has one number for each of
    *episodes*, of which there is at least one.
    """
    decisions: list[Decision] = []
    lengths: list[int] = []
    for episode in episodes:
        decisions += episode.decisions
        lengths.append(len(episode.decisions))
    # The old log-probabilities are of the policy that sampled: it may be older than *weights*.
    features, masks, actions, old = map(np.asarray, zip(*decisions, strict=True))
    weight = np.repeat(advantages, lengths)

    log_probs = log_softmax(features @ weights, masks)
    probs = np.exp(log_probs)
    rows = np.arange(len(decisions))
    ratio = np.exp(log_probs[rows, actions] - old)
    clipped = ((ratio > 1 + CLIP) & (weight > 0)) | ((ratio < 1 - CLIP) & (weight < 0))
    # Masked actions have -inf, and 0 * -inf is NaN.
    finite = np.where(masks, log_probs, 0.0)
    entropy = -(probs * finite).sum(axis=-1)

    # d log p(action) / d weights = features of the action - mean features; entropy likewise, by its
    # log probabilities.
    mean = np.einsum("na,naf->nf", probs, features)
    score = features[rows, actions] - mean
    # Clipped decisions are constant in the weights, so that they push nowhere.
    push = np.where(clipped, 0.0, ratio * weight)
    entropy_score = -np.einsum(
        "na,naf->nf", probs * (finite + entropy[:, None]), features
    )
    gradient = (push[:, None] * score + ENTROPY_BONUS * entropy_score).mean(axis=0)
    surrogate = np.minimum(
        ratio * weight, np.minimum(np.maximum(ratio, 1 - CLIP), 1 + CLIP) * weight
    )
    ends = np.cumsum(lengths)[:-1]
    return weights + lr * gradient, Update(
        loss=-float(surrogate.mean()),
        entropy=float(entropy.mean()),
        kl=float((old - log_probs[rows, actions]).mean()),
        clip_fraction=float(clipped.mean()),
        grad_norm=float(np.linalg.norm(gradient)),
        log_probs=np.split(log_probs[rows, actions], ends),
        entropies=np.split(entropy, ends),
    )
