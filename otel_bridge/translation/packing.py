"""Dataclasses <-> JSON of the state: a list of the fields, by their types. Pure."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Hashable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from itertools import repeat
from types import UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from otel_bridge.records import Json
from otel_bridge.translation.state import TranslationState, named

T = TypeVar("T")
NOT_STORED = {"stored": False}
"""Metadata of a dataclass's field that the state does not hold; the field has a default."""


def packed(value: object) -> Json:
    """Return *value* as JSON.

    A dataclass is the list of its fields, bytes are base 64. A mapping with keys of another type
    than text is a list of pairs.

    Raises:
        TypeError: A value within is none of these and not JSON; no type that is stored has one.
    """
    if _is_plain(value):
        return cast("Json", value)
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, dict):
        mapping = cast("dict[object, object]", value)
        if all(isinstance(key, str) for key in mapping):
            return {str(key): packed(entry) for key, entry in mapping.items()}
        return [[packed(key), packed(entry)] for key, entry in mapping.items()]
    if isinstance(value, (list, tuple, set, frozenset)):
        return [packed(entry) for entry in cast("list[object]", value)]
    return [
        packed(getattr(value, name))
        for name in _field_types(cast("Hashable", type(value)))
    ]


def unpacked(kind: type[T], value: object) -> T:
    """Return the value of type *kind* that `packed` turned into *value*.

    Raises:
        ValueError: *value* was stored by another version, whose fields differ. `LEDGER_FORMAT` rises
            with them, so that the ledger is refused before its state is read.
    """
    return cast("T", _unpacked(kind, value))


def unpacked_below(kind: type[T], state: TranslationState, prefix: str) -> dict[str, T]:
    """Return the values of type *kind* that are stored below *prefix*, by the rest of their keys.

    Empty without any; raises as `unpacked` does.
    """
    return {key: unpacked(kind, stored) for key, stored in named(state, prefix).items()}


def _unpacked(kind: Any, value: Any) -> Any:
    """Return *value* as *kind*; see `packed` for the forms.

    Raises:
        ValueError: A dataclass has another number of fields than was stored: the ledger's format must rise.
    """
    if kind is bytes:
        return b64decode(value)
    # Most values by far: a bridge that begins again may read a million.
    # A member of an enum is stored as its text or number too.
    if _is_plain(value) and not _has_enum(kind):
        return value
    if is_dataclass(kind):
        types = _field_types(cast("Hashable", kind)).items()
        return cast("Any", kind)(
            **{
                name: _unpacked(field_kind, entry)
                for (name, field_kind), entry in zip(types, value, strict=True)
            }
        )
    if _is_enum(kind):
        return kind(value)
    if get_origin(kind) in {Union, UnionType}:
        return _unpacked(_alternative(get_args(kind), value), value)
    return _unpacked_container(kind, value)


def _unpacked_container(kind: Any, value: Any) -> Any:
    """Return a tuple, list, set or dict of unpacked entries.

    A value of another kind is JSON, as it is.
    """
    container: Any = get_origin(kind)
    arguments = get_args(kind)
    if container is tuple:
        kinds = repeat(arguments[0]) if arguments[-1] is ... else arguments
        return tuple(map(_unpacked, kinds, value))
    if container in {list, set, frozenset}:
        collection: Any = cast("Any", container)
        return collection(_unpacked(arguments[0], entry) for entry in value)
    if container is dict:
        pairs: Any = value
        if isinstance(value, dict):
            pairs = cast("dict[str, Any]", value).items()
        key_kind, entry_kind = arguments
        return {
            _unpacked(key_kind, key): _unpacked(entry_kind, entry)
            for key, entry in pairs
        }
    # JSON is stored as it is.
    return value


def _alternative(kinds: tuple[Any, ...], value: object) -> object:
    """Return which of *kinds* the stored *value* is of; ``object`` for one that is stored as it is.

    Only one part of a union is stored as a list, so that the stored form decides.
    """
    for kind in kinds:
        has_parts = is_dataclass(kind) or get_origin(kind) is not None
        if (_is_enum(kind) and value is not None) or (
            has_parts and isinstance(value, list)
        ):
            return kind
    return object


@cache
def _has_enum(kind: Hashable) -> bool:
    """Return whether *kind* is an enum, or a union with one."""
    return any(map(_is_enum, get_args(kind) or (kind,)))


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, (str, int, float))


def _is_enum(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Enum)


@cache
def _field_types(kind: Hashable) -> Mapping[str, object]:
    """Return the type of each stored field of a dataclass, in order."""
    dataclass = cast("Any", kind)
    hints = get_type_hints(dataclass)
    return {
        field.name: hints[field.name]
        for field in fields(dataclass)
        if field.metadata.get("stored", True)
    }
