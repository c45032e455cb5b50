"""Small values of any type -> a key, a text or a number: the one table of types.

Imports no library.

Never use ``repr()`` of a user's object: it may hold a secret, an address that differs in every
process, or megabytes.
"""

from __future__ import annotations

import datetime
import enum
import hashlib
import math
import operator
import os
import re
import sys
from collections import UserString
from collections.abc import Iterable, Mapping
from functools import partial
from types import ModuleType
from typing import Protocol, SupportsFloat, SupportsIndex, TypeAlias, TypeGuard, cast

from otel_bridge.errors import any_error_but_signals

Plain: TypeAlias = "bool | int | float | str"

_BY_STR = frozenset({
    "builtins.complex", "zoneinfo.ZoneInfo", "uuid.UUID", "ipaddress.IPv4Address", "ipaddress.IPv6Address",
    "ipaddress.IPv4Network", "ipaddress.IPv6Network", "types.GenericAlias", "types.UnionType", "typing._GenericAlias",
    "typing._UnionGenericAlias", "typing._LiteralGenericAlias", "typing._CallableGenericAlias",
})  # fmt: skip
"""Types of the standard library whose ``str()`` is the value."""
_ARRAY_LIBRARIES = frozenset(
    {"numpy", "torch", "jax", "jaxlib", "ml_dtypes", "tensorflow", "mlx"}
)
_DATA_TYPES = frozenset(
    {"dtype", "DType", "Dtype", "device", "Device", "layout", "memory_format"}
)
_MISSING = frozenset({"NAType", "NaTType"})
_TIMES = frozenset({"datetime64", "timedelta64"})
_MAX_BYTES = 1 << 20
_MAX_PARTS = 1_000
"""Most entries of a collection that its key or name shows, nested ones included."""
_DIGEST_CHARS = 12


class HasItem(Protocol):
    """Declares what is read of a numpy scalar."""

    def item(self) -> object:
        """Return the scalar as a plain number."""
        ...


class Array(HasItem, Protocol):
    """Declares what is read of an array of numpy, torch, jax and their like."""

    @property
    def shape(self) -> Iterable[int]:
        """Sizes of the dimensions, empty for a 0-d array."""
        ...

    def tolist(self) -> object:
        """Return nested lists of plain numbers."""
        ...


def is_scalar(value: object) -> TypeGuard[HasItem]:
    """Return whether *value* is a numpy scalar, or one of a library on top of numpy, such as ``ml_dtypes``."""
    numpy = sys.modules.get("numpy")
    # Another thread may be importing numpy, which has no classes until then.
    return isinstance(value, getattr(numpy, "generic", ()))


def is_array(value: object) -> TypeGuard[Array]:
    """Return whether *value* is an array, 0-d ones included.

    What a property of a user's object raises is raised, unless it is `AttributeError`.
    """
    return hasattr(value, "tolist") and getattr(value, "shape", None) is not None


def is_missing(value: object) -> bool:
    """Return whether *value* is ``None``, NA or NaT of pandas, or numpy's NaT.

    A NaN is a number: it is logged as one.
    """
    if value is None:
        return True
    kind = type(value)
    if kind.__name__ in _MISSING:
        return kind.__module__.startswith("pandas.")
    return is_scalar(value) and kind.__name__ in _TIMES and value != value  # noqa: PLR0124  # NaT equals nothing


def scalar_of(value: object) -> Plain | None:
    """Return a value that has one plain form as this text, number or bool.

    ``None`` for anything else.

    Numbers are those of numpy, 0-d arrays of any library, ``Decimal``, ``Fraction`` and objects
    with ``__float__`` or ``__index__``. An enum is its value when this is plain, else its name.
    Texts are those of `text_of`. What the code of a user's object raises is raised.
    """
    if isinstance(value, enum.Enum):
        plain: object = value.value
        return scalar_of(plain) if isinstance(plain, str | int | float) else value.name
    if isinstance(value, bool):
        return bool(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if is_scalar(value):
        return _of_item(value)
    text = text_of(value)
    return _number_of_object(value) if text is None else text


def _of_item(value: HasItem) -> Plain:
    """Return the content of a numpy scalar, or of a 0-d array.

    Times, complex numbers and records as numpy shows them.

    ``item()`` of a long double returns a long double, and that of nanoseconds an integer without a
    unit (numpy 2.3). What the conversion of another library raises is raised.
    """
    kind = getattr(getattr(value, "dtype", None), "kind", "")
    if kind == "f":
        return float(cast("SupportsFloat", value))
    plain = value.item()
    if kind not in {"M", "m"} and isinstance(plain, bool | int | float | str | bytes):
        scalar = scalar_of(plain)
        return str(value) if scalar is None else scalar
    return str(value)


def _number_of_object(value: object) -> Plain | None:
    """Return the number that a 0-d array holds or an object converts to.

    ``None`` for any other object. What ``__float__`` and its like raise is raised.
    """
    if is_array(value):
        return None if tuple(value.shape) else _of_item(value)
    kind = type(value)
    if hasattr(kind, "__float__"):
        return float(cast("SupportsFloat", value))
    if hasattr(kind, "__index__"):
        return operator.index(cast("SupportsIndex", value))
    return None


def single_of(value: object) -> object:
    """Return the content of an array of one element, of any shape.

    Any other value as it is, also one that raises.
    """
    try:
        if is_array(value) and math.prod(tuple(value.shape)) == 1:
            return value.item()
        return value
    except any_error_but_signals():  # an object of the user's
        return value


def number_of(value: object) -> int | float | None:
    """Return the number of a value by the same table.

    ``None`` for a text, and for what is not one number. Raises as `scalar_of`.
    """
    plain = scalar_of(value)
    return None if isinstance(plain, str) else plain


def text_of(value: object) -> str | None:
    """Return the text of a small value that has one plain text; ``None`` for anything else.

    Such values are texts, UTF-8 bytes, paths, times, data types and devices, and functions and
    classes by their qualified names. What the code of a path, or of a subclass of one of these
    types, raises is raised.
    """
    if isinstance(value, UserString):
        value = value.data
    if isinstance(value, str):
        # A subclass may have a __str__ that shows something else, as a text that is an enum.
        return str.__str__(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return _text_of_bytes(cast("bytes | bytearray | memoryview[int]", value))
    if isinstance(value, os.PathLike):
        return os.fsdecode(cast("os.PathLike[str]", value))
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, datetime.timedelta | datetime.tzinfo) or _is_shown_by_str(
        type(value)
    ):
        return str(value)
    return _qualified_name(value)


def _text_of_bytes(value: bytes | bytearray | memoryview[int]) -> str | None:
    """Return bytes that are text as this text.

    ``None`` for other bytes, and for more than a megabyte of them.
    """
    size = value.nbytes if isinstance(value, memoryview) else len(value)
    if size > _MAX_BYTES:
        return None
    try:
        return bytes(value).decode()
    except UnicodeDecodeError:
        return None


def _is_shown_by_str(kind: type) -> bool:
    """Return whether ``str()`` of an object of this type is its value.

    Data types are recognised by name, because no library is imported here.
    """
    return f"{kind.__module__}.{kind.__qualname__}" in _BY_STR or any(
        base.__name__ in _DATA_TYPES
        and base.__module__.partition(".")[0] in _ARRAY_LIBRARIES
        for base in kind.__mro__
    )


def _qualified_name(value: object) -> str | None:
    """Return the name of a module, function or class, and the pattern of a regular expression.

    ``None`` without. The ``repr()`` of a function would have its address, which differs in every
    process.
    """
    if isinstance(value, ModuleType):
        return value.__name__
    if isinstance(value, re.Pattern):
        return str(cast("re.Pattern[str]", value).pattern)
    if isinstance(value, partial):
        inner = _qualified_name(cast("partial[object]", value).func)
        return None if inner is None else f"partial({inner})"
    module = getattr(value, "__module__", None)
    name = getattr(value, "__qualname__", None)
    if not isinstance(name, str) or not callable(value):
        return None
    if isinstance(module, str):
        return f"{module}.{name}"
    return name


def own_text(value: object) -> str | None:
    """Return the text that a class of the user's gives its object by ``__str__``.

    ``None`` without one.

    What ``__str__`` raises is raised. An exception whose arguments are not plain has none: it may
    show their ``repr()``.
    """
    # bytes and the like have a __str__, which is their repr().
    owner = next(base for base in type(value).__mro__ if "__str__" in vars(base))
    if owner.__module__ == "builtins" and not isinstance(value, BaseException):
        return None
    if isinstance(value, BaseException) and not all(
        isinstance(part, str | int | float) for part in value.args
    ):
        return None
    return str(value)


def described(value: object) -> str:
    """Return a text for a value that has none: its class, and the size of bytes and arrays.

    What the shape of an array raises is raised.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        return (
            f"<{value.nbytes if isinstance(value, memoryview) else len(value)} bytes>"
        )
    kind = type(value)
    if is_array(value):
        return f"<{kind.__name__} of shape {'x'.join(map(str, value.shape))}>"
    return f"<{kind.__module__}.{kind.__qualname__}>"


def key_text(raw: object) -> str:
    """Return the text of a key of any type.

    What the ``__str__`` of a user's object raises is raised.

    An enum that is a text is its value, any other its name. An object without a text of its own is
    its class.
    """
    if isinstance(raw, str):
        return raw.value if isinstance(raw, enum.Enum) else str.__str__(raw)
    if isinstance(raw, enum.Enum):
        return raw.name or str(raw.value)  # a Flag of no member has no name
    if isinstance(raw, bytes):
        return raw.decode("utf-8", "backslashreplace")
    collection = _collection_in(raw)
    if collection is not None:
        return _parts(collection, [_MAX_PARTS])
    text = text_of(raw)
    return _key_of_object(raw) if text is None else text


def _key_of_object(raw: object) -> str:
    """Return the text of a number, of an object by its own ``__str__``, else of its type."""
    if isinstance(raw, int | float | range | type(None)) or is_scalar(raw):
        return str(raw)
    number = _number_of_object(raw)
    text = own_text(raw) if number is None else str(number)
    return described(raw) if text is None else text


def _parts(items: Iterable[object], entries_left: list[int]) -> str:
    """Return a collection as Python shows it, in at most *entries_left* entries, a list of one number.

    Sets are sorted, since their order differs in every process, and a key must not. Nested
    collections share the number; what is beyond it is one ``…``. What the code of an entry raises
    is raised.
    """
    texts: list[str] = []
    for item in items:
        entries_left[0] -= 1
        if entries_left[0] < 0:
            texts.append("…")
            break
        text = _part(item, entries_left)
        if isinstance(items, Mapping):
            text = f"{text}: {_part(cast('Mapping[object, object]', items)[item], entries_left)}"
        texts.append(text)
    inner = ", ".join(sorted(texts) if isinstance(items, frozenset | set) else texts)
    if isinstance(items, frozenset):
        if texts:
            return f"frozenset({{{inner}}})"
        return "frozenset()"
    if isinstance(items, tuple):
        return f"({inner},)" if len(texts) == 1 else f"({inner})"
    if isinstance(items, list):
        return f"[{inner}]"
    return f"{{{inner}}}"


def _part(item: object, entries_left: list[int]) -> str:
    """Return an entry of a collection as Python shows it.

    Texts are quoted, so that ``("a", "b")`` and ``("a, b",)`` differ.
    """
    if type(item) in {str, bytes}:
        return repr(item)
    collection = _collection_in(item)
    if collection is None:
        return key_text(item)
    return _parts(collection, entries_left)


def _collection_in(value: object) -> Iterable[object] | None:
    """Return a collection whose entries are shown, also that in an array of objects.

    ``None`` for anything else.
    """
    if (
        type(value).__name__ == "ndarray"
        and is_array(value)
        and getattr(getattr(value, "dtype", None), "kind", "") == "O"
    ):
        value = value.tolist()  # its own text shows nested arrays whole
    if isinstance(value, tuple | list | frozenset | set | Mapping):
        return cast("Iterable[object]", value)
    return None


def any_text(value: object) -> str:
    """Return a text for a value of any type; that of its type when reading it raises."""
    try:
        return key_text(value)
    except any_error_but_signals():  # a user's __str__
        return type(value).__name__


def name_of(value: object, max_chars: int) -> str | None:
    """Return an id or a name as text; ``None`` when *value* is missing, empty or raises.

    A longer text ends with a digest of the whole, so that two of them remain two. Bounded,
    because this process and the bridge hold ids in memory.
    """
    if is_missing(value):
        return None
    try:
        text = value if type(value) is str else key_text(value)
    except any_error_but_signals():  # code of the user's own object
        return None
    if len(text) <= max_chars:
        return text or None
    digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:_DIGEST_CHARS]
    return f"{text[: max_chars - _DIGEST_CHARS - 1]}…{digest}"
