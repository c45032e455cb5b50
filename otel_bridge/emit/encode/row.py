"""One ``log()`` call -> one ``ScopeMetrics`` message: a gauge point for each value, and ``rl.row``.

Source: opentelemetry-proto, metrics.proto; bytes equal those of
opentelemetry-exporter-otlp-proto-common (tests/emit/encode/test_rows.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from struct import Struct

from otel_bridge.emit.encode.buckets import BucketPoint, encode_buckets
from otel_bridge.emit.encode.histogram import HistogramPoint, encode_point
from otel_bridge.emit.encode.protobuf import (
    attributes,
    message,
    text,
    varint,
)
from otel_bridge.emit.encode.values import Value
from otel_bridge.semconv import ROLE, ROW, ROW_TIME, SCOPE_NAME, SEQ, STEP

SCOPE = message(1, text(1, SCOPE_NAME))
"""Field 1 of ``ScopeMetrics``, ``ScopeSpans`` and ``ScopeLogs`` alike."""

_CACHED_KEYS = 8192
"""Most keys whose constant bytes are kept, for each size of a point's attributes."""
_CACHED_SIZES = 4
"""Most sizes of a point's attributes whose prefixes are kept: it grows with the step, by a byte at a time."""
_GAUGE_ATTRIBUTES = 7
_timed_double = Struct("<Qcd").pack
_timed_int = Struct("<Qcq").pack
_AS_DOUBLE = b"\x21"
_AS_INT = b"\x31"
_INT_VALUE = b"\x18"
"""Tag of ``AnyValue.int_value``."""
_STEP = text(1, STEP)
_SEQ = text(1, SEQ)


def encode_row(
    values: Mapping[str, Value],
    time_unix_ns: int,
    step: int,
    role: str | None,
    seq: int | None,
    *,
    earlier_values: int = 0,
    own_ns: int = 0,
) -> bytes:
    """Encode the points of a row, or of a part of one, and the number of the row, which completes it.

    Parts of a row have one time, by which the bridge joins them, and the last part has the
    number. The bridge releases the row once it has all values, or without its number when its
    process has ended.

    Args:
        values: Result of `otel_bridge.emit.encode.values.flatten`.
        time_unix_ns: Time of every point.
        step: Step, masked to 64 bits.
        role: Role, when it differs from the resource's.
        seq: Number of the row in this process; ``None`` if parts follow.
        earlier_values: Number of values in the parts before.
        own_ns: The row's own wall time, 0 for *time_unix_ns*; unlike that, it may repeat and go
            back.
    """
    suffix = _point_attributes(_GAUGE_ATTRIBUTES, step, role)
    prefixes = _prefixes(len(suffix))
    pieces = [SCOPE]
    for name, value in values.items():
        # Nearly all values are numbers, most of them floats.
        if type(value) is float:
            point = _timed_double(time_unix_ns, _AS_DOUBLE, value)
            pieces.append(prefixes[name] + point + suffix)
        elif isinstance(value, int):
            point = _timed_int(time_unix_ns, _AS_INT, value)
            pieces.append(prefixes[name] + point + suffix)
        elif isinstance(value, HistogramPoint):
            # Attributes have another field in each kind of point.
            point = encode_point(value, time_unix_ns, _point_attributes(1, step, role))
            pieces.append(message(2, text(1, name) + point))
        elif isinstance(value, BucketPoint):
            point = encode_buckets(
                value, time_unix_ns, _point_attributes(9, step, role)
            )
            pieces.append(message(2, text(1, name) + point))
    if seq is not None:
        suffix += _int_attribute(_GAUGE_ATTRIBUTES, _SEQ, seq)
        if own_ns:
            suffix += attributes(_GAUGE_ATTRIBUTES, ((ROW_TIME, own_ns),))
        point = _timed_int(time_unix_ns, _AS_INT, earlier_values + len(values))
        pieces += (_prefixes(len(suffix))[ROW], point, suffix)
    return b"".join(pieces)


class _Prefixes(dict[str, bytes]):
    """Maps the name of a metric to the bytes of a gauge with one point, from the metric's tag to the time's.

    They are constant for a key, and most of a row's bytes: made anew they take three times as long.

    Args:
        suffix_bytes: Size of the point's attributes.
    """

    def __init__(self, suffix_bytes: int) -> None:
        super().__init__()
        # A time and one number are 18 bytes.
        self._point_bytes = 18 + suffix_bytes

    def __missing__(self, name: str) -> bytes:
        name_field = text(1, name)
        point = varint(self._point_bytes)
        gauge = varint(1 + len(point) + self._point_bytes)
        metric = varint(
            len(name_field) + 1 + len(gauge) + 1 + len(point) + self._point_bytes
        )
        prefix = b"".join(
            (b"\x12", metric, name_field, b"\x2a", gauge, b"\x0a", point, b"\x19")
        )
        # Bounds the memory of a program whose keys are ever new.
        if len(self) >= _CACHED_KEYS:
            self.clear()
        self[name] = prefix
        return prefix


@lru_cache(_CACHED_SIZES)
def _prefixes(suffix_bytes: int) -> _Prefixes:
    """Return the prefixes of points whose attributes take *suffix_bytes*: the step's digits and the role decide."""
    return _Prefixes(suffix_bytes)


def _point_attributes(field: int, step: int, role: str | None) -> bytes:
    """Encode what every point of a row has, as *field* of its kind of point."""
    of_step = _int_attribute(field, _STEP, step)
    if role is None:
        return of_step
    return of_step + attributes(field, ((ROLE, role),))


def _int_attribute(field: int, key: bytes, number: int) -> bytes:
    """Encode an integer attribute, masked to 64 bits; each row has two, so all but the number's bytes are kept."""
    digits = varint(number)
    return _int_attribute_head(field, key, len(digits)) + digits


@lru_cache(64)  # two keys, three kinds of points, ten lengths of a number
def _int_attribute_head(field: int, key: bytes, digit_bytes: int) -> bytes:
    """Return the bytes of an integer attribute before its number of *digit_bytes* bytes: only its length counts."""
    value = message(2, _INT_VALUE + bytes(digit_bytes))
    return message(field, key + value)[:-digit_bytes]
