"""Mappings and sequences of any library -> their entries, each read alone when a joint read fails, within a budget.

A config may be OmegaConf with a missing mandatory value, or an object whose methods raise. An entry
that cannot be read affects no other entry. Nothing here raises, and no library is imported.
"""

from __future__ import annotations

import sys
from collections import UserString, deque
from collections.abc import Iterable, Iterator, Mapping, MappingView, Sequence, Set
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeGuard, cast

from otel_bridge.errors import any_error_but_signals

_MAX_REPEATED = 5_000
"""Most entries of collections that were read before, in one call."""
_TEXTS = (str, bytes, bytearray, memoryview, UserString)
_SEQUENCES = (Sequence, Set, MappingView, deque)
_COLUMNS = frozenset({"polars", "pyarrow"})
"""Libraries whose columns are sequences without being registered as such; their text leaves entries out."""


class ReadBudget:
    """Bounds what one call reads of nested collections: 40 lines of a program can hold 10^10 leaves.

    Args:
        entries: Most entries of all collections.
    """

    def __init__(self, entries: int) -> None:
        self._entries = entries
        self._repeated = min(entries, _MAX_REPEATED)
        # The objects are held as well: the id of a temporary would be used again.
        self._read: dict[int, object] = {}

    def share(self, collection: object, size: int) -> int:
        """Return how many of the *size* entries of *collection* may be read, 0 at the end, and deduct them.

        A collection that comes again has a smaller budget of its own, since only sharing makes few
        lists hold very many entries.
        """
        if id(collection) in self._read:
            # The collection itself counts: 30 lists of two entries each hold 2^30 lists.
            share = max(min(size, self._repeated, self._entries), 0)
            self._repeated -= share + 1 if size else 0
        else:
            self._read[id(collection)] = collection
            share = max(min(size, self._entries), 0)
        self._entries -= share
        return share


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Stands for an entry that raised when it was read.

    Attributes:
        shown: Known text of the entry: OmegaConf's ``???`` or ``${…}``.
    """

    shown: str = "[unreadable]"


def bases_of(value: object) -> Iterator[tuple[str, str]]:
    """Yield package and name of the object's class and its bases: a subclass may lie in a package of its own."""
    return (
        (base.__module__.partition(".")[0], base.__name__)
        for base in type(value).__mro__
    )


def is_of(package: str, value: object) -> bool:
    """Return whether the object's class, or a base of it, is of *package*."""
    return any(name == package for name, _ in bases_of(value))


def is_text(value: object) -> bool:
    """Return whether *value* is a text or bytes, and never a collection of numbers."""
    return isinstance(value, _TEXTS)


def is_list_like(value: object) -> TypeGuard[Iterable[object]]:
    """Return whether *value* is a collection of entries, and not a text, a mapping or an iterator."""
    return not is_text(value) and (isinstance(value, _SEQUENCES) or _is_column(value))


def _is_column(value: object) -> bool:
    """Return whether *value* is a column of a table: a series of polars, an array of pyarrow."""
    kind = type(value)
    return kind.__module__.partition(".")[0] in _COLUMNS and (
        hasattr(kind, "to_pylist") or hasattr(kind, "to_list")
    )


def entries_of(
    values: Mapping[object, object], limit: int
) -> list[tuple[object, object]]:
    """Return the first *limit* entries of a mapping; it never raises.

    An entry that cannot be read is an `Unreadable`. Read in one go at first; again in case another
    thread changed the mapping meanwhile; then key by key. Where its keys raise, an `Unreadable` is
    the last entry.
    """
    # Copied while the interpreter is held: no other thread changes it meanwhile.
    if type(values) is dict:
        copied = dict(cast("dict[object, object]", values))
        return list(islice(copied.items(), limit))
    for _ in range(2):  # another thread may have changed it meanwhile
        try:
            return [(key, value) for key, value in islice(values.items(), limit)]
        except any_error_but_signals():  # noqa: PERF203  # code of the user's own mapping
            continue
    return _read_by_key(values, _read_until_it_raises(values, limit))


def items_of(values: Iterable[object], limit: int) -> list[object]:
    """Return the first *limit* items of a collection, which has as many; it never raises.

    An item that cannot be read is an `Unreadable`: of a sequence it costs itself, of another
    collection also what follows it.
    """
    try:
        if _is_column(values) and hasattr(values, "to_pylist"):
            # The entries of pyarrow are scalars of its own, and the text of a missing one is "None".
            column = cast("Any", values)[:limit]
            return cast("list[object]", column.to_pylist())
        return list(islice(values, limit))
    except any_error_but_signals():  # code of the user's own collection
        if not isinstance(values, Sequence):
            return _read_until_it_raises(values, limit)
    return [item for _, item in _read_by_key(values, range(limit))]


def _read_by_key(values: Any, keys: Iterable[object]) -> list[tuple[object, object]]:
    """Return each of *keys* with its entry.

    One that raises is an `Unreadable` with its unresolved text, if any.
    """
    unresolved: Any = _without_resolving(values)
    entries: list[tuple[object, object]] = []
    for key in keys:
        if isinstance(key, Unreadable):
            entries.append((key.shown, key))
            continue
        try:
            entries.append((key, values[key]))
        except any_error_but_signals():  # code of the user's own collection
            entries.append((key, _stand_in(unresolved, key)))
    return entries


def _stand_in(unresolved: Any, key: object) -> Unreadable:
    """Return what stands for an entry that raised, with the text of its *unresolved* form where there is one."""
    try:
        text: object = unresolved[key]
    except (
        LookupError,
        TypeError,
    ):  # a collection without unresolved entries, or without this one
        return Unreadable()
    return Unreadable(text) if isinstance(text, str) else Unreadable()


def _read_until_it_raises(values: Iterable[object], limit: int) -> list[object]:
    """Return the items of an iterable as far as they go, with an `Unreadable` where it raises."""
    entries: list[object] = []
    try:
        entries.extend(islice(values, limit))
    except any_error_but_signals():
        entries.append(Unreadable())
    return entries


def _without_resolving(values: object) -> object:
    """Return the unresolved content of an OmegaConf container, ``None`` for anything else.

    It has the texts of what cannot be resolved: ``???`` of a missing value, ``${…}`` of a
    reference. ``None`` also when reading it so raises.
    """
    omegaconf = sys.modules.get("omegaconf")
    if omegaconf is None or not is_of("omegaconf", values):
        return None
    try:
        return cast(
            "object",
            omegaconf.OmegaConf.to_container(
                values, resolve=False, throw_on_missing=False
            ),
        )
    except any_error_but_signals():
        return None
