"""One ``log()`` call -> one ``ScopeMetrics`` message: a gauge point for each value, and ``rl.row``.

Source: opentelemetry-proto, metrics.proto; bytes equal those of
opentelemetry-exporter-otlp-proto-common (tests/emit/encode/test_rows.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from struct import Struct
from typing import Any

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

_LAYOUTS = 128
_LAYOUT_KEYS = 128
"""Most keys of a layout. At some 300 bytes a key, all layouts take at most 5 MB."""
_GAUGE_ATTRIBUTES = 7
_NUMBERS: dict[type, tuple[bytes, str]] = {
    float: (b"\x21", "d"),
    int: (b"\x31", "q"),
    bool: (b"\x31", "q"),
}
"""Type of a number, to its tag in a point and its code of `struct`."""
_NUMBER_TYPES = frozenset(_NUMBERS)
_FLOATS = frozenset({float})
_INT_VALUE = b"\x18"
"""Tag of ``AnyValue.int_value``."""
_STEP = text(1, STEP)
_SEQ = text(1, SEQ)


class RowShape:
    """Holds what rows with the same names and types of values have in common: most are like the row before.

    Args:
        values: Result of `otel_bridge.emit.encode.values.flatten`.
    """

    __slots__ = (
        "_has_distributions",
        "_holds_floats",
        "_kinds",
        "_last_layout",
        "_names",
    )

    def __init__(self, values: Mapping[str, Value]) -> None:
        kinds = tuple(map(type, values.values()))
        self._has_distributions = not _NUMBER_TYPES.issuperset(kinds)
        numbers = values
        if self._has_distributions:
            numbers = _numbers_of(values)
            kinds = tuple(map(type, numbers.values()))
        self._names = tuple(numbers)
        self._kinds = kinds
        self._holds_floats = not self._has_distributions and _FLOATS.issuperset(kinds)
        self._last_layout: _Layout | None = None

    def fits_floats(self, values: Mapping[str, object]) -> bool:
        """Return whether *values*, whose names are those of this shape, are floats as the values of it."""
        return self._holds_floats and _FLOATS.issuperset(map(type, values.values()))

    def encode(
        self,
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
            values: Values of this shape.
            time_unix_ns: Time of every point.
            step: Step, of 64 bits.
            role: Role, when it differs from the resource's.
            seq: Number of the row in this process; ``None`` if parts follow.
            earlier_values: Number of values in the parts before.
            own_ns: The row's own wall time, 0 for *time_unix_ns*; unlike that, it may repeat and go
                back.
        """
        suffix = _point_attributes(_GAUGE_ATTRIBUTES, step, role)
        row_suffix = b""
        if seq is not None:
            row_suffix = suffix + _int_attribute(_GAUGE_ATTRIBUTES, _SEQ, seq)
            if own_ns:
                row_suffix += attributes(_GAUGE_ATTRIBUTES, ((ROW_TIME, own_ns),))
        encoded = SCOPE
        numbers = values
        if self._has_distributions:
            encoded += _encode_distributions(values, time_unix_ns, step, role)
            numbers = _numbers_of(values)
        figures = list(numbers.values())
        begin = 0
        # A wide row takes several layouts; the row's own gauge is in the last one.
        while len(figures) - begin > _LAYOUT_KEYS:
            layout = self._layout(begin, len(suffix), 0)
            chunk = figures[begin : begin + _LAYOUT_KEYS]
            encoded += layout.pack(chunk, time_unix_ns, suffix)
            begin += _LAYOUT_KEYS
        if begin:
            figures = figures[begin:]
        layout = self._layout(begin, len(suffix), len(row_suffix))
        count = earlier_values + len(values)
        return encoded + layout.pack(figures, time_unix_ns, suffix, row_suffix, count)

    def _layout(self, begin: int, suffix_bytes: int, row_bytes: int) -> _Layout:
        """Return the layout of the numbers from *begin* on, with attributes of these sizes."""
        place = (begin, suffix_bytes, row_bytes)
        layout = self._last_layout
        # Nearly every row: without a search by all names.
        if layout is None or layout.place != place:
            end = begin + _LAYOUT_KEYS
            layout = _layout(self._names[begin:end], self._kinds[begin:end], place)
            self._last_layout = layout
        return layout


def _numbers_of(values: Mapping[str, Value]) -> dict[str, Value]:
    """Return *values* without distributions."""
    return {name: value for name, value in values.items() if type(value) in _NUMBERS}


def _encode_distributions(
    values: Mapping[str, Value], time_unix_ns: int, step: int, role: str | None
) -> bytes:
    """Encode a metric with one point for each distribution in *values*."""
    encoded = b""
    for name, value in values.items():
        # Attributes have another field in each kind of point.
        if isinstance(value, HistogramPoint):
            point = encode_point(value, time_unix_ns, _point_attributes(1, step, role))
            encoded += message(2, text(1, name) + point)
        elif isinstance(value, BucketPoint):
            point_attributes = _point_attributes(9, step, role)
            point = encode_buckets(value, time_unix_ns, point_attributes)
            encoded += message(2, text(1, name) + point)
    return encoded


class _Layout:
    """Packs gauges of the same names and types of numbers, and behind them the row's own, ``rl.row``.

    One call of `struct` packs all of them: with one for each, wide rows take a fifth more.

    Args:
        names: Names of the gauges.
        kinds: Types of their numbers.
        place: Number of the row's gauges before these, the size of the attributes of their points,
            and that of the attributes of the row's own point: 0 without its gauge, as in a part of
            a row that other parts follow.
    """

    __slots__ = ("_fields", "_pack", "place")

    def __init__(
        self,
        names: tuple[str, ...],
        kinds: tuple[type, ...],
        place: tuple[int, int, int],
    ) -> None:
        self.place = place
        _, suffix_bytes, row_bytes = place
        # Of each gauge: what is before its time, the time, the number's tag, the number, and attributes.
        self._fields: list[Any] = []
        codes = ["<"]
        gauges = [
            (name, kind, suffix_bytes) for name, kind in zip(names, kinds, strict=True)
        ]
        if row_bytes:
            gauges.append((ROW, int, row_bytes))
        for name, kind, attribute_bytes in gauges:
            head = _head(name, attribute_bytes)
            tag, code = _NUMBERS[kind]
            self._fields += (head, 0, tag, 0, b"")
            codes.append(f"{len(head)}sQc{code}{attribute_bytes}s")
        self._pack = Struct("".join(codes)).pack

    def pack(
        self,
        numbers: list[Value],
        time_unix_ns: int,
        suffix: bytes,
        row_suffix: bytes = b"",
        count: int = 0,
    ) -> bytes:
        """Return the gauges of *numbers*, and with *row_suffix* the row's own.

        Args:
            numbers: A number for each name, in their order; *count* is appended.
            time_unix_ns: Time of every point.
            suffix: Attributes of their points.
            row_suffix: Attributes of the row's own point.
            count: Number of the row's values, which is the value of the row's own gauge.
        """
        if row_suffix:
            numbers.append(count)
        fields = self._fields.copy()
        fields[1::5] = [time_unix_ns] * len(numbers)
        fields[3::5] = numbers
        fields[4::5] = [suffix] * len(numbers)
        if row_suffix:
            fields[-1] = row_suffix
        return self._pack(*fields)


_layout = lru_cache(_LAYOUTS)(_Layout)


def _head(name: str, suffix_bytes: int) -> bytes:
    """Return the bytes of a gauge with one point, from the metric's tag to the time's."""
    # A time and one number are 18 bytes.
    point_bytes = 18 + suffix_bytes
    name_field = text(1, name)
    point = varint(point_bytes)
    gauge = varint(1 + len(point) + point_bytes)
    metric = varint(len(name_field) + 1 + len(gauge) + 1 + len(point) + point_bytes)
    return b"".join(
        (b"\x12", metric, name_field, b"\x2a", gauge, b"\x0a", point, b"\x19")
    )


def _point_attributes(field: int, step: int, role: str | None) -> bytes:
    """Encode what every point of a row has, as *field* of its kind of point."""
    of_step = _int_attribute(field, _STEP, step)
    if role is None:
        return of_step
    return of_step + attributes(field, ((ROLE, role),))


def _int_attribute(field: int, key: bytes, number: int) -> bytes:
    """Encode an integer attribute; each row has two, so all but the number's bytes are kept."""
    digits = varint(number)
    return _int_attribute_head(field, key, len(digits)) + digits


@lru_cache(64)  # two keys, three kinds of points, ten lengths of a number
def _int_attribute_head(field: int, key: bytes, digit_bytes: int) -> bytes:
    """Return the bytes of an integer attribute before its number of *digit_bytes* bytes: only its length counts."""
    value = message(2, _INT_VALUE + bytes(digit_bytes))
    return message(field, key + value)[:-digit_bytes]
