"""Config events -> the merged config of each role. Pure.

Nested maps merge leaf by leaf, unless their event replaces; of two values for one leaf the later wins. Owned keys:
``config/<role>`` (the merged config, as trackers show it) and ``config-leaf/<role>`` (each leaf with its origin).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias, cast

from otel_bridge.records import Config, Json
from otel_bridge.translation.metrics.keys import ATTEMPT
from otel_bridge.translation.metrics.latest_values import Origin, ValuesEvent
from otel_bridge.translation.state import TranslationState, count

TOO_LARGE = "config/too_large"
_MAX_LEAVES = 20_000
_SEPARATOR = "\x1f"
_LEAF = 4
_OURS = "otel_bridge"
"""Placeholder for the instance of a leaf that no process sent."""

_Leaf: TypeAlias = list[object]
"""Value, time, instance, event number; and ``True`` for a map that replaces all that is older below
its path."""


class Configs:
    """Merges the configs of one run."""

    def __init__(self, state: TranslationState) -> None:
        self._state = state

    def merge(self, event: ValuesEvent) -> list[Config]:
        """Merge *event*; return the role's new config, or nothing when the config is unchanged.

        A leaf beyond `_MAX_LEAVES` of a role is dropped and counted (``config/too_large``). An
        older event that arrives late only adds what no newer one has set.
        """
        role = event.role or ""
        leaves = dict(
            cast("dict[str, _Leaf]", self._state.get(f"config-leaf/{role}") or {})
        )
        last_config = self._state.get(f"config/{role}")
        if event.replaces:
            _replace_maps(leaves, event)
        for path, value in _leaves(event.values, ""):
            # A config may come from any producer, and all of it is merged at each event.
            if path not in leaves and len(leaves) >= _MAX_LEAVES:
                count(self._state, TOO_LARGE)
                continue
            if path not in leaves or event.origin.replaces(_origin_of(leaves[path])):
                leaves[path] = [
                    value,
                    event.origin.time_unix_ns,
                    event.origin.instance,
                    event.origin.seq,
                ]
        merged = _tree(leaves)
        self._state.set(f"config-leaf/{role}", leaves)
        if merged == last_config:
            return []
        self._state.set(f"config/{role}", merged)
        return [Config(_id(event), event.role, merged, event.origin.time_unix_ns)]

    def attempt(self, role: str | None, number: int, time_unix_ns: int) -> list[Config]:
        """Note the attempt in the role's config; nothing if the user's own config has an entry of that name."""
        leaves = cast(
            "dict[str, _Leaf]", self._state.get(f"config-leaf/{role or ''}") or {}
        )
        leaf = leaves.get(ATTEMPT)
        if leaf is not None and leaf[2] != _OURS:
            return []
        return self.merge(
            ValuesEvent(Origin(time_unix_ns, _OURS, number), role, {ATTEMPT: number})
        )


def _id(event: ValuesEvent) -> str:
    if (
        event.origin.instance == _OURS
    ):  # with the role: two roles may have the same attempt
        return f"c:{_OURS}:{event.role or ''}:{event.origin.seq}"
    return event.record_id("c")


def _leaves(config: Mapping[str, Json], prefix: str) -> Iterator[tuple[str, Json]]:
    for key, value in config.items():
        path = f"{prefix}{key.replace(_SEPARATOR, ' ')}"
        if isinstance(value, dict) and value:
            yield from _leaves(value, path + _SEPARATOR)
        else:
            yield path, value


def _replace_maps(leaves: dict[str, _Leaf], event: ValuesEvent) -> None:
    """Note the maps of *event* among *leaves*, and forget the older leaves below them.

    A map beyond the limit is not noted; its leaves are counted where they are merged.
    """
    origin = event.origin
    below: dict[str, list[str]] = {}  # read once: maps times leaves took minutes
    for path in leaves:
        first, separator, _ = path.partition(_SEPARATOR)
        if separator:
            below.setdefault(first, []).append(path)
    for key, value in event.values.items():
        path = key.replace(_SEPARATOR, " ")
        is_older = path in leaves and not origin.replaces(_origin_of(leaves[path]))
        if is_older or not isinstance(value, dict):
            continue
        for inner in below.get(path, ()):
            if inner in leaves and origin.replaces(_origin_of(leaves[inner])):
                del leaves[inner]
        if path in leaves or len(leaves) < _MAX_LEAVES:
            leaves[path] = [{}, origin.time_unix_ns, origin.instance, origin.seq, True]


def _origin_of(leaf: _Leaf) -> Origin:
    return Origin(*cast("tuple[int, str, int]", tuple(leaf[1:4])))


def _tree(leaves: Mapping[str, _Leaf]) -> dict[str, Json]:
    """Build the nested map, oldest leaf first: a later leaf replaces a map, and a later map a leaf."""
    tree: dict[str, Json] = {}
    for path, leaf in sorted(leaves.items(), key=_age):
        *parents, last = path.split(_SEPARATOR)
        node = tree
        for parent in parents:
            below = node.get(parent)
            if not isinstance(below, dict):
                below = {}
                node[parent] = below
            node = below
        value = cast("Json", leaf[0])
        if value == {} and isinstance(value, dict) and len(leaf) == _LEAF:
            node.setdefault(last, {})  # nothing to merge
        else:
            node[last] = value
    return tree


def _age(item: tuple[str, _Leaf]) -> tuple[int, str, int, str]:
    path, (_, time_ns, instance, seq, *_replaces) = item
    return cast("int", time_ns), cast("str", instance), cast("int", seq), path
