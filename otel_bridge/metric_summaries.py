"""Definitions of metrics by W&B's rules for ``define_metric()``, and their summaries. Pure.

A definition is for a key or, with ``*`` at the end of its name, for all keys that begin alike.
Smallest, largest and mean are those of the numbers of a key, and a NaN makes them NaN. The first
and the last value may be any.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")
SUMMARY_KINDS = ("min", "max", "mean", "first", "last")
NO_SUMMARY = "none"
"""Kind of a key that a summary does not show at all."""
_KINDS = frozenset({*SUMMARY_KINDS, NO_SUMMARY})
_OF_ANY = frozenset({"first", "last"})
_NUMBERS = frozenset({int, float})
_MAX_NAMES = 10_000


class KeyDefinitions(Generic[T]):
    """Holds what is defined for keys: that of the exact key, else that of the longest glob."""

    def __init__(self) -> None:
        self._values: dict[str, T] = {}
        self._by_key: dict[str, T | None] = {}

    def named(self, name: str) -> T | None:
        """Return what is defined under exactly *name*."""
        return self._values.get(name)

    def put(self, name: str, value: T | None) -> None:
        """Define *value* for *name*, in place of an earlier one; ``None`` removes it.

        A new name beyond `_MAX_NAMES` is ignored, uncounted: its keys are as if undefined.
        """
        # A definition may concern any key.
        self._by_key.clear()
        if value is None:
            self._values.pop(name, None)
        elif name in self._values or len(self._values) < _MAX_NAMES:
            self._values[name] = value

    def of(self, key: str) -> T | None:
        """Return what is defined for *key*, which may be a glob's name; ``None`` without a definition.

        Results are kept until the next definition.
        """
        # Hot path: the same keys come with each row.
        if key in self._by_key:
            return self._by_key[key]
        # Bounds the memory of ever-new keys.
        if len(self._by_key) >= _MAX_NAMES:
            self._by_key.clear()
        value = self._values.get(key)
        if value is None:
            # wandb-core 0.28 takes any of several globs that match (a Go map), here the longest.
            globs = [name for name in self._values if _matches(name, key)]
            value = self._values[max(globs, key=len)] if globs else None
        self._by_key[key] = value
        return value


def _matches(name: str, key: str) -> bool:
    """Return whether *name* is a glob for *key*."""
    return name.endswith("*") and key.startswith(name[:-1])


class SummaryDefinitions:
    """Holds which kinds of summary the keys of one run have.

    Attributes:
        defined: Whether any key has one.
    """

    def __init__(self) -> None:
        self._kinds = KeyDefinitions[frozenset[str]]()
        self.defined = False

    def define(
        self, name: str, kinds: Collection[str], *, replace: bool = False
    ) -> list[str]:
        """Note the kinds of a key or glob.

        Args:
            name: Key, or the beginning of keys with ``*``.
            kinds: `SUMMARY_KINDS`, `NO_SUMMARY`, or ``copy``: the plain last value.
            replace: Whether kinds of an earlier definition of *name* end; else both hold.

        Returns:
            Kinds that trackers cannot show: `NO_SUMMARY`, and those that are not known.
        """
        new_kinds = _KINDS.intersection(kinds)
        if not replace:
            new_kinds |= self._kinds.named(name) or frozenset()
        self._kinds.put(name, new_kinds)
        self.defined = self.defined or bool(new_kinds)
        return [kind for kind in kinds if kind not in SUMMARY_KINDS and kind != "copy"]

    def kinds_of(self, key: str) -> frozenset[str]:
        """Return the kinds of *key*, which may be a glob's name."""
        return self._kinds.of(key) or frozenset()


@dataclass(slots=True)
class KeySummary:
    """Holds what the values of one key have come to.

    Attributes:
        count: Number of its numbers, to which *total*, *low* and *high* belong.
    """

    count: int = 0
    total: float = 0.0
    low: float = math.inf
    high: float = -math.inf
    first: Any = None
    last: Any = None

    @classmethod
    def begun(cls, value: Any) -> KeySummary:
        """Return the summary of a key whose first value is *value*."""
        summary = cls(first=value)
        summary.add(value)
        return summary

    def add(self, value: Any) -> None:
        """Add one value; only numbers count for smallest, largest and mean.

        A NaN stays in all three: no number is less or more.
        """
        self.last = value
        # By type: a bool is an int in Python, and has no minimum or mean to show.
        if type(value) in _NUMBERS:
            self.count += 1
            self.total += value
            is_nan = value != value  # noqa: PLR0124  # an int may be too long for math.isnan()
            if value < self.low or is_nan:  # a NaN stays: no number is less
                self.low = value
            if value > self.high or is_nan:
                self.high = value

    def result(self, kinds: Collection[str]) -> dict[str, Any]:
        """Return the values of *kinds*; those of numbers only when there was one.

        Empty for kinds that are not known.
        """
        values = {
            "min": self.low,
            "max": self.high,
            "mean": self.total / max(self.count, 1),
            "first": self.first,
            "last": self.last,
        }
        shown_values: dict[str, Any] = {}
        for kind, value in values.items():
            if kind in kinds and (self.count or kind in _OF_ANY):
                shown_values[kind] = value
        return shown_values
