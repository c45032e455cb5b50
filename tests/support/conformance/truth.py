"""What a tracker must show of the recorded job, and how what it shows is compared with it.

The truth is written down by the job's builder beside each message; nothing of translation has a part in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from otel_bridge.records import Distribution, Json, Status, Value, axis_of, key_of
from otel_bridge.testing.contents import Contents, HeldScalar, flat_configs, value_text
from otel_bridge.testing.contract.compare import same

Triple: TypeAlias = tuple[str, "int | None", str]
"""Full key (``<role>/<key>``), step, value as `value_text` gives it."""


@dataclass(frozen=True, slots=True)
class Shown:
    """Holds what a tracker shows of one run, read through its own API.

    Attributes:
        contents: Numbers, distributions, rollouts, evaluations, config, status; doubles as often as they are there.
        rows: How many rows it keeps; ``None`` where it keeps none, only series.
    """

    contents: Contents
    rows: int | None = None


@dataclass(slots=True)
class ExpectedRun:
    """Holds what was recorded.

    Attributes:
        scalars: Every number of a key that every tracker takes as it is.
        unplaced: Keys whose rows have no step: a tracker may show any step.
        odd: Numbers of keys that a tracker may have to clean, by the key as it was given.
        distributions: Full key and step to count, minimum and maximum.
        rows: How many rows there are.
        rollouts: Trace id to its reward.
        evaluations: Rollout, name and value.
        configs: The merged config of each role.
        status: How the run ended.
    """

    scalars: Counter[Triple] = field(default_factory=Counter[Triple])
    unplaced: set[str] = field(default_factory=set[str])
    odd: dict[str, Counter[tuple[int | None, str]]] = field(
        default_factory=dict[str, "Counter[tuple[int | None, str]]"]
    )
    distributions: dict[tuple[str, int | None], tuple[int, float, float]] = field(
        default_factory=dict[tuple[str, "int | None"], tuple[int, float, float]]
    )
    rows: int = 0
    rollouts: dict[str, float | None] = field(default_factory=dict[str, "float | None"])
    evaluations: Counter[tuple[str, str, float]] = field(
        default_factory=Counter[tuple[str, str, float]]
    )
    configs: dict[str | None, Mapping[str, Json]] = field(
        default_factory=dict[str | None, Mapping[str, Json]]
    )
    status: Status = Status.FINISHED

    def row(
        self,
        role: str | None,
        step: int | None,
        values: Mapping[str, Value],
        *,
        odd: bool = False,
    ) -> None:
        """Note one row; a user's key that would be the axis is shown as ``…_value``."""
        self.rows += 1
        for given, value in values.items():
            key = key_of(role, given)
            key = f"{key}_value" if key == axis_of(role) else key
            if isinstance(value, Distribution):
                self.distributions[key, step] = (value.count, value.min, value.max)
            elif odd:
                self.odd.setdefault(key, Counter())[step, value_text(value)] += 1
            else:
                self.scalars[key, step, value_text(value)] += 1
                if step is None:
                    self.unplaced.add(key)


@dataclass(frozen=True, slots=True)
class KeptKinds:
    """States what a tracker keeps; what it does not keep is not compared."""

    status: bool = True
    config: bool = True
    rollouts: bool = True
    evaluations: bool = True
    distributions: bool = True
    unplaced: bool = True
    odd: bool = True


def compare(shown: Shown, truth: ExpectedRun, keeps: KeptKinds) -> None:
    """Compare what is shown with what was recorded.

    Raises:
        AssertionError: They differ; the message says what is missing and what is too much.
    """
    contents = shown.contents
    scalars = contents.scalars
    plain = {key for key, _, _ in truth.scalars}
    _same_scalars([scalar for scalar in scalars if scalar.key in plain], truth, keeps)
    _same_odd([scalar for scalar in scalars if scalar.key not in plain], truth, keeps)
    if keeps.distributions:
        _same_distributions(contents, truth)
    if shown.rows is not None:
        same(shown.rows, truth.rows, "number of rows")
    _same_rest(contents, truth, keeps)


def _same_scalars(
    scalars: list[HeldScalar], truth: ExpectedRun, keeps: KeptKinds
) -> None:
    def comparable(triples: Counter[Triple]) -> Counter[Triple]:
        return Counter(
            {
                (key, None if key in truth.unplaced else step, value): count
                for (key, step, value), count in triples.items()
                if keeps.unplaced or key not in truth.unplaced
            }
        )

    held: Counter[Triple] = Counter()
    for scalar in scalars:
        key, step, value = scalar.triple
        held[key, None if key in truth.unplaced else step, value] += 1
    same(comparable(held), comparable(truth.scalars), "scalars")


def _same_odd(scalars: list[HeldScalar], truth: ExpectedRun, keeps: KeptKinds) -> None:
    """Compare series by their numbers: each odd key has one of its own, under whatever name."""
    series: dict[str, Counter[tuple[int | None, str]]] = {}
    for scalar in scalars:
        key, step, value = scalar.triple
        series.setdefault(key, Counter())[step, value] += 1
    wanted = Counter(frozenset(numbers.items()) for numbers in truth.odd.values())
    seen = Counter(frozenset(numbers.items()) for numbers in series.values())
    if not keeps.odd:  # those it shows all the same are right
        for numbers in wanted:
            seen.pop(numbers, None)
        wanted.clear()
    what = "series of odd keys, and of keys that support/conformance/job.py does not expect"
    same(seen, wanted, f"{what}, shown as {sorted(series)}")


def _same_distributions(contents: Contents, truth: ExpectedRun) -> None:
    held = Counter((held.key, held.step) for held in contents.distributions)
    same(held, Counter(truth.distributions.keys()), "distributions")
    for one in contents.distributions:
        count, low, high = truth.distributions[one.key, one.step]
        seen = (count if one.count is None else one.count, one.min, one.max)
        same(
            seen,
            (count, low, high),
            f"count, minimum and maximum of {one.key} at step {one.step}",
        )


def _same_rest(contents: Contents, truth: ExpectedRun, keeps: KeptKinds) -> None:
    if keeps.rollouts:
        same(
            Counter(held.id for held in contents.rollouts),
            Counter(truth.rollouts.keys()),
            "rollouts",
        )
        rewards = {held.id: held.reward for held in contents.rollouts}
        same(rewards, dict(truth.rollouts), "rewards")
    if keeps.evaluations:
        same(Counter(contents.evaluations), truth.evaluations, "evaluations")
    if keeps.config:
        same(contents.config, flat_configs(truth.configs.items()), "config")
    if keeps.status:
        same(contents.status, truth.status, "status")
