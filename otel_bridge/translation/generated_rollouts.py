"""The last rollouts of the run, kept or sampled out: what a training step needs to know of those it consumes. Pure.

Owns ``lineage/rollouts/`` of the state.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any

from otel_bridge.translation.packing import packed, unpacked_below
from otel_bridge.translation.state import TranslationState

TRAINED_STEP = "trained_step"
"""Name of the value that a rollout gets: the last training step that consumed it; the label has all
of them."""
_ROLLOUTS = "lineage/rollouts/"
_LIMIT = 50_000
"""Most rollouts that are remembered; training steps count older ones as unknown."""
_HALF = 16
"""Hex digits of a trace id that are stored; a chance collision within a run is practically
impossible."""


@dataclass(frozen=True, slots=True)
class GeneratedRollout:
    """Holds what is remembered of one rollout.

    Attributes:
        step: Step that the rollout was generated for; ``None`` also for one of an evaluation, which training
            does not pass.
        policy_version: Version of the weights that sampled it.
        end_unix_ns: Its end, or the time of the call that recorded it.
        dataset: Name of its dataset, or environment; empty without one.
        is_sampled_out: Whether no tracker shows it.
        trained_steps: Training steps that consumed it, ascending, each once.
        unused: Reason for which it is not used; empty without one.
    """

    step: int | None
    policy_version: int | None
    reward: float | None
    end_unix_ns: int
    dataset: str = ""
    is_sampled_out: bool = False
    trained_steps: list[int] = field(default_factory=list[int])
    unused: str = ""

    def uses(self, step: int) -> int:
        """Return how many training steps up to *step* consumed the rollout."""
        return sum(trained_step <= step for trained_step in self.trained_steps)


class GeneratedRollouts:
    """Remembers the last rollouts by trace id; beyond the limit the oldest one is forgotten first.

    Args:
        state: Key space ``lineage/rollouts/``.
    """

    def __init__(self, state: TranslationState) -> None:
        self._state = state
        self._news: dict[str, None] = {}
        stored = unpacked_below(GeneratedRollout, state, _ROLLOUTS).items()
        # The state is ordered by key. By their ends, which is nearly the order of their arrival, in
        # which they are forgotten.
        ordered = sorted(stored, key=lambda entry: entry[1].end_unix_ns)
        self._rollouts = dict(ordered)

    def add(self, trace_id: str, rollout: GeneratedRollout) -> None:
        """Remember a rollout; one that is known keeps its training steps and its place in the order.

        A training step may have named it before: spans and steps come over separate connections.

        Beyond `_LIMIT` the oldest one is forgotten: the row of a step that names it counts it as
        unknown.
        """
        half = trace_id[:_HALF]
        earlier = self._rollouts.get(half)
        if earlier is None:
            self._news[trace_id] = None
        else:
            rollout = replace(
                rollout, trained_steps=earlier.trained_steps, unused=earlier.unused
            )
        self._put(half, rollout)
        if len(self._rollouts) > _LIMIT:
            oldest = next(iter(self._rollouts))
            del self._rollouts[oldest]
            self._state.delete(f"{_ROLLOUTS}{oldest}")

    def get(self, trace_id: str) -> GeneratedRollout | None:
        """Return a rollout, ``None`` when it is not known, or no longer."""
        return self._rollouts.get(trace_id[:_HALF])

    def revise(self, trace_id: str, **facts: Any) -> None:
        """Replace facts of a rollout, by the names of its attributes.

        An unknown rollout is ignored.
        """
        rollout = self.get(trace_id)
        if rollout is None:
            return
        self._put(trace_id[:_HALF], replace(rollout, **facts))
        if "reward" in facts:
            # The training steps that used it have rows with the old reward.
            self._news[trace_id] = None

    def take_news(self) -> list[str]:
        """Return the rollouts that have arrived since the last call, or have another reward, each once.

        The caller corrects the rows of the steps that name them.
        """
        news = list(self._news)
        self._news.clear()
        return news

    def all(self) -> Collection[GeneratedRollout]:
        """Return all remembered rollouts."""
        return self._rollouts.values()

    def _put(self, half: str, rollout: GeneratedRollout) -> None:
        """Keep a rollout, in memory and in the state."""
        self._rollouts[half] = rollout
        self._state.set(f"{_ROLLOUTS}{half}", packed(rollout))
