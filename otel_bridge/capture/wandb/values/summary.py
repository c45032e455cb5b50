"""Holds what ``run.summary`` shows to the program: plain values, nested as the program gave them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from otel_bridge.capture.wandb.values.shown_values import shown_value

_PLAIN: frozenset[type] = frozenset({int, float, bool, str, type(None)})
_SHOWN: frozenset[type] = _PLAIN | {list}
_MAX_KEYS = 100_000


class ShownSummary:
    """Holds the last value of each key, and what the program sets in place of it.

    W&B's own ``Summary`` reads *values*, so that keys, attributes and nested dicts behave as in
    W&B.

    Attributes:
        values: The values, without objects of the program.
    """

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    def note(self, row: Mapping[str, Any]) -> None:
        """Set the last values of a row. Its dicts are merged, and arrays are not kept alive."""
        _merge(self.values, row, _PLAIN)

    def show(self, values: Mapping[str, Any]) -> None:
        """Set values that are plain already, also lists."""
        _merge(self.values, values, _SHOWN)

    def put(self, path: Sequence[str], value: Any) -> None:
        """Set what the program sets below the keys *path*; a dict replaces the one that was there.

        The program's own value counts as it is, where a row's dict is merged.
        """
        put_below(self.values, path, shown_value(value))

    def remove(self, path: Sequence[str]) -> None:
        """Remove an entry, as ``del run.summary[key]`` does; a missing one is ignored."""
        _dict_of(self.values, path).pop(path[-1], None)


def put_below(entries: dict[str, Any], path: Sequence[str], value: Any) -> None:
    """Set *value* in nested dicts, by its keys from the outermost one."""
    _dict_of(entries, path)[path[-1]] = value


def _dict_of(entries: dict[str, Any], path: Sequence[str]) -> dict[str, Any]:
    """Return the dict that holds the last key of *path*, made where there is none.

    A program may hold a nested part of the summary that it has replaced by a number since.
    """
    for name in path[:-1]:
        if not isinstance(entries.get(name), dict):
            entries[name] = {}
        entries = entries[name]
    return entries


def _merge(
    target: dict[str, Any], values: Mapping[str, Any], kinds: frozenset[type]
) -> None:
    """Set those of *values* whose type is in *kinds*, and merge dicts; other values stay as they were.

    From `_MAX_KEYS` keys on nothing changes any more, known keys included.
    """
    # Bounds the memory of a program with ever-new keys.
    if len(target) >= _MAX_KEYS:
        return
    plain = {key: value for key, value in values.items() if type(value) in kinds}
    target.update(plain)
    # Nearly every row: it has no dict.
    if len(plain) == len(values):
        return
    for key, value in values.items():
        if isinstance(value, dict):
            # A dict that holds itself ends here.
            entries: dict[str, Any] = shown_value(value)
            inner: Any = target.get(key)
            # A medium is one value, whose entries replace those of the last one.
            if isinstance(inner, dict) and "_type" not in entries:
                _merge(cast("dict[str, Any]", inner), entries, kinds)
            else:
                target[key] = entries
