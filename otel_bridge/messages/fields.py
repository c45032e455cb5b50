"""Objects of any library -> their fields, one level deep, and sequences of any library -> lists.

What the code of an object raises is raised: the encoder of conversations then keeps the type of the
entry alone, and counts it as ``rollout_message``.
"""

from __future__ import annotations

import dataclasses
import math
from collections import UserString
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import orjson

from otel_bridge.values.scalars import any_text, is_missing

_ATTRIBUTES = (
    "role", "content", "tool_calls", "tool_call_id", "name", "reasoning_content", "reasoning", "thinking",
    "id", "type", "function", "arguments",
)  # fmt: skip
"""What is read of an object of no known kind."""
_TELLING = (("role", "content"), ("function",), ("name", "arguments"))
"""Attributes by which an object of no known kind is a message, a tool call, or the function of one."""
_PLAIN = frozenset({str, int, float, bool, bytes, dict, list, tuple, type(None)})
"""Types of nearly all values, whose check costs a tenth of that of an abstract class."""
_WITHOUT_FIELDS = _PLAIN - {dict}
_MAX_JSON_CHARS = 1 << 20
_OBJECT_STARTS = ("{", "[")


def fields_of(value: object) -> Mapping[str, Any] | None:
    """Return the fields of a mapping or an object as they are; ``None`` for anything else.

    One level only: a dump of the whole object has the declared types of its parts, and a LangChain
    prompt whose messages are dumped so has no tool calls (langchain-core 1.2). What the code of the
    object raises is raised.
    """
    kind = type(value)
    if kind in _WITHOUT_FIELDS:
        return None
    if isinstance(value, Mapping):
        return cast("Mapping[str, Any]", value)
    if isinstance(value, (str, bytes, int, float, list, tuple)):
        return None
    if dataclasses.is_dataclass(kind):
        return {
            field.name: getattr(value, field.name, None)
            for field in dataclasses.fields(kind)
        }
    # pydantic: the declared fields, and those that a model with `extra="allow"` keeps beside.
    if hasattr(kind, "model_fields") and hasattr(value, "__dict__"):
        return {**vars(value), **(getattr(value, "__pydantic_extra__", None) or {})}
    return _of_object(value)


def _of_object(value: object) -> Mapping[str, Any] | None:
    """Return the fields of an object of no known kind: its dump, else what it has of a message or call.

    ``None`` without.
    """
    dump = getattr(value, "model_dump", None)
    dumped: object = dump() if callable(dump) else None
    if isinstance(dumped, dict):
        return cast("dict[str, Any]", dumped)
    is_known = False
    for names in _TELLING:
        is_known = is_known or all(hasattr(value, name) for name in names)
    # A table of pandas has its columns as attributes, and a message in each row.
    if not is_known or _is_table(value):
        return None
    fields: dict[str, Any] = {}
    for name in _ATTRIBUTES:
        attribute = getattr(value, name, None)
        if attribute is not None:
            fields[name] = attribute
    return fields


def first(
    fields: Mapping[str, Any], names: Iterable[str]
) -> Any:  # whatever the user put there
    """Return the first of *names* that has a value; ``None`` without one."""
    for name in names:
        value = fields.get(name)
        if value is None or (isinstance(value, float) and is_absent(value)):
            continue
        return value
    return None


def is_absent(value: object) -> bool:
    """Return whether *value* is the NaN of a cell that a row of pandas does not have."""
    return isinstance(value, float) and math.isnan(value)


class ReadFields(Mapping[str, Any]):
    """Notes which of the fields of an object were read, so that the others are not lost.

    Args:
        whole: All fields.
    """

    __slots__ = ("_inner", "_keys", "whole")

    def __init__(self, whole: Mapping[str, Any]) -> None:
        self.whole = whole
        self._keys: set[str] = set()
        self._inner: list[ReadFields] = []

    def __getitem__(self, key: str) -> Any:  # whatever the user put there
        value = self.whole[key]
        self._keys.add(key)
        return value

    def get(self, key: str, default: Any = None) -> Any:
        """Return the field *key*, as a mapping does, in a third of the time of `Mapping.get`."""
        if key in self.whole:
            return self[key]
        return default

    def skip(self, *keys: str) -> None:
        """Note *keys* as read."""
        self._keys.update(keys)

    def __iter__(self) -> Iterator[str]:
        return iter(self.whole)

    def __len__(self) -> int:
        return len(self.whole)

    def inside(self, value: object) -> ReadFields | None:
        """Return the fields of *value*, one of these fields, and note what is read of them as well.

        ``None`` when *value* has no fields.
        """
        fields = fields_of(value)
        if fields is None:
            return None
        inner = ReadFields(fields)
        self._inner.append(inner)
        return inner

    def unread(self) -> Iterator[tuple[str, Any]]:
        """Yield key and value of the fields that were not read, here and inside."""
        for key in self.whole:
            if key not in self._keys:
                yield key, self.whole[key]
        for inner in self._inner:
            yield from inner.unread()


def text_or_none(value: object) -> str | None:
    """Return a name or an id of any type as text; it never raises.

    ``None`` when *value* is empty or missing, as pandas has it: NaN would be a name otherwise.
    """
    if isinstance(value, str):
        return str.__str__(value) or None
    if is_absent(value) or is_missing(value):
        return None
    return any_text(value)


_CONVERSIONS = ("tolist", "to_pylist", "as_py", "to_list", "to_dicts")
"""Methods by which arrays, tables and scalars of numpy, torch, pandas, pyarrow and polars give plain values."""


def plain(value: object) -> object:
    """Return an array (numpy, pandas, polars, pyarrow, torch) as a list, a table as its rows.

    A `UserString` is its text, anything else unchanged. What the conversion raises is raised.
    """
    if type(value) in _PLAIN:
        return value
    if isinstance(value, UserString):
        return value.data
    if _is_table(value):
        return cast("Any", value).to_dict("records")
    for name in _CONVERSIONS:
        convert = getattr(value, name, None)
        if callable(convert):
            return convert()
    return value


def _is_table(value: object) -> bool:
    return hasattr(value, "iterrows")


def entries_of(value: object) -> Sequence[object]:
    """Return the entries of a sequence, an array, a generator or JSON text of a list.

    Any other value is one entry.

    Empty for ``None``, an empty text, and the NaN by which pandas means an absent value. What the
    iterator raises is raised.
    """
    value = plain(value)
    if isinstance(value, str):
        value = parsed(value)
    if value is None or value == "" or is_absent(value):
        return ()
    if (
        isinstance(value, (str, bytes))
        or fields_of(value) is not None
        or not isinstance(value, Iterable)
    ):
        entries: list[object] = [value]
        return entries
    return list(cast("Iterable[object]", value))


def parsed(text: str) -> object:
    """Return JSON text as data.

    A text that is not JSON of an object or list is unchanged, and one above a megabyte: the
    training loop would wait for it.
    """
    if not text.startswith(_OBJECT_STARTS) or len(text) > _MAX_JSON_CHARS:
        return text
    try:
        return orjson.loads(text)
    except ValueError:
        return text
