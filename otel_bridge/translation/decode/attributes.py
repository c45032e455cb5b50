"""OTLP attribute values -> Python values. Pure.

Source: opentelemetry-proto, common.proto, ``AnyValue``, ``KeyValue``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from otel_bridge.records import Json

_MAX_DEPTH = 32
"""Deepest nesting that is read. Trackers show nothing deeper, and the reader must not recurse
without bound."""


def value_of(value: AnyValue, depth: int = 0) -> Json:
    """Return *value* as a JSON-able Python value.

    Bytes become hex digits, unset or too deep values ``None``.
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
    return _SCALARS[kind](value) if kind in _SCALARS else None


_SCALARS: Mapping[str, Callable[[AnyValue], Json]] = {
    "string_value": lambda value: value.string_value,
    "int_value": lambda value: value.int_value,
    "double_value": lambda value: value.double_value,
    "bool_value": lambda value: value.bool_value,
}


def mapping_of(pairs: Iterable[KeyValue], depth: int = 0) -> dict[str, Json]:
    """Return *pairs* as a dict; of two equal keys the later value wins."""
    return {pair.key: value_of(pair.value, depth) for pair in pairs}


def text_in(attributes: Mapping[str, object], key: str) -> str:
    """Return the text under *key*, empty when the key is missing; numbers are written as text."""
    value = attributes.get(key)
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return ""


def int_in(attributes: Mapping[str, object], key: str) -> int | None:
    """Return the integer under *key*; whole floats and digits count, anything else is ``None``."""
    return integer(attributes.get(key))


def integer(value: object) -> int | None:
    """Return *value* as an integer when it is an int, a whole float, or digits."""
    # A bool is an int in Python, but not a number on the wire.
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    # More digits than 64 bits have are not a step or a number of a row.
    if (
        isinstance(value, str)
        and len(value) < 20
        and value.strip().lstrip("-").isdecimal()
    ):
        try:
            return int(value)
        except ValueError:
            return None
    return None
