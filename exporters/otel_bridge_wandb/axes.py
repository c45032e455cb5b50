"""Step axes: every key bound by its exact name to its role's hidden axis.

Globs are traps (several that match are taken in random order, ``runmetric.go``), and each (re)attach of a run wipes
all definitions until its writer declares them again; so all known keys are declared right after every init.
``step_sync`` is off: each row brings its own step, and one that has none must not be given an old one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from otel_bridge_wandb.payload import shown_key


class _Definer(Protocol):
    def __call__(self, name: str, axis: str | None) -> None: ...


class Axes:
    """The keys that are bound in the run at hand.

    Args:
        define: Binds a name to an axis; without an axis it declares a hidden axis.
    """

    def __init__(self, define: _Definer) -> None:
        self._define = define
        self._bound: set[str] = {"_timestamp"}
        self._axes: set[str] = set()

    def bind(self, keys: Iterable[str], axis: str) -> None:
        """Bind those of *keys* (as W&B shows them) that are new."""
        bound = self._bound
        for key in keys:
            if key not in bound:
                self._bind(key, axis)

    def bind_all(self, keys: Mapping[str, str]) -> None:
        """Bind every known key to its axis."""
        for key, axis in keys.items():
            if key and axis:
                self.bind((shown_key(key, axis),), axis)

    def _bind(self, key: str, axis: str) -> None:
        if axis not in self._axes:
            self._axes.add(axis)
            self._bound.add(axis)
            self._define(axis, None)
        if key not in self._bound:
            self._bound.add(key)
            self._define(key, axis)
