"""One ``log()`` call -> one ``ScopeMetrics`` message: a gauge point for each value, and ``rl.row``.

Times, doubles and integers are eight bytes on the wire. So for one set of keys every other byte of a row is constant,
except for the step. A key set seen three times with floats only gets a template: one ``struct`` call packs the row. All
other rows are joined from a cache of each key's constant bytes. Both caches are bounded in bytes and emptied when full.
Not thread-safe: its owner locks. Source: opentelemetry-proto, metrics.proto; bytes equal those of
opentelemetry-exporter-otlp-proto-common (tests/emit/encode/test_rows.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import itemgetter
from struct import Struct
from typing import Any, Final, TypeAlias, cast

from otel_bridge.emit.encode.buckets import BucketPoint, encode_buckets
from otel_bridge.emit.encode.histogram import HistogramPoint, encode_point
from otel_bridge.emit.encode.protobuf import (
    MASK_64,
    attributes,
    key_value,
    message,
    pack_double,
    pack_int64,
    text,
    varint,
)
from otel_bridge.emit.encode.values import Value, roles_with_equal_keys
from otel_bridge.records import AXIS
from otel_bridge.semconv import ROLE, ROW, ROW_TIME, SCOPE_NAME, SEQ, STEP

SCOPE: Final = message(1, text(1, SCOPE_NAME))
"""Field 1 of ``ScopeMetrics``, ``ScopeSpans`` and ``ScopeLogs`` alike."""
CACHE_BYTES: Final = 2 << 20
"""Bound of each of the two caches."""

_MAX_TEMPLATE_KEYS: Final = 512
_AXIS_VALUE: Final = f"{AXIS}_value"
"""Key of a value that has the name of its role's axis; the same row may hold another value of that key."""
_SEEN_BEFORE_TEMPLATE: Final = 3
_UNKNOWN: Final = 1 << 64
"""No number has these bits above its lowest seven."""
_MAX_CANDIDATES: Final = 256
_MAX_ROLES: Final = 64
# Memory of a template and a cached key beside their text: a Struct keeps 32 bytes per code, a dict 100 per entry.
_TEMPLATE_KEY_BYTES: Final = 300
_CACHED_KEY_BYTES: Final = 200

_TIMES_AND_ATTRIBUTES: Final = slice(1, None, 2)
_VALUES: Final = slice(2, -5, 4)
_timed: Final = Struct("<Qc").pack
_AS_DOUBLE: Final = b"\x21"
_AS_INT: Final = b"\x31"

_Pack: TypeAlias = Callable[..., bytes]
_Arguments: TypeAlias = "list[bytes | float | None]"


class _IntAttribute:
    """Encodes an integer attribute of a point, often slightly above the last value: only the first byte is new."""

    __slots__ = ("_named", "firsts", "high", "rest")

    def __init__(self, key: str) -> None:
        self._named = text(1, key)
        self.high: int = 0
        self.rest: bytes = b""
        self.firsts = self._with_all_firsts(0)

    def encode(self, number: int) -> bytes:
        """Encode the attribute as field 7 of a point; *number* is masked to 64 bits."""
        if number >> 7 != self.high:
            self.turn(number >> 7)
        return self.firsts[number & 127] + self.rest

    def turn(self, high: int) -> None:
        """Prepare for numbers whose bits above the lowest seven are *high*."""
        masked = high & MASK_64 >> 7
        rest = varint(masked) if masked else b""
        self.high = _UNKNOWN  # a signal handler may raise between two stores: then the next number turns again
        if len(rest) != len(self.rest):
            self.firsts = self._with_all_firsts(len(rest))
        self.rest = rest
        self.high = high

    def _with_all_firsts(self, rest_bytes: int) -> tuple[bytes, ...]:
        size = 1 + rest_bytes
        value = message(2, b"\x18" + bytes(size))[:-size]
        head = b"".join((b"\x3a", varint(len(self._named) + len(value) + size), self._named, value))
        more = 128 if rest_bytes else 0
        return tuple(head + bytes((first | more,)) for first in range(128))


def _prefix(name: str, suffix_bytes: int) -> bytes:
    """Return the bytes of a gauge with one point from the metric's tag to the time's; *suffix_bytes* of attributes."""
    named = text(1, name)
    point = varint(18 + suffix_bytes)
    gauge = varint(1 + len(point) + 18 + suffix_bytes)
    metric = varint(len(named) + 1 + len(gauge) + 1 + len(point) + 18 + suffix_bytes)
    return b"".join((b"\x12", metric, named, b"\x2a", gauge, b"\x0a", point, b"\x19"))


class _Template:
    """Packs rows of one key set whose values were floats, compiled for each length of the step and the row's number.

    Attributes:
        clashing: Roles under which two of the names are one key; rows of these roles need a check of each name.
        take: Callable that reads the values of a row of `count` values with these names, in one call into C.
        points: Number of points of a row, its own point included.
        suffix_bytes: Length of a point's attributes that `pack` and `arguments` are made for.
        seq_bytes: Length of the row's number that they are made for.
        pack: Callable that makes a row of `arguments`.
        arguments: Four a key and five for the row's own point: constant bytes, time, value, attributes, row's number.
            The constant bytes are set; the rest is to be set for each row. Of the own point's time ``struct`` takes the
            eight bytes before the tag of a double: its value, the count, is constant and has the tag of an integer.
    """

    __slots__ = (
        "arguments",
        "clashing",
        "count",
        "floats",
        "names",
        "pack",
        "points",
        "seq_bytes",
        "suffix_bytes",
        "take",
        "variants",
    )

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self.count = len(names)
        self.clashing = roles_with_equal_keys(names)
        self.floats = [float] * self.count
        self.take = _taking(names)
        self.points = self.count + 1
        self.variants: dict[tuple[int, int], tuple[_Pack, _Arguments]] = {}
        self.suffix_bytes = self.seq_bytes = -1
        self.pack: _Pack = bytes
        self.arguments: _Arguments = []

    def turn(self, suffix_bytes: int, seq_bytes: int) -> None:
        """Set `pack` and `arguments` for these lengths."""
        sizes = suffix_bytes, seq_bytes
        self.suffix_bytes = self.seq_bytes = -1  # as in `_IntAttribute.turn`
        self.pack, self.arguments = self.variants.get(sizes) or self._compile(*sizes)
        self.suffix_bytes, self.seq_bytes = sizes

    def row_point_bytes(self) -> int:
        """Return the length of the row's own point, which is last: prefix, time, count, attributes, row's number."""
        prefix = cast("bytes", self.arguments[-5])
        return len(prefix) + 8 + 9 + self.suffix_bytes + self.seq_bytes

    def _compile(self, suffix_bytes: int, seq_bytes: int) -> tuple[_Pack, _Arguments]:
        codes, arguments, head = ["<"], list[bytes | float | None](), SCOPE
        for name in self.names:
            head += _prefix(name, suffix_bytes)
            codes.append(f"{len(head)}s9sd{suffix_bytes}s")
            arguments += (head, None, None, None)
            head = b""
        row = _prefix(ROW, suffix_bytes + seq_bytes)
        codes.append(f"{len(row)}s8s9s{suffix_bytes}s{seq_bytes}s")
        arguments += (row, None, _AS_INT + pack_int64(len(self.names)), None, None)
        if len(self.variants) >= 3:  # steps of another length, another role: only the latest are worth their memory
            self.variants.clear()
        self.variants[suffix_bytes, seq_bytes] = compiled = Struct("".join(codes)).pack, arguments
        return compiled


def _taking(names: tuple[str, ...]) -> Callable[[Mapping[Any, Any]], tuple[Any, ...]]:
    if len(names) > 1:
        return itemgetter(*names)
    return lambda values: tuple(values[name] for name in names)


# Its only type matches no value, so the template fits no row, not even an empty one.
_NO_TEMPLATE: Final = _Template(())
_NO_TEMPLATE.floats = [float]


class RowEncoder:
    """Encodes the rows of one process.

    Args:
        cache_bytes: Bound of each of the two caches.
        role: Role of rows that name none.
    """

    def __init__(self, cache_bytes: int = CACHE_BYTES, *, role: str | None = None) -> None:
        self._cache_bytes, self._role = cache_bytes, role
        self._templates: dict[tuple[object, ...], _Template] = {}
        self._latest = _NO_TEMPLATE
        self._template_bytes = 0
        self._candidates: dict[int, int] = {}
        self._prefixes: dict[int, dict[str, bytes]] = {}
        self._prefix_bytes = 0
        self._roles: dict[str, bytes] = {}
        self._steps = _IntAttribute(STEP)
        self._seqs = _IntAttribute(SEQ)

    def encode_known(
        self, values: Mapping[Any, object], time_unix_ns: int, step: int, role: str | None, seq: int
    ) -> bytes | None:
        """Encode a row as `encode` does when a template fits the unchanged *values*, else return ``None``.

        Nearly every row takes this path, so calls are inlined. The values are read in one call, so that no other thread
        changes them meanwhile.
        """
        template = self._latest
        if len(values) != template.count:
            template = self._find(values)
        try:
            numbers = template.take(values)
        except KeyError:
            values = dict(values)  # a copy, so that the names match the values that are read
            template = self._find(values)
            numbers = template.take(values)
        if [*map(type, numbers)] != template.floats:
            return None
        if template.clashing and (role or self._role) in template.clashing:
            return None
        steps, seqs = self._steps, self._seqs
        if step >> 7 != steps.high:
            steps.turn(step >> 7)
        if seq >> 7 != seqs.high:
            seqs.turn(seq >> 7)
        suffix = steps.firsts[step & 127] + steps.rest
        if role is not None:
            suffix += self._roles.get(role) or self._learn_role(role)
        row = seqs.firsts[seq & 127] + seqs.rest
        if len(suffix) != template.suffix_bytes or len(row) != template.seq_bytes:
            template.turn(len(suffix), len(row))
        arguments = template.arguments
        arguments[_TIMES_AND_ATTRIBUTES] = [_timed(time_unix_ns, _AS_DOUBLE), suffix] * template.points
        arguments[_VALUES] = numbers
        arguments[-1] = row
        return template.pack(*arguments)

    def _find(self, values: Mapping[Any, object]) -> _Template:
        """Return the template of the names of *values*, or one that fits no values."""
        found = self._templates.get(tuple(values))
        if found is None:
            return _NO_TEMPLATE
        self._latest = found
        return found

    def encode(
        self, values: Mapping[str, Value], time_unix_ns: int, step: int, role: str | None, seq: int, *, own_ns: int = 0
    ) -> bytes:
        """Encode a row.

        Args:
            values: Result of `otel_bridge.emit.encode.values.flatten`.
            time_unix_ns: Time of every point.
            step: Step, masked to 64 bits.
            role: Role, when it differs from the resource's.
            seq: Number of the row in this process.
            own_ns: The row's own wall time, 0 for *time_unix_ns*; unlike that, it may repeat and go back.
        """
        known = None if own_ns else self.encode_known(values, time_unix_ns, step, role, seq)
        if known is not None:
            return known
        suffix = self._suffix(step, role)
        points, floats_only = self._points(values, time_unix_ns, step, role, suffix)
        if floats_only:
            self._consider(tuple(values))
        own = attributes(7, ((ROW_TIME, own_ns),)) if own_ns else b""
        return b"".join((SCOPE, *points, self._row_point(len(values), time_unix_ns, suffix, seq, own)))

    def encode_known_part(
        self, values: Mapping[Any, object], time_unix_ns: int, step: int, role: str | None, seq: int
    ) -> bytes | None:
        """Encode some values of a row as `encode_part` does when a template fits them, else return ``None``.

        *seq* is the likely number of the row: the row's own point, which is the last one, is cut off.
        """
        row = self.encode_known(values, time_unix_ns, step, role, seq)
        return None if row is None else row[: -self._latest.row_point_bytes()]

    def encode_part(self, values: Mapping[str, Value], time_unix_ns: int, step: int, role: str | None) -> bytes:
        """Encode some values of a row whose number follows with `encode_number`, at the same time."""
        points, floats_only = self._points(values, time_unix_ns, step, role, self._suffix(step, role))
        if floats_only:
            self._consider(tuple(values))
        return b"".join((SCOPE, *points))

    def encode_number(self, count: int, time_unix_ns: int, step: int, role: str | None, seq: int) -> bytes:
        """Encode the number of a row of *count* values, whose parts were encoded before."""
        return SCOPE + self._row_point(count, time_unix_ns, self._suffix(step, role), seq)

    def _points(
        self, values: Mapping[str, Value], time_unix_ns: int, step: int, role: str | None, suffix: bytes
    ) -> tuple[list[bytes], bool]:
        """Return the points of *values*, and whether all of them are floats."""
        timed_double, timed_int = _timed(time_unix_ns, _AS_DOUBLE), _timed(time_unix_ns, _AS_INT)
        prefixes = self._prefixes.setdefault(len(suffix), {})
        parts, floats_only = list[bytes](), True
        for name, value in values.items():
            if type(value) is float:
                prefix = prefixes.get(name) or self._learn(name, len(suffix))
                parts += (prefix, timed_double, pack_double(value), suffix)
                continue
            floats_only = False
            if isinstance(value, HistogramPoint):
                point_attributes = _histogram_attributes(1, step, role)
                parts.append(message(2, text(1, name) + encode_point(value, time_unix_ns, point_attributes)))
            elif isinstance(value, BucketPoint):
                point_attributes = _histogram_attributes(9, step, role)
                parts.append(message(2, text(1, name) + encode_buckets(value, time_unix_ns, point_attributes)))
            elif isinstance(value, int):
                prefix = prefixes.get(name) or self._learn(name, len(suffix))
                parts += (prefix, timed_int, pack_int64(value), suffix)
        return parts, floats_only

    def _suffix(self, step: int, role: str | None) -> bytes:
        suffix = self._steps.encode(step)
        return suffix if role is None else suffix + (self._roles.get(role) or self._learn_role(role))

    def _row_point(self, count: int, time_unix_ns: int, suffix: bytes, seq: int, own: bytes = b"") -> bytes:
        seq_attribute = self._seqs.encode(seq) + own
        size = len(suffix) + len(seq_attribute)
        prefixes = self._prefixes.get(size) or self._prefixes.setdefault(size, {})
        prefix = prefixes.get(ROW) or self._learn(ROW, size)
        return b"".join((prefix, _timed(time_unix_ns, _AS_INT), pack_int64(count), suffix, seq_attribute))

    def _learn_role(self, role: str) -> bytes:
        if len(self._roles) >= _MAX_ROLES:
            self._roles.clear()
        return self._roles.setdefault(role, attributes(7, ((ROLE, role),)))

    def _learn(self, name: str, suffix_bytes: int) -> bytes:
        prefix = _prefix(name, suffix_bytes)
        self._prefix_bytes += _CACHED_KEY_BYTES + 2 * len(prefix)
        if self._prefix_bytes > self._cache_bytes:
            for cached in self._prefixes.values():
                cached.clear()
            self._prefix_bytes = 0
        self._prefixes[suffix_bytes][name] = prefix
        return prefix

    def _consider(self, names: tuple[str, ...]) -> None:
        """Make a template for a key set that recurs."""
        if len(names) > _MAX_TEMPLATE_KEYS or any(name.endswith(_AXIS_VALUE) for name in names):
            return
        # The hash replaces the names: keeping ever-new names would cost more memory than a template made in error.
        seen = self._candidates.get(hash(names), 0) + 1
        if seen < _SEEN_BEFORE_TEMPLATE:
            if len(self._candidates) >= _MAX_CANDIDATES:
                self._candidates.clear()
            self._candidates[hash(names)] = seen
            return
        self._candidates.pop(hash(names), None)
        size = 3 * sum(_TEMPLATE_KEY_BYTES + 2 * len(name) for name in names)
        if self._template_bytes + size > self._cache_bytes:
            self._templates.clear()
            self._template_bytes = 0
        self._template_bytes += size
        self._templates[names] = _Template(names)


def _histogram_attributes(field: int, step: int, role: str | None) -> bytes:
    signed = ((step + (1 << 63)) & MASK_64) - (1 << 63)
    point_attributes = message(field, key_value(STEP, signed))
    return point_attributes if role is None else point_attributes + attributes(field, ((ROLE, role),))
