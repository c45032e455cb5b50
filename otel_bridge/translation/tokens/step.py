"""The tokens of one step: sums of each quantity over all spans, and the figures of rollouts not shown yet. Pure.

Also the values of both that trackers show. Owns ``tokens/step/`` of the state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import add
from typing import ClassVar

from otel_bridge.records import TOKENS_ID, Value
from otel_bridge.tokens.names import ABSOLUTE, FIGURES
from otel_bridge.tokens.statistics import DECILES, Figure, quantile
from otel_bridge.translation.step_rows import SpanStep

PREFIX = "tokens/"
MAXIMUM = "mismatch/max"
_QUANTILES = {"p01": 0.01, "p10": 0.1, "p50": 0.5, "p90": 0.9, "p99": 0.99}
_BY_POSITION = (ABSOLUTE, FIGURES["entropies"])
_MAX_FIGURES = 64
HALF = 16
"""Hex digits of a trace id that are stored; a chance collision within a step is practically
impossible."""


@dataclass(slots=True)
class Total:
    """Holds the sums of one quantity over all tokens of a step."""

    count: float = 0.0
    sum: float = 0.0
    max: float = 0.0
    decile_counts: list[float] = field(default_factory=lambda: [0.0] * DECILES)
    decile_sums: list[float] = field(default_factory=lambda: [0.0] * DECILES)
    buckets: dict[int, int] = field(default_factory=dict[int, int])

    def add(self, figure: Figure, index: int) -> None:
        """Add the tokens of the rollout at *index* of a figure."""
        self.count += figure.counts[index]
        self.sum += figure.sums[index]
        if figure.maxima:
            self.max = max(self.max, figure.maxima[index])

    def add_positions(self, figure: Figure) -> None:
        """Add what a figure has of all its rollouts together: tenths and buckets.

        A third party may leave out either; then it adds zeros.
        """
        self.decile_counts = list(map(add, self.decile_counts, figure.decile_counts))
        self.decile_sums = list(map(add, self.decile_sums, figure.decile_sums))
        for bucket, tokens in figure.buckets.items():
            self.buckets[bucket] = self.buckets.get(bucket, 0) + tokens


@dataclass(slots=True)
class TokenStep(SpanStep):
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
        visible_ids = set(filter(is_shown, rollouts))
        for name, figure in figures.items():
            # Each figure is a bit of every rollout and several keys of metrics.
            if name not in self.totals and len(self.totals) >= _MAX_FIGURES:
                continue
            total = self.totals.setdefault(name, Total())
            bit = 1 << list(self.totals).index(name)
            repeated = 0
            for index, trace_id in enumerate(rollouts):
                counted_bits = self.counted.get(trace_id[:HALF], 0)
                # Each rollout counts once a figure; the caller reports what came twice.
                if counted_bits & bit:
                    repeated += 1
                    continue
                # Without tokens it is not counted, so that a later span with its tokens still is.
                if not figure.counts[index]:
                    continue
                self.counted[trace_id[:HALF]] = counted_bits | bit
                total.add(figure, index)
                if trace_id in visible_ids:
                    facts = self.facts.setdefault(trace_id, {})
                    facts |= rollout_values(name, figure, index)
            # These are sums over all rollouts of a span: no single one can be left out.
            if not repeated:
                total.add_positions(figure)
            twice += repeated
        return twice


# --- what trackers show ---------------------------------------------------------------------------
def step_values(totals: Mapping[str, Total], rollouts: int) -> dict[str, Value]:
    """Return the values of a step's row, by key without role; of figures without tokens none.

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
        if total.count:
            values |= _of_figure(name, total)
    return values


def _of_figure(name: str, total: Total) -> dict[str, Value]:
    """Return the values of one figure, of which there is at least one token.

    Quantiles are of log-probabilities alone, and positions of two figures, or a step would have
    hundreds of keys.
    """
    values: dict[str, Value] = {f"{PREFIX}{name}": total.sum / total.count}
    if name == ABSOLUTE:
        values[f"{PREFIX}{MAXIMUM}"] = total.max
    if total.buckets:
        for label, share in _QUANTILES.items():
            values[f"{PREFIX}{name}/{label}"] = quantile(total.buckets, share)
    if name in _BY_POSITION:
        for tenth, (count, subtotal) in enumerate(
            zip(total.decile_counts, total.decile_sums, strict=True), 1
        ):
            if count:
                values[f"{PREFIX}{name}/tenth_{tenth:02d}"] = subtotal / count
    return values


def rollout_values(name: str, figure: Figure, index: int) -> dict[str, float]:
    """Return the values of the rollout at *index* of a figure; nothing if it has no tokens."""
    values: dict[str, float] = {}
    if figure.counts[index]:
        values[f"{PREFIX}{name}"] = figure.sums[index] / figure.counts[index]
        if name == ABSOLUTE and figure.maxima:
            values[f"{PREFIX}{MAXIMUM}"] = figure.maxima[index]
    return values
