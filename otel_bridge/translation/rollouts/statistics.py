"""Merged statistics of all rollouts of one step, kept or sampled out -> metric values.

Inputs are single rewards, and sums that emitters made of the rollouts they sampled out. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from otel_bridge.records import Json, Value
from otel_bridge.translation.decode.attributes import as_float, as_int

NO_GROUP = ""
"""Key of rollouts without a group; these rollouts do not form a group together."""
_PREFIX = "rollouts"


@dataclass(slots=True)
class Sums:
    """Holds count, sum, sum of squares, minimum and maximum of rewards."""

    count: int = 0
    sum: float = 0.0
    sum_squares: float = 0.0
    min: float = math.inf
    max: float = -math.inf

    def merge(self, sums: Sums) -> None:
        """Add the numbers of *sums*."""
        self.count += sums.count
        self.sum += sums.sum
        self.sum_squares += sums.sum_squares
        self.min = min(self.min, sums.min)
        self.max = max(self.max, sums.max)

    @property
    def flat(self) -> bool:
        """Return whether there are at least two rewards, all equal."""
        return self.count > 1 and self.min == self.max


@dataclass(slots=True)
class Staleness:
    """Holds count, sum and maximum of step less policy version."""

    count: int = 0
    sum: int = 0
    max: int = 0

    def add(self, count: int, total: int, highest: int) -> None:
        """Add *count* rollouts that are *total* steps behind in sum and *highest* at most."""
        # The first may be negative: 0 would hide it.
        self.max = max(self.max, highest) if self.count else highest
        self.count += count
        self.sum += total


@dataclass(slots=True)
class Statistics:
    """Holds the statistics of one step.

    It has sums alone: an emitter does not send the rewards of the rollouts that it sampled out. So
    a metric must follow from sums that can be merged; a quantile cannot.

    Attributes:
        total: Number of rollouts, with or without a reward.
        groups: Group id to the sums of its rewards.
        flat_groups: Number of groups without variance among the folded ones.
        staleness: Step less policy version, for rollouts that name a version.
    """

    total: int = 0
    groups: dict[str, Sums] = field(default_factory=dict[str, Sums])
    flat_groups: int = 0
    staleness: Staleness = field(default_factory=Staleness)

    def add(
        self, group: str | None, reward: float | None, staleness: int | None = None
    ) -> None:
        """Count one rollout; a reward that is not finite is ignored."""
        self.total += 1
        if staleness is not None:
            self.staleness.add(1, staleness, staleness)
        # One NaN would make every mean of the step NaN.
        if reward is not None and math.isfinite(reward):
            self._merge(
                group or NO_GROUP, Sums(1, reward, reward * reward, reward, reward)
            )

    def add_sampled_out(self, rollouts: int, body: Mapping[str, Json]) -> None:
        """Count *rollouts* that an emitter sampled out; invalid sums of a group are ignored.

        *body*: group id to count, sum, sum_squares, min, max. It may come from any producer.
        """
        counted = 0
        for group, value in body.items():
            sums = _sums(value)
            if sums is not None:
                counted += sums.count
                self._merge(group, sums)
        # Some have no reward, and an emitter may state fewer than its sums hold.
        self.total += max(rollouts, counted)

    def _merge(self, group: str, sums: Sums) -> None:
        self.groups.setdefault(group, Sums()).merge(sums)

    def fold(self) -> None:
        """Merge all groups into one; the counts stay."""
        self.flat_groups = self._flat_groups()
        whole = self._whole()
        self.groups = {}
        if whole.count:
            self.groups = {NO_GROUP: whole}

    def _flat_groups(self) -> int:
        """Return the number of groups, folded ones too, whose rewards are all equal."""
        flat_groups = self.flat_groups
        for group, sums in self.groups.items():
            flat_groups += group != NO_GROUP and sums.flat
        return flat_groups

    def _whole(self) -> Sums:
        whole = Sums()
        for sums in self.groups.values():
            whole.merge(sums)
        return whole

    def values(self, kept: int, split: str | None) -> dict[str, Value]:
        """Return the metrics, without a role: ``rollouts/total`` …, with *split* ``rollouts/<split>/total`` ….

        Values of rewards are left out when no rollout had one, those of staleness when none names a
        version.
        """
        prefix = f"{_PREFIX}/{split}" if split else _PREFIX
        values: dict[str, Value] = {
            f"{prefix}/total": self.total,
            f"{prefix}/kept": kept,
            f"{prefix}/zero_variance_groups": self._flat_groups(),
        }
        whole = self._whole()
        if whole.count:
            mean = whole.sum / whole.count
            # Rounding may give a tiny negative number, which has no root.
            variance = max(whole.sum_squares / whole.count - mean * mean, 0.0)
            values[f"{prefix}/reward/mean"] = mean
            # Equal rewards have no deviation, whatever rounding leaves of it.
            values[f"{prefix}/reward/std"] = 0.0 if whole.flat else math.sqrt(variance)
            values[f"{prefix}/reward/min"] = whole.min
            values[f"{prefix}/reward/max"] = whole.max
        if self.staleness.count:
            values[f"{prefix}/staleness/mean"] = (
                self.staleness.sum / self.staleness.count
            )
            values[f"{prefix}/staleness/max"] = self.staleness.max
        return values


def _sums(value: Json) -> Sums | None:
    """Read an emitter's sums of one group; return ``None`` when one is missing or not finite.

    A count below 1, or beyond what JSON numbers hold exactly, is invalid too.

    Rollouts of a group without valid sums still count, by the event's own number.
    """
    if not isinstance(value, dict):
        return None
    count = as_int(value.get("count"))
    if count is None or count <= 0 or count > 1 << 53:
        return None
    numbers: list[float] = []
    for name in ("sum", "sum_squares", "min", "max"):
        number = as_float(value.get(name))
        if number is None or not math.isfinite(number):
            return None
        numbers.append(number)
    return Sums(count, *numbers)
