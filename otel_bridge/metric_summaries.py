"""Summaries of metrics by W&B's rules for ``define_metric(summary="min,max,mean,first,last")``. Pure.

Names may end with ``*``. Smallest, largest and mean are those of the numbers of a key, and a NaN makes them NaN. The
first and the last value may be any.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

SUMMARY_KINDS = ("min", "max", "mean", "first", "last")
NO_SUMMARY = "none"
"""Kind of a key that a summary does not show at all."""
_NUMBERS = frozenset({int, float})
_MAX_NAMES = 10_000
_NOTHING: frozenset[str] = frozenset()


class SummaryDefinitions:
    """Holds which kinds of summary the keys of one run have."""

    def __init__(self) -> None:
        self._exact: dict[str, frozenset[str]] = {}
        self._globs: dict[str, frozenset[str]] = {}
        self._known: dict[str, frozenset[str]] = {}
        self.defined = False

    def define(
        self, name: str, kinds: Collection[str], *, replace: bool = False
    ) -> list[str]:
        """Note the kinds of a key, or of all keys that begin as *name* does before its ``*``.

        Args:
            name: Key, or the beginning of keys with ``*``.
            kinds: `SUMMARY_KINDS`, `NO_SUMMARY`, or ``copy``: the plain last value.
            replace: Whether kinds of an earlier definition of *name* end; else both hold.

        Returns:
            Kinds that trackers cannot show: `NO_SUMMARY`, and those that are not known.
        """
        known = frozenset(
            kind for kind in kinds if kind in SUMMARY_KINDS or kind == NO_SUMMARY
        )
        names, place = (
            (self._globs, name[:-1]) if name.endswith("*") else (self._exact, name)
        )
        if place in names or len(self._exact) + len(self._globs) < _MAX_NAMES:
            names[place] = known if replace else names.get(place, _NOTHING) | known
        self.defined = self.defined or bool(known)
        self._known.clear()
        return [kind for kind in kinds if kind not in SUMMARY_KINDS and kind != "copy"]

    def kinds_of(self, key: str) -> frozenset[str]:
        """Return the kinds of *key*: an exact definition counts before the longest glob. *key* may be a glob's name."""
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _MAX_NAMES:
                self._known.clear()
            found = self._known[key] = self._find(key)
        return found

    def _find(self, key: str) -> frozenset[str]:
        if key.endswith("*"):
            return self._globs.get(key[:-1], _NOTHING)
        exact = self._exact.get(key)
        if exact is not None:
            return exact
        prefix = max(
            (one for one in self._globs if key.startswith(one)), key=len, default=None
        )
        if prefix is None:
            return _NOTHING
        return self._globs[prefix]


class KeySummary:
    """Holds what the values of one key have come to.

    Args:
        first: The first value.
    """

    __slots__ = ("count", "first", "high", "last", "low", "total")

    def __init__(self, first: Any) -> None:
        self.first = first
        self.count, self.total, self.low, self.high = 0, 0.0, math.inf, -math.inf
        self.add(first)

    def add(self, value: Any) -> None:
        """Add one value; only numbers count for smallest, largest and mean."""
        self.last = value
        if type(value) in _NUMBERS:
            self.count += 1
            self.total += value
            self.low = value if value < self.low or value != value else self.low  # noqa: PLR0124  # a NaN stays
            self.high = value if value > self.high or value != value else self.high  # noqa: PLR0124

    @classmethod
    def of_state(cls, stored: Sequence[Any]) -> KeySummary:
        """Return the one that `state` describes."""
        made = cls(None)
        made.count, made.total, made.low, made.high, made.first, made.last = stored
        return made

    def state(self) -> list[Any]:
        """Return all values, as a list to store."""
        return [self.count, self.total, self.low, self.high, self.first, self.last]

    def result(self, kinds: Collection[str]) -> dict[str, Any]:
        """Return the values of *kinds*; those of numbers only when there was one."""
        return {
            kind: _RESULTS[kind](self)
            for kind in SUMMARY_KINDS
            if kind in kinds and (self.count or kind in _OF_ANY)
        }


_OF_ANY = frozenset({"first", "last"})
_RESULTS: Mapping[str, Callable[[KeySummary], Any]] = {
    "min": lambda key: key.low,
    "max": lambda key: key.high,
    "mean": lambda key: key.total / key.count,
    "first": lambda key: key.first,
    "last": lambda key: key.last,
}
