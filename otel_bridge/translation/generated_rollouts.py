"""The last rollouts of the run, kept or sampled out: what a training step needs to know of those it consumes. Pure.

Owns ``lineage/rollouts/`` of the state. ``lineage/arrived`` has the rollouts
that the reader has not taken yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import cast

from otel_bridge.translation.packing import packed, unpacked
from otel_bridge.translation.state import TranslationState, named

TRAINED_STEP = "trained_step"
"""Name of the value that a rollout gets: the last training step that consumed it; the label has all
of them."""
_ROLLOUTS = "lineage/rollouts/"
_ARRIVED = "lineage/arrived"
_LIMIT = 50_000
_HALF = 16
"""Hex digits of a trace id that are stored; a chance collision within a run is practically
impossible."""
_MAX_STEPS = 64
"""Most training steps that are remembered of one rollout, the last ones."""


@dataclass(slots=True)
class GeneratedRollout:
    """Holds what is remembered of one rollout.

    Attributes:
        step: Step that the rollout was generated for.
        policy_version: Version of the weights that sampled it.
        end_unix_ns: Its end, or the time of the call that recorded it.
        dataset: Name of its dataset, or environment; empty without one.
        is_sampled_out: Whether no tracker shows it.
        trained_steps: Training steps that consumed it, ascending, each once.
        unused: Reason for which it is not used; empty without one.
        number: Number in the order of arrival.
    """

    step: int | None
    policy_version: int | None
    reward: float | None
    end_unix_ns: int
    dataset: str = ""
    is_sampled_out: bool = False
    trained_steps: list[int] = field(default_factory=list[int])
    unused: str = ""
    number: int = 0

    def consumed_at(self, step: int) -> bool:
        """Note that a training step consumed the rollout; return whether this is new."""
        if step in self.trained_steps:
            return False
        self.trained_steps = sorted([*self.trained_steps, step])[-_MAX_STEPS:]
        return True

    def leave_out(self, reason: str) -> None:
        """Note that the rollout is not used, for *reason*."""
        self.unused = reason

    def revise(self, reward: float | None, *, is_sampled_out: bool) -> None:
        """Note a reward that came later, if any, and whether the rollout is sampled out now."""
        if reward is not None:
            self.reward = reward
        self.is_sampled_out |= is_sampled_out

    def inherit(self, earlier: GeneratedRollout) -> None:
        """Take over what training did with the rollout, when its facts arrive again."""
        self.number = earlier.number
        self.trained_steps = earlier.trained_steps
        self.unused = earlier.unused

    def arrive(self, number: int) -> None:
        """Note that the rollout is the first with *number*."""
        self.number = number

    def uses(self, step: int) -> int:
        """Return how many training steps up to *step* consumed the rollout."""
        return sum(trained_step <= step for trained_step in self.trained_steps)


class GeneratedRollouts:
    """Remembers the last rollouts by trace id; beyond the limit the oldest one is forgotten first.

    Args:
        state: Key space ``lineage/rollouts/``.

    Attributes:
        awaited: Trace ids that a training step named before their rollouts arrived.
    """

    def __init__(self, state: TranslationState) -> None:
        self._state = state
        self._rollouts: dict[str, GeneratedRollout] = {}
        self._changed: set[str] = set()
        self.awaited: set[str] = set()
        # Stored as well: they are no longer awaited, so nothing else would name them after a
        # restart.
        self._arrived = dict.fromkeys(
            cast("list[str] | None", state.get(_ARRIVED)) or []
        )
        self._number = 0
        rollouts = {
            half: unpacked(GeneratedRollout, value)
            for half, value in named(state, _ROLLOUTS).items()
        }
        # By arrival, in which they are forgotten: the state is ordered by key.
        for half in sorted(rollouts, key=lambda half: rollouts[half].number):
            self._rollouts[half] = rollouts[half]
            self._number = rollouts[half].number

    def add(self, trace_id: str, rollout: GeneratedRollout) -> None:
        """Remember a rollout; one that is known keeps its training steps and its place in the order.

        Beyond `_LIMIT` the oldest one is forgotten: the row of a step that names it counts it as
        unknown.
        """
        half = trace_id[:_HALF]
        earlier = self._rollouts.get(half)
        if earlier is not None:
            rollout.inherit(earlier)
        else:
            self._number += 1
            rollout.arrive(self._number)
        self._rollouts[half] = rollout
        self._changed.add(half)
        if trace_id in self.awaited:
            self.awaited.discard(trace_id)
            self._arrived[trace_id] = None
        if len(self._rollouts) > _LIMIT:
            oldest = next(iter(self._rollouts))
            del self._rollouts[oldest]
            self._state.delete(f"{_ROLLOUTS}{oldest}")
            self._changed.discard(oldest)

    def get(self, trace_id: str) -> GeneratedRollout | None:
        """Return a rollout, ``None`` when it is not known, or no longer."""
        return self._rollouts.get(trace_id[:_HALF])

    def changed(self, trace_id: str) -> None:
        """Note that the facts of a known rollout were changed."""
        self._changed.add(trace_id[:_HALF])

    def revise(
        self,
        trace_id: str,
        *,
        reward: float | None = None,
        is_sampled_out: bool = False,
    ) -> None:
        """Note the reward of a rollout that came later, or that it is sampled out.

        An unknown rollout is ignored.
        """
        rollout = self.get(trace_id)
        if rollout is None:
            return
        rollout.revise(reward, is_sampled_out=is_sampled_out)
        if reward is not None and rollout.trained_steps:
            # The training step that used it has a row with the old reward, which must be corrected.
            self._arrived[trace_id] = None
        self.changed(trace_id)

    def take_arrived(self) -> list[str]:
        """Return the awaited rollouts that have arrived since the last call, and used ones with another reward.

        Each is returned once: the caller corrects the rows of the steps that named it.
        """
        arrived = list(self._arrived)
        self._arrived.clear()
        return arrived

    def all(self) -> Iterator[GeneratedRollout]:
        """Return all remembered rollouts."""
        return iter(self._rollouts.values())

    def flush(self) -> None:
        """Write what changed to the state.

        Without arrived rollouts their key goes, and is not written again with every batch.
        """
        for half in self._changed:
            self._state.set(f"{_ROLLOUTS}{half}", packed(self._rollouts[half]))
        self._changed.clear()
        if self._arrived:
            self._state.set(_ARRIVED, list(self._arrived))
        elif self._state.get(_ARRIVED) is not None:
            self._state.delete(_ARRIVED)
