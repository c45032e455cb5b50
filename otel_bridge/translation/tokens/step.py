"""The tokens of one step: sums of each quantity over all spans, and the figures of rollouts not shown yet. Pure.

Owns ``tokens/step/`` of the state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import add
from typing import Any, ClassVar, cast

from otel_bridge.records import TOKENS_ID, Json
from otel_bridge.tokens.statistics import DECILES, Figure
from otel_bridge.translation.span_steps import SpanStep, ids_of

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
    buckets: Counter[int] = field(default_factory=Counter[int])

    def add(self, count: float, total: float, highest: float) -> None:
        """Add the tokens of one rollout."""
        self.count += count
        self.sum += total
        self.max = max(self.max, highest)

    def add_positions(self, figure: Figure) -> None:
        """Add what a figure has of all its rollouts together: tenths and buckets."""
        self.decile_counts = list(map(add, self.decile_counts, figure.decile_counts))
        self.decile_sums = list(map(add, self.decile_sums, figure.decile_sums))
        self.buckets.update(figure.buckets)

    def to_json(self) -> list[Json]:
        """Return the sums as stored in the state."""
        pairs: list[Json] = [number for pair in self.buckets.items() for number in pair]
        return [
            self.count,
            self.sum,
            self.max,
            [*self.decile_counts],
            [*self.decile_sums],
            pairs,
        ]

    @classmethod
    def from_json(cls, facts: list[Any]) -> Total:
        """Restore what `to_json` returned."""
        count, total, highest, decile_counts, decile_sums, pairs = facts
        buckets = Counter(dict(zip(pairs[::2], pairs[1::2], strict=True)))
        return cls(
            count, total, highest, list(decile_counts), list(decile_sums), buckets
        )


@dataclass(slots=True)
class TokenStep(SpanStep):
    """Holds the tokens of one step of one role and attempt.

    Attributes:
        totals: Sums by figure.
        counted: Half of a trace id to a bit for each figure, in the order of `totals`, that counts
            the rollout.
        facts: Figures of the rollouts that trackers may show: trace id to figure to count, sum and
            maximum.
    """

    SPACE: ClassVar[str] = "tokens"
    ROW_ID: ClassVar[str] = TOKENS_ID

    totals: dict[str, Total] = field(default_factory=dict[str, Total])
    counted: dict[str, int] = field(default_factory=dict[str, int])
    facts: dict[str, dict[str, list[float]]] = field(
        default_factory=dict[str, dict[str, list[float]]]
    )

    @property
    def rollouts(self) -> int:
        """Number of rollouts that the step counts."""
        return len(self.counted)

    def add(
        self,
        rollouts: tuple[str, ...],
        figures: Mapping[str, Figure],
        is_shown: Callable[[str], bool],
    ) -> int:
        """Add figures of *rollouts*.

        Return how many of them the step has already, each of a rollout and a name.

        Args:
            rollouts: Trace ids, in the order of the figures.
            figures: Figures by name.
            is_shown: Callable that decides whether trackers may show a rollout.
        """
        twice = 0
        may_show = [is_shown(trace_id) for trace_id in rollouts]
        for name, figure in figures.items():
            # Each figure is a bit of every rollout and several keys of metrics.
            if name not in self.totals and len(self.totals) >= _MAX_FIGURES:
                continue
            total = self.totals.setdefault(name, Total())
            bit = 1 << list(self.totals).index(name)
            repeated = 0
            maxima = figure.maxima or [0.0] * len(rollouts)
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
                total.add(figure.counts[index], figure.sums[index], maxima[index])
                if may_show[index]:
                    facts = self.facts.setdefault(trace_id, {})
                    facts[name] = [
                        figure.counts[index],
                        figure.sums[index],
                        maxima[index],
                    ]
            # These are sums over all rollouts of a span: no single one can be left out.
            if not repeated:
                total.add_positions(figure)
            twice += repeated
        return twice

    def has(self, trace_id: str, name: str) -> bool:
        """Return whether a figure counts a rollout."""
        if name not in self.totals:
            return False
        return bool(
            self.counted.get(trace_id[:HALF], 0) >> list(self.totals).index(name) & 1
        )

    def to_json(self) -> Json:
        """Return the step as stored in the state."""
        totals: list[Json] = [
            [name, total.to_json()] for name, total in self.totals.items()
        ]
        facts = cast("dict[str, Json]", self.facts)
        return [
            *self.track, self.number, self.last_ns, self.end_unix_ns, "".join(self.spans), totals,
            {**self.counted}, {**facts}, self.changed_ns, self.revision,
        ]  # fmt: skip

    @classmethod
    def from_json(cls, value: object) -> TokenStep:
        """Restore what `to_json` returned."""
        (
            role,
            attempt,
            number,
            last_ns,
            end_ns,
            spans,
            totals,
            counted,
            facts,
            changed_ns,
            revision,
        ) = cast("list[Any]", value)
        return cls(
            (role, attempt), number, last_ns, end_ns, changed_ns, revision, ids_of(spans),
            {name: Total.from_json(total) for name, total in totals},
            dict(counted), {trace_id: dict(figures) for trace_id, figures in facts.items()},
        )  # fmt: skip
