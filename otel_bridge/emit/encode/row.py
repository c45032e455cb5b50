"""One ``log()`` call -> one ``ScopeMetrics`` message: a gauge point for each value, and ``rl.row``.

A row is joined from a cache of each key's constant bytes, which is bounded and emptied when full.
Not thread-safe: its owner locks. Source: opentelemetry-proto, metrics.proto; bytes equal those of
opentelemetry-exporter-otlp-proto-common (tests/emit/encode/test_rows.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from struct import Struct

from otel_bridge.emit.encode.buckets import BucketPoint, encode_buckets
from otel_bridge.emit.encode.histogram import HistogramPoint, encode_point
from otel_bridge.emit.encode.protobuf import (
    MASK_64,
    attributes,
    key_value,
    message,
    text,
    varint,
)
from otel_bridge.emit.encode.values import Value
from otel_bridge.semconv import ROLE, ROW, ROW_TIME, SCOPE_NAME, SEQ, STEP

SCOPE = message(1, text(1, SCOPE_NAME))
"""Field 1 of ``ScopeMetrics``, ``ScopeSpans`` and ``ScopeLogs`` alike."""
CACHE_BYTES = 2 << 20
"""Bound of the cache of keys."""

_MAX_VARINT_BYTES = 10
_INT_VALUE = b"\x18"
"""Tag of ``AnyValue.int_value``."""
_MAX_ROLES = 64
_CACHED_KEY_BYTES = 200
"""Memory of a cached key beside its text."""
_timed_double = Struct("<Qcd").pack
_timed_int = Struct("<Qcq").pack
_AS_DOUBLE = b"\x21"
_AS_INT = b"\x31"


def _int_attribute(key: str) -> Callable[[int], bytes]:
    """Return what encodes one integer attribute of a point, field 7, masked to 64 bits.

    All but the number's own bytes depend on their length only.
    """
    heads = [_attribute_head(key, digits) for digits in range(_MAX_VARINT_BYTES + 1)]

    def encode(number: int) -> bytes:
        digits = varint(number)
        return heads[len(digits)] + digits

    return encode


def _attribute_head(key: str, digits: int) -> bytes:
    """Return the bytes of the integer attribute *key* before its number of *digits* bytes."""
    whole = message(7, text(1, key) + message(2, _INT_VALUE + bytes(digits)))
    return whole[: len(whole) - digits]


def _prefix(name: str, suffix_bytes: int) -> bytes:
    """Return the bytes of a gauge with one point, from the metric's tag to the time's.

    The lengths are those of a point with a time and one number, 18 bytes, and its attributes: they
    are constant for a key.

    Args:
        name: Name of the metric.
        suffix_bytes: Size of the point's attributes.
    """
    name_field = text(1, name)
    point = varint(18 + suffix_bytes)
    gauge = varint(1 + len(point) + 18 + suffix_bytes)
    metric = varint(
        len(name_field) + 1 + len(gauge) + 1 + len(point) + 18 + suffix_bytes
    )
    return b"".join(
        (b"\x12", metric, name_field, b"\x2a", gauge, b"\x0a", point, b"\x19")
    )


class RowEncoder:
    """Encodes the rows of one process.

    Args:
        cache_bytes: Bound of the cache of keys.
    """

    def __init__(self, cache_bytes: int = CACHE_BYTES) -> None:
        self._cache_bytes = cache_bytes
        self._prefixes: dict[int, dict[str, bytes]] = {}
        self._prefix_bytes = 0
        self._roles: dict[str, bytes] = {}
        self._steps = _int_attribute(STEP)
        self._seqs = _int_attribute(SEQ)

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
            values: Result of `otel_bridge.emit.encode.values.flatten`.
            time_unix_ns: Time of every point.
            step: Step, masked to 64 bits.
            role: Role, when it differs from the resource's.
            seq: Number of the row in this process; ``None`` if parts follow.
            earlier_values: Number of values in the parts before.
            own_ns: The row's own wall time, 0 for *time_unix_ns*; unlike that, it may repeat and go
                back.
        """
        suffix = self._suffix(step, role)
        pieces = self._gauges(values, time_unix_ns, len(suffix))
        head = _head(values, len(pieces), time_unix_ns, step, role)
        if seq is None:
            pieces.append(b"")
        else:
            count = earlier_values + len(values)
            pieces += self._row_point(count, time_unix_ns, len(suffix), seq, own_ns)
        return head + suffix.join(pieces)

    def _gauges(
        self, values: Mapping[str, Value], time_unix_ns: int, suffix_bytes: int
    ) -> list[bytes]:
        """Return the bytes of the points of the numbers in *values*, each without the suffix that ends it.

        Distributions are left out: they have attributes in another field, and go into the head.
        """
        prefixes = self._prefixes.setdefault(suffix_bytes, {})
        points: list[bytes] = []
        for name, value in values.items():
            # Nearly all values are numbers, most of them floats, so that their bytes are joined
            # here without a call.
            if type(value) is float:
                prefix = prefixes.get(name) or self._learn(name, suffix_bytes)
                points.append(prefix + _timed_double(time_unix_ns, _AS_DOUBLE, value))
            elif isinstance(value, int):
                prefix = prefixes.get(name) or self._learn(name, suffix_bytes)
                points.append(prefix + _timed_int(time_unix_ns, _AS_INT, value))
        return points

    def _suffix(self, step: int, role: str | None) -> bytes:
        suffix = self._steps(step)
        if role is None:
            return suffix
        return suffix + (self._roles.get(role) or self._learn_role(role))

    def _row_point(
        self,
        count: int,
        time_unix_ns: int,
        suffix_bytes: int,
        seq: int,
        own_ns: int,
    ) -> tuple[bytes, bytes]:
        """Return the bytes of the point ``rl.row`` before and after the suffix."""
        end = self._seqs(seq)
        if own_ns:
            end += attributes(7, ((ROW_TIME, own_ns),))
        size = suffix_bytes + len(end)
        prefix = self._prefixes.setdefault(size, {}).get(ROW) or self._learn(ROW, size)
        return prefix + _timed_int(time_unix_ns, _AS_INT, count), end

    def _learn_role(self, role: str) -> bytes:
        # Bounds the memory of a program whose roles are ever new; the others are learnt again.
        if len(self._roles) >= _MAX_ROLES:
            self._roles.clear()
        return self._roles.setdefault(role, attributes(7, ((ROLE, role),)))

    def _learn(self, name: str, suffix_bytes: int) -> bytes:
        """Return the constant bytes of a key, and remember them for points with attributes of this size."""
        prefix = _prefix(name, suffix_bytes)
        self._prefix_bytes += _CACHED_KEY_BYTES + 2 * len(prefix)
        # Ever-new keys would take 79 MB in 20,000 rows; those in use are learnt again at once.
        if self._prefix_bytes > self._cache_bytes:
            for cached in self._prefixes.values():
                cached.clear()
            self._prefix_bytes = 0
        self._prefixes[suffix_bytes][name] = prefix
        return prefix


def _head(
    values: Mapping[str, Value],
    gauges: int,
    time_unix_ns: int,
    step: int,
    role: str | None,
) -> bytes:
    """Return the scope with the distributions among *values*: what is none of the *gauges* numbers.

    They come before the numbers, whose bytes are joined with the suffix between them.
    """
    if gauges == len(values):
        return SCOPE
    distributions = [SCOPE]
    for name, value in values.items():
        if isinstance(value, (HistogramPoint, BucketPoint)):
            distributions.append(_distribution(name, value, time_unix_ns, step, role))
    return b"".join(distributions)


def _distribution(
    name: str,
    value: HistogramPoint | BucketPoint,
    time_unix_ns: int,
    step: int,
    role: str | None,
) -> bytes:
    """Encode a metric whose one point is a distribution.

    Its attributes have another field in each kind of point.
    """
    if isinstance(value, HistogramPoint):
        point = encode_point(
            value, time_unix_ns, _distribution_attributes(1, step, role)
        )
    else:
        point = encode_buckets(
            value, time_unix_ns, _distribution_attributes(9, step, role)
        )
    return message(2, text(1, name) + point)


def _distribution_attributes(field: int, step: int, role: str | None) -> bytes:
    signed = ((step + (1 << 63)) & MASK_64) - (1 << 63)
    point_attributes = message(field, key_value(STEP, signed))
    if role is None:
        return point_attributes
    return point_attributes + attributes(field, ((ROLE, role),))
