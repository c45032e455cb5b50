"""Which rollouts of a step are kept: one rule for the emitter's pre-selection and the bridge's choice.

Pure and deterministic: no clock, no random numbers. What the rollouts hold decides, never the order
in which they came (rule ``first`` excepted).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence

STRATIFIED = "stratified"
FIRST = "first"
_SHARE = 4
"""Failures, and truncated ones, may each take one seat in so many, so that they cannot crowd out the rest."""
_TRUNCATED_REASONS = frozenset(
    {
        "content_length",
        "length",
        "max_length",
        "max_output_tokens",
        "max_tokens",
        "max_turns",
        "model_context_window_exceeded",
        "model_length",
        "truncated",
    }
)
"""Finish reasons, in lower case, of a generation that hit a limit: of any provider and environment."""


def is_truncated(finish_reason: str | None) -> bool:
    """Return whether *finish_reason* says that a generation hit a limit; Gemini writes it in capitals."""
    return finish_reason is not None and finish_reason.lower() in _TRUNCATED_REASONS


def choose(
    rewards: Sequence[float | None],
    groups: Sequence[str | None],
    cap: int,
    *,
    failed: Sequence[int],
    truncated: Sequence[int],
    key: Callable[[int], str],
    rule: str,
    seed: str,
) -> list[int]:
    """Choose at most *cap* rollouts of a step, given as parallel lists in the order in which they came.

    ``stratified`` takes the best, the worst, failures, truncated ones (a quarter of the seats each
    at most), then whole groups in the order of a hash of *seed* and group while they fit; a group
    that is too large is cut. For a large batch lists cost less than an object a rollout.

    Args:
        rewards: One a rollout; ``None`` or NaN when there is none.
        groups: The prompt group of each rollout; ``None``: a group of its own.
        cap: Seats; zero or less: none.
        failed: Indices of the rollouts that ended in an error.
        truncated: Indices of those whose generation hit the length limit.
        key: From an index to the rollout's stable id, which decides between equals; called where the hash must decide.
        rule: ``stratified`` or ``first``.
        seed: ``<run id>/<step>``.

    Returns:
        Kept indices, increasing.
    """
    total = len(rewards)
    if cap <= 0:
        return []
    if total <= cap:
        return list(range(total))
    if rule == FIRST:
        return list(range(cap))
    order = _RewardOrder(seed, groups, key)
    chosen: set[int] = set()
    for tied in _extremes(rewards)[:cap]:
        chosen.update(order.first(tied, 1))
    for indices in (failed, truncated):
        seats = min(max(cap // _SHARE, 1), cap - len(chosen))
        candidates = [index for index in indices if index not in chosen]
        chosen.update(order.first(candidates, seats))
    if len(chosen) < cap:
        _fill_with_groups(chosen, cap, order)
    return sorted(chosen)


def _extremes(rewards: Sequence[float | None]) -> list[list[int]]:
    """Return those with the best reward and, when it is another, those with the worst."""
    indices_by_reward: dict[float, list[int]] = {}
    for index, reward in enumerate(rewards):
        if reward is not None and not math.isnan(reward):
            indices_by_reward.setdefault(reward, []).append(index)
    if not indices_by_reward:
        return []
    extremes = dict.fromkeys((max(indices_by_reward), min(indices_by_reward)))
    return [indices_by_reward[reward] for reward in extremes]


class _RewardOrder:
    """Orders by a hash of seed and group, within a group by seed and rollout.

    Each step has another order.
    """

    def __init__(
        self, seed: str, groups: Sequence[str | None], key: Callable[[int], str]
    ) -> None:
        self._key = key
        self._seed = seed.encode("utf-8", "surrogatepass") + b"\0"
        hashes: dict[str, bytes] = {}
        self.digests: list[bytes] = []
        for index, group in enumerate(groups):
            if group is None:
                self.digests.append(self._hash(key(index)))
                continue
            # Once for each group: a batch has thousands of rollouts.
            if group not in hashes:
                hashes[group] = self._hash(group)
            self.digests.append(hashes[group])

    def first(self, indices: Sequence[int], count: int) -> list[int]:
        """Return the first *count* of *indices* in this order.

        All of *indices* when they are no more, none when *count* is 0 or less.

        The hash is the same in every process and after a restart, and no global random generator is
        used.
        """
        if len(indices) <= count or count <= 0:
            return list(indices)[: max(count, 0)]
        digests = self.digests
        ranked = sorted(indices, key=digests.__getitem__)
        last = digests[ranked[count - 1]]
        sure: list[int] = []
        members: list[int] = []
        for index in ranked:
            if digests[index] < last:
                sure.append(index)
            elif digests[index] == last:
                members.append(index)
        # Only a group that is cut pays for a hash of each of its members.
        members.sort(key=self._own_hash)
        return sure + members[: count - len(sure)]

    def _own_hash(self, index: int) -> bytes:
        return self._hash(self._key(index))

    def _hash(self, name: str) -> bytes:
        return hashlib.md5(
            self._seed + name.encode("utf-8", "surrogatepass"), usedforsecurity=False
        ).digest()


def _fill_with_groups(chosen: set[int], cap: int, order: _RewardOrder) -> None:
    """Give the seats left to whole groups, then cut those that did not fit.

    Samples of one prompt are compared with each other, so that whole groups come first.
    """
    members: dict[bytes, list[int]] = {}
    for index, digest in enumerate(order.digests):
        if index not in chosen:
            members.setdefault(digest, []).append(index)
    too_large: list[list[int]] = []
    for digest in sorted(members):
        group_members = members[digest]
        if len(group_members) <= cap - len(chosen):
            chosen.update(group_members)
        else:
            too_large.append(group_members)
        if len(chosen) == cap:
            return
    for group_members in too_large:
        chosen.update(order.first(group_members, cap - len(chosen)))
        if len(chosen) == cap:
            return
