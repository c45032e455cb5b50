"""Config events -> the merged config of each role. Pure.

Nested maps merge leaf by leaf, unless their event replaces; of two values for one leaf the later
wins. Owned keys: ``config/<role>`` (the merged config, as trackers show it) and
``config-leaf/<role>`` (each leaf with its origin).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import cast

from otel_bridge.records import Config, Json
from otel_bridge.translation.metrics.keys import ATTEMPT
from otel_bridge.translation.metrics.latest_values import Origin, ValuesEvent
from otel_bridge.translation.packing import packed, unpacked
from otel_bridge.translation.state import TranslationState, count

TOO_LARGE = "config/too_large"
_MAX_LEAVES = 20_000
_SEPARATOR = "\x1f"
"""Joins the keys of a path: keys may hold dots and slashes, and practically never this character."""
_OURS = "otel_bridge"
"""Placeholder for the instance of a leaf that no process sent."""


@dataclass(frozen=True, slots=True)
class _Leaf:
    """Holds one value of a config, and the event that it is from.

    Attributes:
        value: JSON, never a map with entries.
        replaces: Whether it is the empty map that replaces all that is older below its path.
    """

    value: object
    origin: Origin
    replaces: bool = False


class Configs:
    """Merges the configs of one run.

    A stored config that the ledger cannot give raises `JournalError`; see `TranslationState`.
    """

    def __init__(self, state: TranslationState) -> None:
        self._state = state

    def merge(self, event: ValuesEvent) -> list[Config]:
        """Merge *event*; return the role's new config, or nothing when the config is unchanged.

        A leaf beyond `_MAX_LEAVES` of a role is dropped and counted (``config/too_large``). An
        older event that arrives late only adds what no newer one has set.
        """
        role = event.role or ""
        leaves = self._leaves(role)
        last_config = self._state.get(f"config/{role}")
        if event.replaces:
            _replace_maps(leaves, event)
        for path, value in _paths(event.values, ""):
            # A config may come from any producer, and all of it is merged at each event.
            if path not in leaves and len(leaves) >= _MAX_LEAVES:
                count(self._state, TOO_LARGE)
                continue
            if path not in leaves or event.origin.replaces(leaves[path].origin):
                leaves[path] = _Leaf(value, event.origin)
        merged = _tree(leaves)
        # Also when the values are the same: which later event replaces them depends on the origins.
        self._state.set(f"config-leaf/{role}", packed(leaves))
        if merged == last_config:
            return []
        self._state.set(f"config/{role}", merged)
        return [Config(_id(event), event.role, merged, event.origin.time_unix_ns)]

    def attempt(self, role: str | None, number: int, time_unix_ns: int) -> list[Config]:
        """Note the attempt in the role's config; nothing if the user's own config has an entry of that name.

        Trackers show the config beside the run, where a reader looks for why its steps go back.
        """
        leaf = self._leaves(role or "").get(ATTEMPT)
        if leaf is not None and leaf.origin.instance != _OURS:
            return []
        return self.merge(
            ValuesEvent(Origin(time_unix_ns, _OURS, number), role, {ATTEMPT: number})
        )

    def _leaves(self, role: str) -> dict[str, _Leaf]:
        stored: object = self._state.get(f"config-leaf/{role}") or {}
        return unpacked(dict[str, _Leaf], stored)


def _id(event: ValuesEvent) -> str:
    # With the role: two roles may have the same attempt.
    if event.origin.instance == _OURS:
        return f"c:{_OURS}:{event.role or ''}:{event.origin.seq}"
    return event.record_id("c")


def _paths(config: Mapping[str, Json], prefix: str) -> Iterator[tuple[str, Json]]:
    """Yield each leaf of *config* with its path; an empty map is a leaf.

    It recurses at most 32 deep: decoding leaves out what nests deeper (`value_of`).
    """
    for key, value in config.items():
        path = f"{prefix}{key.replace(_SEPARATOR, ' ')}"
        if isinstance(value, dict) and value:
            yield from _paths(value, path + _SEPARATOR)
        else:
            yield path, value


def _replace_maps(leaves: dict[str, _Leaf], event: ValuesEvent) -> None:
    """Note the maps of *event* among *leaves*, and forget the older leaves below them.

    A map beyond the limit is not noted; its leaves are counted where they are merged.

    Captured configs replace a nested map as a whole, as W&B and Trackio do; `log_config` merges it.
    """
    origin = event.origin
    below: dict[str, list[str]] = {}  # read once: maps times leaves took minutes
    for path in leaves:
        first, separator, _ = path.partition(_SEPARATOR)
        if separator:
            below.setdefault(first, []).append(path)
    for key, value in event.values.items():
        path = key.replace(_SEPARATOR, " ")
        is_older = path in leaves and not origin.replaces(leaves[path].origin)
        if is_older or not isinstance(value, dict):
            continue
        for inner in below.get(path, ()):
            if inner in leaves and origin.replaces(leaves[inner].origin):
                del leaves[inner]
        if path in leaves or len(leaves) < _MAX_LEAVES:
            leaves[path] = _Leaf({}, origin, replaces=True)


def _tree(leaves: Mapping[str, _Leaf]) -> dict[str, Json]:
    """Build the nested map, oldest leaf first: a later leaf replaces a map, and a later map a leaf.

    The age decides alone, so that the order in which events arrived does not.
    """
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
        if leaf.value == {} and not leaf.replaces:
            node.setdefault(last, {})  # nothing to merge
        else:
            node[last] = cast("Json", leaf.value)
    return tree


def _age(item: tuple[str, _Leaf]) -> tuple[int, str, int, str]:
    path, leaf = item
    return leaf.origin.time_unix_ns, leaf.origin.instance, leaf.origin.seq, path
