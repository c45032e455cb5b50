"""Step metrics of W&B's ``define_metric()``: which values of a row belong together, their step and their role."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from otel_bridge.errors import any_error_but_signals
from otel_bridge.metric_summaries import KeyDefinitions


class Group(NamedTuple):
    """Names values of a row that share a step.

    Attributes:
        role: Role of the values: the prefix that a glob and its step metric share.
        metric: Key whose value is the step; empty: the step of W&B's counter.
    """

    role: str | None = None
    metric: str = ""


COUNTER = Group()
"""Group of the keys without a step metric."""


class MetricAxes:
    """Holds the definitions of one run, and the latest value of each step metric."""

    def __init__(self) -> None:
        self._groups = KeyDefinitions[Group]()
        self._latest: dict[str, int | None] = {}

    @property
    def defined(self) -> bool:
        """Return whether any metric has a step metric."""
        return bool(self._latest)

    def define(self, name: str, step_metric: str | None) -> None:
        """Note one definition in place of an earlier one of *name*, which may end with ``*``.

        Without a step metric it ends the earlier one.
        """
        if not step_metric:
            self._groups.put(name, None)
            return
        self._latest.setdefault(step_metric, None)
        self._groups.put(name, Group(_role(name, step_metric), step_metric))

    def group_of(self, key: str) -> Group:
        """Return the group of *key*; a step metric belongs to the values whose step it is.

        So ``train/step`` is in the group of ``train/*`` over ``train/step``. A step metric beside
        no such glob is a group of its own: its value is its step, and it has no role.
        """
        if key not in self._latest:
            return self._groups.of(key) or COUNTER
        beside = self._groups.named(key.rpartition("/")[0] + "/*")
        if beside is not None and beside.metric == key:
            return beside
        return Group(None, key)

    def note(self, values: Mapping[str, Any]) -> None:
        """Remember the values of step metrics in *values*."""
        for metric, value in self.of_row(values).items():
            self._latest[metric] = whole(value)

    def of_row(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the step metrics in *values*."""
        return {
            metric: values[metric] for metric in self._latest.keys() & values.keys()
        }

    def step_of(self, group: Group, counter: int, row: Mapping[str, Any]) -> int:
        """Return the step of a group.

        A part of an epoch is not a step: those of rows are whole numbers.

        Args:
            group: The group.
            counter: Step of a group without a step metric, and where the metric has no whole number
                as its value.
            row: Values of the row, which may hold the step metric; else its latest value is the
                step, as in W&B.
        """
        if group.metric and group.metric in row:
            latest = whole(row[group.metric])
        else:
            latest = self._latest.get(group.metric)
        if latest is None:
            return counter
        return latest

    def split(
        self, values: Mapping[str, Any]
    ) -> Iterable[tuple[Group, Mapping[str, Any]]]:
        """Return *values* by group.

        A step metric that is the axis of its role is left out: it is the row's step.

        In another role's row, or without a role, it stays a value: nothing else shows it.
        """
        if not self.defined:  # nearly every program
            return ((COUNTER, values),)
        parts: dict[Group, dict[str, Any]] = {}
        for key, value in values.items():
            group = self.group_of(key)
            part = parts.setdefault(group, {})
            if not (group.role and key == group.metric == f"{group.role}/step"):
                part[key] = value
        return parts.items()


def _role(name: str, metric: str) -> str | None:
    """Return the role of the keys of a glob: only where the step metric is directly below its prefix too.

    ``*`` over ``train/global_step`` makes no role, because it also covers the keys of an
    evaluation.

    ``None`` without one.
    """
    role = name.removesuffix("/*")
    if role != name and "/" not in role and metric.rpartition("/")[0] == role:
        return role or None
    return None


def whole(value: Any) -> int | None:
    """Return *value* as a step; ``None`` when it is not a whole number, e.g. a part of an epoch.

    A text such as ``"7"`` counts: tables hold steps as texts. ``None`` also for infinity, NaN, and
    an object that raises.
    """
    try:
        number = float(value)
        if math.isfinite(number) and number.is_integer():
            return int(value)
        return None
    except any_error_but_signals():  # an object of the user's
        return None
