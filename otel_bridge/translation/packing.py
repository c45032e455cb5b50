"""Dataclasses <-> JSON of the state: a list of the fields, by their types. Pure."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Hashable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from itertools import repeat
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from otel_bridge.records import Json

T = TypeVar("T")


def packed(value: object) -> Json:
    """Return *value* as JSON.

    A dataclass is the list of its fields, bytes are base 64. A mapping with keys of another type
    than text is a list of pairs.
    """
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, dict):
        mapping = cast("dict[object, object]", value)
        if all(isinstance(key, str) for key in mapping):
            return {str(key): packed(entry) for key, entry in mapping.items()}
        return [[packed(key), packed(entry)] for key, entry in mapping.items()]
    if isinstance(value, (list, tuple, set)):
        return [packed(entry) for entry in cast("list[object]", value)]
    return [
        packed(getattr(value, name))
        for name in _field_types(cast("Hashable", type(value)))
    ]


def unpacked(kind: type[T], value: object) -> T:
    """Return the value of type *kind* that `packed` turned into *value*."""
    return cast("T", _unpacked(kind, value))


def _unpacked(kind: Any, value: Any) -> Any:
    if kind is bytes:
        return b64decode(value)
    if is_dataclass(kind):
        return cast("Any", kind)(
            *map(_unpacked, _field_types(cast("Hashable", kind)).values(), value)
        )
    container: Any = get_origin(kind)
    arguments = get_args(kind)
    if container is tuple:
        kinds = repeat(arguments[0]) if arguments[-1] is ... else arguments
        return tuple(map(_unpacked, kinds, value))
    if container is list or container is set:
        entries: list[Any] = [_unpacked(arguments[0], entry) for entry in value]
        return entries if container is list else set(entries)
    if container is dict:
        pairs: Any = value
        if isinstance(value, dict):
            pairs = cast("dict[str, Any]", value).items()
        key_kind, entry_kind = arguments
        return {
            _unpacked(key_kind, key): _unpacked(entry_kind, entry)
            for key, entry in pairs
        }
    # Numbers, texts and JSON are stored as they are.
    return value


@cache
def _field_types(kind: Hashable) -> Mapping[str, object]:
    """Return the type of each field of a dataclass, in order."""
    dataclass = cast("Any", kind)
    hints = get_type_hints(dataclass)
    return {field.name: hints[field.name] for field in fields(dataclass)}
