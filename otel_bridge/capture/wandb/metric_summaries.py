"""Summaries of W&B's ``define_metric(summary="min,max,mean,first")`` -> last values ``<key>.min``, as W&B names them.

They are computed in the process that defines them, over the numbers that it logs, and recorded when its run ends.
``last`` and ``copy`` are what a tracker shows anyway.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

_MAX_KEYS: Final = 10_000
_SHOWN_ANYWAY: Final = frozenset({"last", "copy"})
_NUMBERS: Final = frozenset({int, float, bool})


class _Numbers:
    """What the finite numbers of one key have come to."""

    __slots__ = ("count", "first", "high", "low", "total")

    def __init__(self, first: float) -> None:
        self.first = self.low = self.high = self.total = first
        self.count = 1

    def add(self, number: float) -> None:
        """Add one number."""
        self.low, self.high = min(self.low, number), max(self.high, number)
        self.total += number
        self.count += 1


_KINDS: Final[Mapping[str, Callable[[_Numbers], float]]] = {
    "min": lambda numbers: numbers.low,
    "max": lambda numbers: numbers.high,
    "mean": lambda numbers: numbers.total / numbers.count,
    "first": lambda numbers: numbers.first,
}


class MetricSummaries:
    """Definitions of one run, and the numbers of their keys. Its owner locks."""

    def __init__(self) -> None:
        self._exact: dict[str, tuple[str, ...]] = {}
        self._globs: dict[str, tuple[str, ...]] = {}
        self._numbers: dict[str, _Numbers] = {}

    @property
    def defined(self) -> bool:
        """Whether any metric has a summary that is computed here."""
        return bool(self._exact or self._globs)

    def define(self, name: str, kinds: Collection[str]) -> list[str]:
        """Note the summaries of a key, or of all keys that begin as *name* does before its ``*``.

        Returns:
            Kinds that cannot be computed, such as ``best``.
        """
        known = tuple(kind for kind in kinds if kind in _KINDS)
        if known and name.endswith("*"):
            self._globs[name[:-1]] = known
        elif known:
            self._exact[name] = known
        return [kind for kind in kinds if kind not in _KINDS and kind not in _SHOWN_ANYWAY]

    def note(self, values: Mapping[str, Any]) -> None:
        """Take the finite numbers of a row; a number of another key than the defined ones costs one look-up."""
        for key, value in values.items():
            if type(value) not in _NUMBERS or not math.isfinite(value) or not self._kinds_of(key):
                continue
            known = self._numbers.get(key)
            if known is not None:
                known.add(float(value))
            elif len(self._numbers) < _MAX_KEYS:
                self._numbers[key] = _Numbers(float(value))

    def result(self) -> dict[str, float]:
        """Return the summaries by ``<key>.<kind>``."""
        return {
            f"{key}.{kind}": _KINDS[kind](numbers)
            for key, numbers in self._numbers.items()
            for kind in self._kinds_of(key)
        }

    def _kinds_of(self, key: str) -> tuple[str, ...]:
        """Return the kinds of *key*: an exact definition counts before the longest glob."""
        exact = self._exact.get(key)
        if exact is not None or not self._globs:
            return exact or ()
        prefix = max((one for one in self._globs if key.startswith(one)), key=len, default=None)
        return () if prefix is None else self._globs[prefix]
