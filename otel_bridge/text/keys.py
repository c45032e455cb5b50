"""Keys of a program's mappings -> text: the one conversion, for rows, configs and summaries. Imports no library.

Also bounds what is read of collections that hold one another many times.
"""

from __future__ import annotations

import datetime
import enum
import os
import re
from collections.abc import Iterable, Sized
from functools import partial
from types import ModuleType
from typing import Final, cast

_BY_STR: Final = frozenset({
    "builtins.complex", "datetime.timedelta", "datetime.timezone", "zoneinfo.ZoneInfo", "decimal.Decimal",
    "fractions.Fraction", "uuid.UUID", "ipaddress.IPv4Address", "ipaddress.IPv6Address", "ipaddress.IPv4Network",
    "ipaddress.IPv6Network", "types.GenericAlias", "types.UnionType", "typing._GenericAlias",
    "typing._UnionGenericAlias", "typing._LiteralGenericAlias", "typing._CallableGenericAlias",
})  # fmt: skip
"""Types of the standard library whose ``str()`` is the value."""
_ARRAY_LIBRARIES: Final = frozenset({"numpy", "torch", "jax", "jaxlib", "ml_dtypes", "tensorflow", "mlx"})
_DATA_TYPES: Final = frozenset({"dtype", "DType", "Dtype", "device", "Device", "layout", "memory_format"})
_SHOWN_BY_PYTHON: Final = (int, float, range, slice, type(None))
_MAX_PARTS: Final = 100
"""Most entries of a tuple or set that its key shows, nested ones included."""
_MAX_SHARED: Final = 20_000
"""Most entries that are read a second time, in one call; the limits of values read once are the caller's."""


class SharedReads:
    """Bounds the reading of shared collections: 40 lines can hold 10^10 leaves."""

    def __init__(self) -> None:
        # The objects are held as well: the id of a temporary would be used again.
        self._seen: dict[int, object] = {}
        self._left = _MAX_SHARED

    def admits(self, collection: object) -> bool:
        """Return whether *collection* may be read: the first time always, later while the bound holds."""
        if id(collection) not in self._seen:
            self._seen[id(collection)] = collection
            return True
        self._left -= 1 + (len(collection) if isinstance(collection, Sized) else _MAX_PARTS)
        return self._left >= 0


def key_text(raw: object) -> str:
    """Return the text of a key of any type; what the ``__str__`` of a user's object raises is raised.

    An enum that is a text is its value, any other its name; an object without a text of its own is its class.
    """
    if isinstance(raw, str):
        return raw.value if isinstance(raw, enum.Enum) else str.__str__(raw)
    if isinstance(raw, enum.Enum):
        return raw.name or str(raw.value)  # a Flag of no member has no name
    if isinstance(raw, bytes):
        return raw.decode("utf-8", "backslashreplace")
    if isinstance(raw, tuple | frozenset):
        return _parts(cast("Iterable[object]", raw), [_MAX_PARTS])
    return text_of(raw) or _of_object(raw)


def _of_object(raw: object) -> str:
    """Return the text of a number, or of an object by its own ``__str__``; without one, the name of its class."""
    kind = type(raw)
    if kind.__str__ is object.__str__ and not isinstance(raw, _SHOWN_BY_PYTHON):
        # repr() of a user's object may hold a secret, or an address that differs in every process.
        return f"<{kind.__module__}.{kind.__qualname__}>"
    return str(raw)  # pyright: ignore[reportUnknownArgumentType]  # any object


def _parts(items: Iterable[object], left: list[int]) -> str:
    """Return tuples and frozen sets as Python shows them, sets sorted, in at most *left* entries."""
    texts: list[str] = []
    for item in items:
        left[0] -= 1
        if left[0] < 0:
            texts.append("…")
            break
        nested = isinstance(item, tuple | frozenset)
        plain = repr(item) if type(item) in {str, bytes} else None
        texts.append(_parts(cast("Iterable[object]", item), left) if nested else plain or key_text(item))
    if isinstance(items, frozenset):
        return f"frozenset({{{', '.join(sorted(texts))}}})" if texts else "frozenset()"
    return f"({texts[0]},)" if len(texts) == 1 else f"({', '.join(texts)})"


def text_of(value: object) -> str | None:
    """Return the text of a small value that has one plain text; ``None`` for anything else.

    Such values are texts, paths, times, data types and devices, and functions and classes by their qualified names.
    """
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, os.PathLike):
        return os.fsdecode(cast("os.PathLike[str]", value))
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, bytes | bytearray):
        return f"<{len(value)} bytes>"
    return str(value) if _is_shown_by_str(type(value)) else _qualified_name(value)


def _is_shown_by_str(kind: type) -> bool:
    return f"{kind.__module__}.{kind.__qualname__}" in _BY_STR or any(
        base.__name__ in _DATA_TYPES and base.__module__.partition(".")[0] in _ARRAY_LIBRARIES for base in kind.__mro__
    )


def _qualified_name(value: object) -> str | None:
    """Return the name of a module, function or class, and the pattern of a regular expression."""
    if isinstance(value, ModuleType):
        return value.__name__
    if isinstance(value, re.Pattern):
        return str(cast("re.Pattern[str]", value).pattern)
    if isinstance(value, partial):
        inner = _qualified_name(cast("partial[object]", value).func)
        return None if inner is None else f"partial({inner})"
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(name, str) or not callable(value):
        return None
    return f"{module}.{name}" if isinstance(module, str) else name
