"""Converts OTLP/JSON to the equivalent protobuf message, by the rules of OTLP where they differ from protobuf's.

Ids are hex, not base64; enums are numbers, not names; unknown keys are ignored; keys are
lowerCamelCase. 64-bit numbers come as text or number, doubles also as ``"NaN"``, ``"Infinity"``,
``"-Infinity"``, other bytes as base64. Each message type has one plan, made once from its
descriptor. One pass renames the keys, and protobuf builds the message in C.

Source: opentelemetry-specification, protocol/otlp.md, "JSON Protobuf Encoding"; protobuf,
"ProtoJSON Format".
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import TypeVar, cast

import orjson
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from otel_bridge.errors import InvalidRecordError

M = TypeVar("M", bound=Message)
_HEX = frozenset({"trace_id", "span_id", "parent_span_id"})
_DEPTH = 100
"""Deepest nesting of messages: protobuf's own limit."""
_SHOWN = 40
"""Most characters of a wrong value that an error shows."""
_NUMBER = re.compile(r"[+-]?(\d*\.)?\d+([eE][+-]?\d+)?", re.ASCII)
_WORDS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_F = FieldDescriptor
_INTEGERS = frozenset(
    {
        _F.TYPE_INT32, _F.TYPE_INT64, _F.TYPE_UINT32, _F.TYPE_UINT64, _F.TYPE_SINT32, _F.TYPE_SINT64,
        _F.TYPE_FIXED32, _F.TYPE_FIXED64, _F.TYPE_SFIXED32, _F.TYPE_SFIXED64,
    }
)  # fmt: skip
_Convert = Callable[[object, int], object]


class _BadValueError(ValueError):
    """Raised for a value that its field cannot hold; callers add the path to the value."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.path: list[str] = []


def message_of(kind: type[M], body: bytes) -> M:
    """Return the message of the JSON text *body*.

    Raises:
        InvalidRecordError: *body* is not JSON, or has a value of the wrong type, whose path the
            error names.
    """
    try:
        raw: object = orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        raise InvalidRecordError(
            f"body of {len(body)} bytes is not JSON: {exc}"
        ) from exc
    try:
        return kind(**_fields(raw, _plan(kind.DESCRIPTOR), 0))
    except _BadValueError as exc:
        path = ".".join(reversed(exc.path)).replace(".[", "[")
        raise InvalidRecordError(f"{path or 'the request'}: {exc}") from exc
    except (
        ValueError,
        TypeError,
        OverflowError,
    ) as exc:  # numbers out of their field's range
        raise InvalidRecordError(f"a value does not fit its field: {exc}") from exc


class _Plan:
    """Describes how the fields of one message type are read: JSON key to name, converter, and oneof or ``None``."""

    __slots__ = ("fields",)

    def __init__(self) -> None:
        self.fields: dict[str, tuple[str, _Convert, str | None]] = {}


@cache
def _plan(kind: Descriptor) -> _Plan:
    plan = _Plan()
    # Before its fields are read: AnyValue holds lists of AnyValue.
    _begun[kind.full_name] = plan
    for field in kind.fields:
        oneof = None
        if not _is_optional(field):
            oneof = field.containing_oneof
        oneof_name = None if oneof is None else oneof.name
        plan.fields[field.json_name] = (field.name, _reader(field), oneof_name)
    return plan


_begun: dict[str, _Plan] = {}
"""Plans that are complete or being built, because messages hold messages of their own type."""


def _is_optional(field: FieldDescriptor) -> bool:
    """Return whether *field* is ``optional``: protobuf puts such a field in a oneof of its own."""
    oneof = field.containing_oneof
    return (
        oneof is not None and len(oneof.fields) == 1 and oneof.name == f"_{field.name}"
    )


def _reader(field: FieldDescriptor) -> _Convert:
    convert = _reader_of_one(field)
    if _is_repeated(field):
        return _all_of(convert)
    return convert


def _is_repeated(field: FieldDescriptor) -> bool:
    # From protobuf 6.31 on; `label` goes away.
    is_repeated = cast("bool | None", getattr(field, "is_repeated", None))
    if is_repeated is None:
        return bool(getattr(field, "label", 0) == 3)
    return is_repeated


def _reader_of_one(field: FieldDescriptor) -> _Convert:
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        kind = field.message_type
        assert kind is not None  # noqa: S101  # it is a message
        plan = _begun.get(kind.full_name) or _plan(kind)
        return lambda value, depth: _fields(value, plan, depth + 1)
    if field.type in _INTEGERS:
        return _integer
    if field.type == FieldDescriptor.TYPE_BYTES:
        if field.name in _HEX:
            return _hex
        return _base64
    return _SCALARS[field.type]


def _all_of(convert_item: _Convert) -> _Convert:
    def read(value: object, depth: int) -> object:
        if not isinstance(value, list):
            raise _expected("an array", value)
        items: list[object] = []
        try:
            for item in cast("list[object]", value):
                items.append(
                    convert_item(item, depth)
                )  # an error needs the index of the bad item
        except _BadValueError as exc:
            exc.path.append(f"[{len(items)}]")
            raise
        return items

    return read


def _fields(value: object, plan: _Plan, depth: int) -> dict[str, object]:
    """Return the keyword arguments of a message."""
    if not isinstance(value, dict):
        raise _expected("an object", value)
    if depth > _DEPTH:
        raise _BadValueError(f"nested deeper than {_DEPTH} messages")
    arguments: dict[str, object] = {}
    oneofs: set[str] | None = None
    for key, item in cast("dict[str, object]", value).items():
        field = plan.fields.get(key)
        # Unknown keys are of a newer OTLP; null means unset (ProtoJSON).
        if field is None or item is None:
            continue
        name, convert, oneof = field
        try:
            arguments[name] = convert(item, depth)
        except _BadValueError as exc:
            exc.path.append(key)
            raise
        if oneof is not None:
            if oneofs is None:
                oneofs = {oneof}
            elif oneof in oneofs:
                raise _BadValueError(
                    f"{key} beside another of {oneof}: expected one of them"
                )
            else:
                oneofs.add(oneof)
    return arguments


def _integer(value: object, depth: int) -> object:
    del depth
    if type(value) is int:
        return value
    # Bounded: int() of a long text takes time that grows with its square.
    if isinstance(value, str) and len(value) < 40:
        digits = value.lstrip("-")
        if digits.isascii() and digits.isdecimal():
            return int(value)
    # ProtoJSON takes 1e3 and 1.0 for an integer.
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**64:
        return int(value)
    raise _expected("an integer, as number or text", value)


def _enum(value: object, depth: int) -> object:
    del depth
    if type(value) is int and -(2**31) <= value < 2**31:
        return value
    raise _expected("the number of an enum (OTLP takes no names)", value)


def _double(value: object, depth: int) -> object:
    del depth
    if isinstance(value, float) or type(value) is int:
        return float(value)
    if isinstance(value, str) and len(value) < 400:
        if value in _WORDS:
            return _WORDS[value]
        # `float` takes more than JSON has: "inf", " 1", "1_0" and other alphabets' digits.
        if _NUMBER.fullmatch(value):
            return float(value)
    raise _expected('a number, "NaN", "Infinity" or "-Infinity"', value)


def _bool(value: object, depth: int) -> object:
    del depth
    if isinstance(value, bool):
        return value
    raise _expected("true or false", value)


def _text(value: object, depth: int) -> object:
    del depth
    if isinstance(value, str):
        return value
    raise _expected("a text", value)


def _hex(value: object, depth: int) -> object:
    del depth
    if isinstance(value, str):
        try:
            return binascii.unhexlify(value)
        except ValueError:
            pass
    raise _expected("an id in hex", value)


def _base64(value: object, depth: int) -> object:
    del depth
    if isinstance(value, str):
        # ProtoJSON takes both alphabets, and no padding.
        text = value.replace("-", "+").replace("_", "/")
        try:
            return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
        except ValueError:
            pass
    raise _expected("base64", value)


def _expected(expectation: str, value: object) -> _BadValueError:
    return _BadValueError(f"expected {expectation}, got {_shown(value)}")


def _shown(value: object) -> str:
    """Return the beginning of *value*.

    An array or object may be as large and as deep as the whole request.
    """
    if isinstance(value, (list, dict)):
        return f"an {'array' if isinstance(value, list) else 'object'} of {len(cast('list[object]', value))}"
    text = repr(value[:_SHOWN] if isinstance(value, str) else value)
    if len(text) <= _SHOWN:
        return text
    return f"{text[: _SHOWN - 1]}…"


_SCALARS: Mapping[int, _Convert] = {
    FieldDescriptor.TYPE_DOUBLE: _double,
    FieldDescriptor.TYPE_FLOAT: _double,
    FieldDescriptor.TYPE_BOOL: _bool,
    FieldDescriptor.TYPE_STRING: _text,
    FieldDescriptor.TYPE_ENUM: _enum,
}
