"""The tokens of one step: sums of each quantity over all spans, and the figures of rollouts not shown yet. Pure.

Also the values of both that trackers show. Owns ``tokens/step/`` of the state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from otel_bridge.records import TOKENS_ID, Value
from otel_bridge.tokens.statistics import (
    ABSOLUTE,
    FIGURES,
    TENTHS,
    Figure,
    distribution_of,
)
from otel_bridge.translation.step_rows import CollectedStep

PREFIX = "tokens/"
MAXIMUM = f"{PREFIX}mismatch/max"
_QUANTILES = {"p01": 0.01, "p10": 0.1, "p50": 0.5, "p90": 0.9, "p99": 0.99}
_BY_POSITION = (ABSOLUTE, FIGURES["entropies"])
_MAX_FIGURES = 64
HALF = 16
"""Hex digits of a trace id that are stored; a chance collision within a step is practically
impossible."""


@dataclass(slots=True)
class Total:
    """Holds the sums of one quantity over all tokens of a step, as `Figure` does over those of a span."""

    count: float = 0.0
    sum: float = 0.0
    maximum: float = 0.0
    tenths: list[list[float]] = field(
        default_factory=lambda: [[0.0] * TENTHS, [0.0] * TENTHS]
    )
    buckets: dict[int, int] = field(default_factory=dict[int, int])

    def add(self, count: float, subtotal: float, maximum: float = 0.0) -> None:
        """Add the tokens of one rollout."""
        self.count += count
        self.sum += subtotal
        self.maximum = max(self.maximum, maximum)

    def add_positions(self, figure: Figure) -> None:
        """Add what a figure has of all its rollouts together: tenths and buckets.

        A third party may leave out either; then it adds zeros.
        """
        self.tenths = (figure.tenths + self.tenths).tolist()
        for bucket, tokens in figure.buckets.tolist():
            self.buckets[bucket] = self.buckets.get(bucket, 0) + tokens


@dataclass(slots=True)
class TokenStep(CollectedStep):
    """Holds the tokens of one step of one role and attempt.

    Attributes:
        totals: Sums by figure.
        counted: Half of a trace id to a bit for each figure, in the order of `totals`, that counts
            the rollout.
        facts: What trackers show of rollouts that have not arrived yet, or of which more may come:
            trace id, then name, to the value.
    """

    SPACE: ClassVar[str] = "tokens"
    ROW_ID: ClassVar[str] = TOKENS_ID

    totals: dict[str, Total] = field(default_factory=dict[str, Total])
    counted: dict[str, int] = field(default_factory=dict[str, int])
    facts: dict[str, dict[str, float]] = field(
        default_factory=dict[str, dict[str, float]]
    )

    @property
    def size(self) -> int:
        """Number of spans of the step, and of rollouts that it counts."""
        return len(self.spans) + len(self.counted)

    def add(
        self,
        rollouts: Sequence[str],
        figures: Mapping[str, Figure],
        is_shown: Callable[[str], bool],
    ) -> int:
        """Add figures of *rollouts*.

        Return how many of them the step has already, each of a rollout and a name. These are not
        added: ranks of one model may all send the same rollout. Figures beyond `_MAX_FIGURES` are
        ignored.

        Args:
            rollouts: Trace ids, in the order of the figures.
            figures: Figures by name.
            is_shown: Callable that decides whether trackers may show a rollout.
        """
        twice = 0
        for name, figure in figures.items():
            # Each figure is a bit of every rollout and several keys of metrics.
            if name not in self.totals and len(self.totals) >= _MAX_FIGURES:
                continue
            total = self.totals.setdefault(name, Total())
            bit = 1 << list(self.totals).index(name)
            repeated = 0
            for trace_id, sums in zip(
                rollouts, figure.rollouts.T.tolist(), strict=True
            ):
                half = trace_id[:HALF]
                counted_bits = self.counted.get(half, 0)
                # Each rollout counts once a figure; the caller reports what came twice.
                if counted_bits & bit:
                    repeated += 1
                    continue
                facts = rollout_values(name, *sums)
                # Without tokens it is not counted, so that a later span with its tokens still is.
                if not facts:
                    continue
                self.counted[half] = counted_bits | bit
                total.add(*sums)
                if is_shown(trace_id):
                    self.facts.setdefault(trace_id, {}).update(facts)
            # These are sums over all rollouts of a span: no single one can be left out.
            if not repeated:
                total.add_positions(figure)
            twice += repeated
        return twice

    def take_facts(self, trace_id: str) -> dict[str, float]:
        """Remove and return what trackers show of a rollout."""
        self.is_stored = False
        return self.facts.pop(trace_id)


# --- what trackers show ---------------------------------------------------------------------------
def step_values(totals: Mapping[str, Total], rollouts: int) -> dict[str, Value]:
    """Return the values of a step's row, by key without role; of figures without tokens none.

    Quantiles are of log-probabilities alone, and positions of two figures, or a step would have
    hundreds of keys.

    Args:
        totals: Sums over all tokens, by figure.
        rollouts: Number of rollouts.
    """
    tokens = max((total.count for total in totals.values()), default=0.0)
    values: dict[str, Value] = {
        f"{PREFIX}rollouts": rollouts,
        f"{PREFIX}count": int(tokens),
    }
    for name, total in totals.items():
        # A third party may send buckets of rollouts without tokens.
        if not total.count:
            continue
        values |= rollout_values(name, total.count, total.sum, total.maximum)
        if total.buckets:
            distribution = distribution_of(total.buckets)
            for label, share in _QUANTILES.items():
                values[f"{PREFIX}{name}/{label}"] = distribution.quantile(share)
        if name in _BY_POSITION:
            for tenth, (count, subtotal) in enumerate(zip(*total.tenths), 1):  # noqa: B905  # both are of ten
                if count:
                    values[f"{PREFIX}{name}/tenth_{tenth:02d}"] = subtotal / count
    return values


def rollout_values(
    name: str, count: float, total: float, maximum: float | None = None
) -> dict[str, float]:
    """Return the values of the tokens of a figure: their mean, and the mismatch's maximum.

    Nothing without any.
    """
    values: dict[str, float] = {}
    if count:
        values[f"{PREFIX}{name}"] = total / count
        if name == ABSOLUTE and maximum is not None:
            values[MAXIMUM] = maximum
    return values
