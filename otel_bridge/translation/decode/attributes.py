"""OTLP attribute values -> Python values. Pure.

Source: opentelemetry-proto, common.proto, ``AnyValue``, ``KeyValue``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import cast

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from otel_bridge.records import Json

_MAX_INT = 1 << 63
_MAX_INTS = 64
_MAX_DEPTH = 32
"""Deepest nesting that is read. Trackers show nothing deeper, and the reader must not recurse
without bound."""


def value_of(value: AnyValue, depth: int = 0) -> Json:
    """Return *value* as a JSON-able Python value.

    Bytes become hex digits, unset or too deep values ``None``.

    Deeper values are left out, because this recurses and a producer may nest without bound.
    """
    kind = value.WhichOneof("value")
    if kind is None or depth > _MAX_DEPTH:
        return None
    if kind == "array_value":
        return [value_of(item, depth + 1) for item in value.array_value.values]
    if kind == "kvlist_value":
        return mapping_of(value.kvlist_value.values, depth + 1)
    if kind == "bytes_value":
        return value.bytes_value.hex()
    # Newer versions of OTLP have values that only profiles use: they are unset here.
    if kind not in _SCALARS:
        return None
    return cast("Json", getattr(value, kind))


_SCALARS = frozenset({"string_value", "int_value", "double_value", "bool_value"})


def mapping_of(pairs: Iterable[KeyValue], depth: int = 0) -> dict[str, Json]:
    """Return *pairs* as a dict; of two equal keys the later value wins."""
    # A value that is not text reads as the empty text, which is falsy: only such values take the
    # longer way.
    return {
        pair.key: pair.value.string_value or value_of(pair.value, depth)
        for pair in pairs
    }


def is_trace_id(data: bytes) -> bool:
    """Return whether *data* is a valid trace id: 16 bytes that are not all 0."""
    return len(data) == 16 and any(data)


def is_span_id(data: bytes) -> bool:
    """Return whether *data* is a valid span id: 8 bytes that are not all 0."""
    return len(data) == 8 and any(data)


def keys_of(pairs: Iterable[KeyValue]) -> set[str]:
    """Return the keys of *pairs*, whose values may be long and are not read."""
    return {pair.key for pair in pairs}


def text_in(attributes: Mapping[str, object], key: str) -> str:
    """Return the text under *key*, empty when the key is missing; numbers are written as text."""
    return as_name(attributes.get(key)) or ""


def int_in(attributes: Mapping[str, object], key: str) -> int | None:
    """Return the integer under *key*; whole floats and digits count, anything else is ``None``."""
    return as_int(attributes.get(key))


def as_int(value: object) -> int | None:
    """Return *value* as a whole number of at most 64 bits, text accepted.

    ``None`` for anything else.

    A text of more than 20 characters is not parsed: no number of 64 bits is so long.
    """
    if isinstance(value, str):
        try:
            value = int(value) if len(value) <= 20 and "_" not in value else None
        except ValueError:
            return None
    if isinstance(value, float):
        value = int(value) if value.is_integer() else None
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    if -_MAX_INT <= value < _MAX_INT:
        return value
    return None


def as_ints(value: object) -> tuple[int, ...] | None:
    """Return *value* as at most 64 whole numbers; ``None`` for anything else.

    The number of entries is bounded: each is stored with its process.
    """
    if not isinstance(value, list) or len(cast("list[object]", value)) > _MAX_INTS:
        return None
    integers: list[int] = []
    for entry in cast("list[object]", value):
        integer = as_int(entry)
        if integer is None:
            return None
        integers.append(integer)
    return tuple(integers)


def as_float(value: object) -> float | None:
    """Return *value* as a number, text and non-finite numbers accepted.

    ``None`` for anything else.

    An integer beyond all floats is infinite, a text of 64 or more characters is not parsed.
    """
    if isinstance(value, (bool, int, float)):
        try:
            return float(value)
        except OverflowError:
            if value > 0:
                return math.inf
            return -math.inf
    try:
        # A longer text is not a number, and is not worth the parse. Python alone has underscores.
        if isinstance(value, str) and len(value) < 64 and "_" not in value:
            return float(value)
        return None
    except ValueError:
        return None


def as_name(value: object) -> str | None:
    """Return *value*, a text or a number, as text.

    ``None`` for anything else, the empty text included.
    """
    if isinstance(value, str):
        return value or None
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    return None
