"""Converts OTLP/JSON to the equivalent protobuf message: protobuf's own JSON, but ids are in hex.

Source: opentelemetry-specification, protocol/otlp.md, "JSON Protobuf Encoding"; protobuf,
"ProtoJSON Format".
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from functools import cache
from typing import TypeVar, cast

import orjson
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.json_format import ParseDict, ParseError
from google.protobuf.message import Message

from otel_bridge.errors import InvalidRecordError
from otel_bridge_collector.error_table import TooLargeError

M = TypeVar("M", bound=Message)
_HEX = frozenset({"trace_id", "span_id", "parent_span_id"})
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]*={0,2}")
_DEPTH = 100
"""Deepest nesting of messages: protobuf's own limit. Python's stack would end at fewer levels than orjson reads."""
_SHOWN = 40
"""Most characters of a wrong value that an error shows."""
_REASON_SHOWN = 400
"""Most characters of protobuf's reason, which may hold a value as large as the request."""


def message_of(kind: type[M], body: bytes) -> M:
    """Return the message of the JSON text *body*.

    Raises:
        InvalidRecordError: *body* is not JSON, or has a value that its field cannot hold.
        TooLargeError: Its messages nest deeper than `_DEPTH`.
    """
    try:
        raw: object = orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        raise InvalidRecordError(
            f"body of {len(body)} bytes is not JSON: {exc}"
        ) from exc
    fields = _known_fields(raw, cast("Descriptor", kind.DESCRIPTOR), "", 1)
    try:
        return ParseDict(fields, kind())
    except ParseError as exc:
        raise InvalidRecordError(
            f"a value does not fit its field: {str(exc)[-_REASON_SHOWN:]}"
        ) from exc


def _known_fields(
    value: object, kind: Descriptor, path: str, depth: int
) -> dict[str, object]:
    """Return the fields of an object that its message type has, with ids in base64.

    Unknown keys are of a newer OTLP. protobuf could ignore them itself, but would then take a text
    where an object is expected for an empty object.

    Raises:
        InvalidRecordError: *value* is not an object, or bytes in it are not hex or base64.
        TooLargeError: *value*, which is *depth* messages deep, is too deep.
    """
    if depth > _DEPTH:
        raise TooLargeError(
            f"JSON request nests deeper than {_DEPTH} messages; send flat values"
        )
    if not isinstance(value, dict):
        name = path.rstrip(".") or "the request"
        raise InvalidRecordError(f"{name}: expected an object, got {_shown(value)}")
    fields = _fields_by_key(kind)
    arguments: dict[str, object] = {}
    for key, item in cast("dict[str, object]", value).items():
        field = fields.get(key)
        # ProtoJSON: null means unset.
        if field is None or item is None:
            continue
        if field.type == FieldDescriptor.TYPE_BYTES:
            arguments[key] = _base64(item, f"{path}{key}", is_hex=field.name in _HEX)
        elif field.message_type is None:
            arguments[key] = item
        elif isinstance(item, list):
            elements: list[object] = []
            for index, element in enumerate(cast("list[object]", item)):
                place = f"{path}{key}[{index}]."
                elements.append(
                    _known_fields(element, field.message_type, place, depth + 1)
                )
            arguments[key] = elements
        else:
            place = f"{path}{key}."
            arguments[key] = _known_fields(item, field.message_type, place, depth + 1)
    return arguments


@cache
def _fields_by_key(kind: Descriptor) -> Mapping[str, FieldDescriptor]:
    return {field.json_name: field for field in kind.fields}


def _base64(value: object, name: str, *, is_hex: bool) -> str:
    """Return bytes as protobuf reads them, which skips characters that are not base64.

    So these are refused here, or an id would arrive as another one.

    Raises:
        InvalidRecordError: *value* is not hex, or not base64, as its field demands.
    """
    if isinstance(value, str) and is_hex:
        try:
            return base64.b64encode(binascii.unhexlify(value)).decode()
        except ValueError:
            pass
    elif isinstance(value, str) and _BASE64.fullmatch(value):
        return value
    encoding = "an id in hex" if is_hex else "base64"
    raise InvalidRecordError(f"{name}: expected {encoding}, got {_shown(value)}")


def _shown(value: object) -> str:
    """Return the beginning of *value*, which may be as large and as deep as the whole request."""
    if isinstance(value, (list, dict)):
        return type(cast("object", value)).__name__
    text = repr(value[:_SHOWN] if isinstance(value, str) else value)
    if len(text) <= _SHOWN:
        return text
    return f"{text[: _SHOWN - 1]}…"
