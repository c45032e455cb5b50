"""Step metrics of W&B's ``define_metric()``: which values of a row belong together, their step and their role."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from otel_bridge.errors import any_error

_MAX_KEYS = 10_000
"""Most keys whose group is remembered."""


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
        self._exact: dict[str, str] = {}
        self._globs: dict[str, str] = {}
        self._groups: dict[str, Group] = {}
        self._latest: dict[str, int | None] = {}

    @property
    def defined(self) -> bool:
        """Return whether any metric has a step metric."""
        return bool(self._latest)

    def define(self, name: str, step_metric: str | None) -> None:
        """Note one definition; *name* may end with ``*``.

        A later definition of a name replaces an earlier one.
        """
        # A definition may change the group of any key.
        self._groups.clear()
        if step_metric:
            self._latest.setdefault(step_metric, None)
        if name.endswith("*"):
            self._globs[name[:-1]] = step_metric or ""
        else:
            self._exact[name] = step_metric or ""

    def defines(self, name: str) -> bool:
        """Return whether *name* has a definition."""
        if name.endswith("*"):
            return name[:-1] in self._globs
        return name in self._exact

    def group_of(self, key: str) -> Group:
        """Return the group of *key*: an exact definition counts before the longest glob."""
        group = self._groups.get(key)
        if group is None:
            # Bounds the memory of ever-new keys; the groups of those in use are looked up again.
            if len(self._groups) >= _MAX_KEYS:
                self._groups.clear()
            group = self._find(key)
            self._groups[key] = group
        return group

    def _find(self, key: str) -> Group:
        if key in self._latest:  # a step metric belongs to the values whose step it is
            return Group(self._role(key.rpartition("/")[0] + "/", key), key)
        exact = self._exact.get(key)
        # wandb-core 0.28 takes any of several globs that match (a Go map), here the longest counts.
        prefix = max(
            (glob for glob in self._globs if key.startswith(glob)),
            key=len,
            default=None,
        )
        if exact or prefix is None:
            return Group(None, exact or "")
        metric = self._globs[prefix]
        return Group(self._role(prefix, metric), metric)

    def _role(self, prefix: str, metric: str) -> str | None:
        """Return the role of the keys below *prefix*: only where the step metric is directly below it too.

        ``*`` over ``train/global_step`` makes no role, because it also covers the keys of an
        evaluation.
        """
        role = prefix.removesuffix("/")
        shared = (
            prefix.endswith("/")
            and metric.rpartition("/")[0] == role
            and self._globs.get(prefix) == metric
        )
        if shared and role and "/" not in role:
            return role
        return None

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

        Args:
            group: The group.
            counter: Step of a group without a step metric, and where the metric has no whole number
                as its value.
            row: Values of the row, which may hold the step metric; else its latest value is the
                step, as in W&B.
        """
        if group.metric in row:
            latest = whole(row[group.metric])
        else:
            latest = self._latest.get(group.metric)
        if latest is None:
            return counter
        return latest

    def split(
        self, values: Mapping[str, Any]
    ) -> Iterable[tuple[Group, dict[str, Any]]]:
        """Return *values* by group.

        A step metric that is the axis of its role is left out: it is the row's step.
        """
        parts: dict[Group, dict[str, Any]] = {}
        for key, value in values.items():
            group = self.group_of(key)
            part = parts.setdefault(group, {})
            if not (group.role and key == group.metric == f"{group.role}/step"):
                part[key] = value
        return parts.items()


def whole(value: Any) -> int | None:
    """Return *value* as a step; ``None`` when it is not a whole number, e.g. a part of an epoch."""
    try:
        number = float(value)
        if math.isfinite(number) and number.is_integer():
            return int(value)
        return None
    except any_error():  # an object of the user's
        return None
