"""Protobuf wire format by hand: the few shapes that emission writes.

Hand-packed so that a training process need not import protobuf, and so that a row costs
microseconds. Bytes equal those of protobuf for the same message: fields in order of number, default
values left out (tests/emit/encode/test_protobuf.py). Source:
protobuf.dev/programming-guides/encoding; opentelemetry-proto, common.proto, ``AnyValue``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from struct import Struct
from typing import TypeAlias

Attribute: TypeAlias = "bool | int | float | str | bytes | Sequence[Attribute] | Mapping[str, Attribute] | None"

MASK_64 = (1 << 64) - 1
pack_double: Callable[[float], bytes] = Struct("<d").pack
pack_fixed64: Callable[[int], bytes] = Struct("<Q").pack

_CACHED_KEYS = 4096
"""Keys whose bytes are kept: those of metadata are the program's own, and may be ever new."""
_DECIMAL_BITS = 2_000
"""Integers of at most this many bits have decimal digits at any limit: the lowest is 640 digits, about 2,126 bits."""
_ONE_BYTE = tuple(bytes((number,)) for number in range(128))
_DOUBLE_HEAD = b"\x12\x09\x21"
"""What stands before a double in a ``KeyValue``: field 2, nine bytes long, an ``AnyValue`` whose field 4 it is."""
DELTA = b"\x10\x01"
"""Field 2 of a histogram, ``aggregation_temporality``, as DELTA: each point counts its own values alone."""


def varint(number: int) -> bytes:
    """Encode *number*.

    Negative ones as the 64 bits of their two's complement, larger ones by their low 64 bits. Up to
    three bytes without a loop: a row has a dozen of them.
    """
    # Nearly every tag and length: one lookup.
    if 0 <= number < 128:
        return _ONE_BYTE[number]
    if 0 <= number < 16384:
        return bytes((number & 127 | 128, number >> 7))
    if 0 <= number < 2097152:
        return bytes((number & 127 | 128, number >> 7 & 127 | 128, number >> 14))
    # Before the loop, which would not end for a negative number.
    number &= MASK_64
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def zigzag(number: int) -> bytes:
    """Encode *number* as a ``sint32``."""
    return varint(number << 1 if number >= 0 else (-number << 1) - 1)


def message(field: int, payload: bytes) -> bytes:
    """Encode a length-delimited field (message, string, bytes), also an empty one."""
    # Nearly all of them, without a call for the tag and the length.
    if field < 16 and len(payload) < 128:
        return _ONE_BYTE[field << 3 | 2] + _ONE_BYTE[len(payload)] + payload
    return message_head(field, len(payload)) + payload


def message_head(field: int, size: int) -> bytes:
    """Encode what stands before the *size* bytes of a length-delimited field."""
    return varint(field << 3 | 2) + varint(size)


def text(field: int, value: str) -> bytes:
    """Encode a string field; an empty one is left out."""
    if value:
        return message(field, utf8(value))
    return b""


def fixed64(field: int, value: int) -> bytes:
    """Encode a ``fixed64`` field; zero is left out."""
    if value:
        return varint(field << 3 | 1) + pack_fixed64(value & MASK_64)
    return b""


def double(field: int, value: float) -> bytes:
    """Encode a ``double`` field that has presence: zero is written."""
    return varint(field << 3 | 1) + pack_double(value)


def utf8(value: str) -> bytes:
    """Encode text; lone surrogates, which no protobuf parser accepts, become question marks."""
    return value.encode("utf-8", "replace")


def any_value(value: Attribute) -> bytes:
    """Encode an ``AnyValue``.

    Integers beyond 64 bit become text, so that no digit is lost; ``None`` is an empty one.
    """
    if isinstance(value, str):
        return message(1, utf8(value))
    if isinstance(value, bytes):
        return message(7, value)
    if value is None or isinstance(value, (int, float)):
        return _number(value)
    if isinstance(value, Mapping):
        entries = [message(1, key_value(key, item)) for key, item in value.items()]
        return message(6, b"".join(entries))
    return message(5, b"".join([message(1, any_value(item)) for item in value]))


def _number(value: bool | int | float | None) -> bytes:
    """Encode the one field of an ``AnyValue`` for *value*; ``None`` has none.

    The first byte is the tag: 0x10 of ``bool_value``, 0x18 of ``int_value``, 0x21 of
    ``double_value``. A bool is an int in Python, so that it comes first.
    """
    if value is None:
        return b""
    if isinstance(value, bool):
        if value:
            return b"\x10\x01"
        return b"\x10\x00"
    if isinstance(value, float):
        return b"\x21" + pack_double(value)
    if -(1 << 63) <= value < 1 << 63:
        return b"\x18" + varint(value)
    return message(1, _digits(value).encode())


def _digits(value: int) -> str:
    """Return the digits of an integer, hexadecimal ones where Python may refuse decimal ones."""
    if value.bit_length() <= _DECIMAL_BITS:
        return str(value)
    return hex(value)


@lru_cache(_CACHED_KEYS)
def key_field(name: str) -> bytes:
    """Encode the key of a ``KeyValue``; a known key costs one lookup."""
    return text(1, name)


def key_value(key: str, value: Attribute) -> bytes:
    """Encode a ``KeyValue``."""
    # Statistics of rollouts are thousands of them a step.
    if type(value) is float:
        return key_field(key) + _DOUBLE_HEAD + pack_double(value)
    return key_field(key) + message(2, any_value(value))


def attributes(field: int, pairs: Iterable[tuple[str, Attribute]]) -> bytes:
    """Encode repeated ``KeyValue`` fields, in the order given.

    A key without a value (``None``) is left out.
    """
    fields: list[bytes] = []
    for key, value in pairs:
        if value is not None:
            fields.append(message(field, key_value(key, value)))
    return b"".join(fields)
