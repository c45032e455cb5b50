"""The policy: a softmax over "do the operation at i" and "answer now", linear in what stands around i.

Small enough for numpy, and a real policy: it is sampled, has log probabilities, and is trained by a
clipped policy gradient on group-relative advantages (GRPO, arXiv 2402.03300).
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from otel_bridge.demo.task import OPERANDS, OPERATORS, Expression

Floats: TypeAlias = npt.NDArray[np.float64]

_SYMBOLS = len(OPERATORS) + 1  # the operators, and "nothing there"
_NEIGHBOURS = _SYMBOLS**3
FEATURES = _NEIGHBOURS + OPERANDS
ACTIONS = OPERANDS
"""Reduce at 0 … OPERANDS - 2, or answer (the last one)."""


class Decision(NamedTuple):
    """Holds one choice: *features* has shape (actions, FEATURES), *mask* (actions,), *log_prob* is of *action*."""

    features: Floats
    mask: npt.NDArray[np.bool_]
    action: int
    log_prob: float


class Policy:
    """Holds weights of shape (FEATURES,), and the version they are of."""

    def __init__(self, weights: Floats | None = None, version: int = 0) -> None:
        self.weights = np.zeros(FEATURES) if weights is None else weights
        self.version = version

    def decide(
        self, expression: Expression, rng: np.random.Generator | None
    ) -> Decision:
        """Choose the next action; without *rng* the likeliest."""
        features, mask = _observe(expression)
        log_probs = log_softmax(features @ self.weights, mask)
        action = (
            int(np.argmax(log_probs))
            if rng is None
            else int(rng.choice(ACTIONS, p=np.exp(log_probs)))
        )
        return Decision(features, mask, action, float(log_probs[action]))


def log_softmax(scores: Floats, mask: npt.NDArray[np.bool_]) -> Floats:
    """Return log probabilities over the last axis, ``-inf`` where *mask* is false."""
    masked = np.where(mask, scores, -np.inf)
    # The largest becomes 0, so that exp() cannot overflow.
    shifted = masked - masked.max(axis=-1, keepdims=True)
    normalised: Floats = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return normalised


def _observe(expression: Expression) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Return the features of each action and which actions are possible.

    An operation is seen by the operators before, at and behind it, which is all that precedence
    needs; the answer by the number of operations left.
    """
    features = np.zeros((ACTIONS, FEATURES))
    mask = np.zeros(ACTIONS, dtype=np.bool_)
    symbols = [
        _SYMBOLS - 1,
        *map(OPERATORS.index, expression.operators),
        _SYMBOLS - 1,
    ]
    for index in range(len(expression.operators)):
        before, here, behind = symbols[index : index + 3]
        features[index, (before * _SYMBOLS + here) * _SYMBOLS + behind] = 1.0
        mask[index] = True
    features[-1, _NEIGHBOURS + len(expression.operators)] = 1.0
    mask[-1] = True
    return features, mask
