"""Sums over the tokens of a step, or of one rollout -> the values that trackers show. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from otel_bridge.records import Value
from otel_bridge.tokens.names import ABSOLUTE, FIGURES
from otel_bridge.tokens.statistics import quantile
from otel_bridge.translation.tokens.step import Total

PREFIX = "tokens/"
MAXIMUM = "mismatch/max"
_QUANTILES = {"p01": 0.01, "p10": 0.1, "p50": 0.5, "p90": 0.9, "p99": 0.99}
_BY_POSITION = (ABSOLUTE, FIGURES["entropies"])


def step_values(totals: Mapping[str, Total], rollouts: int) -> dict[str, Value]:
    """Return the values of a step's row, by key without role.

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


def rollout_values(facts: Mapping[str, list[float]]) -> dict[str, float]:
    """Return the figures of one rollout by name, from the count, sum and maximum of each."""
    values = {
        f"{PREFIX}{name}": total / count
        for name, (count, total, _) in facts.items()
        if count
    }
    if ABSOLUTE in facts:
        values[f"{PREFIX}{MAXIMUM}"] = facts[ABSOLUTE][2]
    return values
