"""Rollouts as candidates for the seats of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from otel_bridge import sampling_rule


@dataclass(frozen=True)
class Candidate:
    """Facts of one rollout."""

    reward: float | None
    group: str | None
    failed: bool
    truncated: bool
    key: str


def choose(
    candidates: Sequence[Candidate], cap: int, *, rule: str, seed: str
) -> list[int]:
    """Choose at most *cap* of *candidates*; return their indices."""
    return sampling_rule.choose(
        [candidate.reward for candidate in candidates],
        [candidate.group for candidate in candidates],
        cap,
        failed=[
            index for index, candidate in enumerate(candidates) if candidate.failed
        ],
        truncated=[
            index for index, candidate in enumerate(candidates) if candidate.truncated
        ],
        key=lambda index: candidates[index].key,
        rule=rule,
        seed=seed,
    )
