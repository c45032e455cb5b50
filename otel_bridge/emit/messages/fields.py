"""Objects of any library -> their fields, one level deep, and sequences of any library -> lists."""

from __future__ import annotations

import dataclasses
import math
from collections import UserString
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

import orjson

_ATTRIBUTES: Final = (
    "role", "content", "tool_calls", "tool_call_id", "name", "reasoning_content", "reasoning", "thinking",
    "id", "type", "function", "arguments",
)  # fmt: skip
"""What is read of an object of no known kind."""
_TELLING: Final = (("role", "content"), ("function",), ("name", "arguments"))
"""Attributes by which an object of no known kind is a message, a tool call, or the function of one."""
_MAX_JSON_CHARS: Final = 1 << 20
_OBJECT_STARTS: Final = ("{", "[")


def fields_of(value: object) -> Mapping[str, Any] | None:
    """Return the fields of a mapping or an object as they are; ``None`` for anything else.

    One level only: a dump of the whole object has the declared types of its parts, and a LangChain prompt whose
    messages are dumped so has no tool calls (langchain-core 1.2).
    """
    if isinstance(value, Mapping):
        return cast("Mapping[str, Any]", value)
    if isinstance(value, (str, bytes, int, float, list, tuple)) or value is None:
        return None
    kind = type(value)
    if dataclasses.is_dataclass(kind):
        return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(kind)}
    if hasattr(kind, "model_fields") and hasattr(value, "__dict__"):
        return {**vars(value), **(getattr(value, "__pydantic_extra__", None) or {})}
    return _of_object(value)


def _of_object(value: object) -> Mapping[str, Any] | None:
    dump = getattr(value, "model_dump", None)
    dumped: object = dump() if callable(dump) else None
    if isinstance(dumped, dict):
        return cast("dict[str, Any]", dumped)
    if not any(all(hasattr(value, name) for name in names) for names in _TELLING):
        return None
    return {name: item for name in _ATTRIBUTES if (item := getattr(value, name, None)) is not None}


def first(fields: Mapping[str, Any], names: Iterable[str]) -> Any:  # whatever the user put there
    """Return the first of *names* that has a value; ``None`` without one."""
    for name in names:
        value = fields.get(name)
        if value is not None:
            return value
    return None


def text_or_none(value: object) -> str | None:
    """Return a name or an id as text; ``None`` when *value* is empty or anything else."""
    return str(value) if isinstance(value, (str, int)) and value != "" else None


def plain(value: object) -> object:
    """Return an array (numpy, pandas, pyarrow, torch) as a list, a `UserString` as text; anything else unchanged."""
    if isinstance(value, UserString):
        return value.data
    convert = getattr(value, "tolist", None)
    return convert() if callable(convert) else value


def entries_of(value: object) -> Sequence[object]:
    """Return the entries of a sequence, an array, a generator or JSON text of a list; any other value is one entry.

    Nothing for ``None``, an empty text, and the NaN by which pandas means an absent value.
    """
    value = plain(value)
    if isinstance(value, str):
        value = parsed(value)
    if value is None or value == "" or (isinstance(value, float) and math.isnan(value)):
        return ()
    if isinstance(value, (str, bytes)) or fields_of(value) is not None or not isinstance(value, Iterable):
        entries: list[object] = [value]
        return entries
    return list(cast("Iterable[object]", value))


def parsed(text: str) -> object:
    """Return JSON text as data; a text that is not JSON of an object or list, or too long, unchanged."""
    if not text.startswith(_OBJECT_STARTS) or len(text) > _MAX_JSON_CHARS:
        return text
    try:
        return orjson.loads(text)
    except ValueError:
        return text
