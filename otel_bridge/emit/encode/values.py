"""Logged values of a user -> flat keys and numbers, without importing numpy or torch.

A value that is not a number is left out and counted by reason; the rest of the row is recorded.
Nothing raises, except for exceptions of a signal handler. Reasons are the names of drops in the
report.
"""

from __future__ import annotations

import array
import math
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Set, Sized
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard, cast

from otel_bridge.emit.encode import coerce
from otel_bridge.emit.encode.buckets import BucketPoint, point_of_buckets
from otel_bridge.emit.encode.histogram import (
    Histogram,
    HistogramPoint,
    distribution_of,
    distribution_of_array,
)
from otel_bridge.emit.media.values import media_in
from otel_bridge.errors import any_error_but_signals
from otel_bridge.records import axis_of, key_of
from otel_bridge.semconv import ROW
from otel_bridge.values.mappings import without
from otel_bridge.values.plain import (
    CLIPPED,
    MAX_DEPTH,
    CountKeyedDrop,
    count_nothing,
)
from otel_bridge.values.reading import (
    ReadBudget,
    Unreadable,
    bases_of,
    entries_of,
    is_list_like,
    is_text,
)
from otel_bridge.values.scalars import (
    Array,
    any_text,
    is_array,
    is_missing,
    is_scalar,
    key_text,
    number_of,
    single_of,
)

if TYPE_CHECKING:
    import numpy as np

FoundMedia: TypeAlias = tuple[str, Sequence[object]]
"""Key, and the media that were logged under it."""
MAX_KEY_CHARS = 4096
MAX_KEYS = 1_000_000
_INT64 = 1 << 63
_MEDIA = {
    "wandb": "wandb_media", "mlflow": "mlflow_media", "trackio": "trackio_media",
    "PIL": "figure", "matplotlib": "figure", "plotly": "figure", "bokeh": "figure",
}  # fmt: skip
"""Package of an object that is not a number, to the reason whose message names the right call."""
_HISTOGRAMS = frozenset({("wandb", "Histogram"), ("trackio", "Histogram")})
_NEVER_MEDIA = frozenset({int, bool, float, str, type(None)})
"""Common types that hold no media: such a value needs no further look."""
_FLAT = frozenset({int, float, bool, str, list, tuple, type(None)})
"""Common types that are not mappings; an ABC check costs more than everything else."""


def flatten(
    values: object, drop: CountKeyedDrop, media: list[FoundMedia] | None = None
) -> dict[str, Value]:
    """Return the numbers in *values* by key.

    Empty, counted as ``not_a_mapping``, for anything but a mapping. Nested keys are joined with
    ``/``, and of equal keys the last wins. A value that cannot be used is counted, and the others
    are recorded. What ``len()`` of the program's own mapping raises is raised: the recorder counts
    the row.

    Args:
        values: A mapping.
        drop: Callable that counts what is left out.
        media: List that gets the media in *values*; ``None`` to count them as objects.
    """
    plain = _plain_row(values) if type(values) is dict else None  # pyright: ignore[reportUnknownArgumentType]  # any dict
    if plain is not None:
        return plain
    reader = _RowReader(drop, media)
    if isinstance(values, Mapping):
        reader.read(cast("Mapping[object, object]", values), "", ())
    else:
        drop("not_a_mapping", 1, type(values).__name__)
    return reader.row


def _plain_row(values: dict[Any, Any]) -> dict[str, Value] | None:
    """Return a copy of *values* if `flatten` would take all of it as it is, as of most rows.

    It takes a fifth of the time. ``None`` for any other row, of which nothing is counted yet.
    """
    row = values.copy()  # in one call, so that no other thread changes it meanwhile
    # The long way counts what is beyond the limit.
    if len(row) > MAX_KEYS:
        return None
    for key, value in row.items():
        if type(value) is not float and (
            type(value) is not int or not -_INT64 <= value < _INT64
        ):
            return None
        if type(key) is not str or not 0 < len(key) <= MAX_KEY_CHARS or key == ROW:
            return None
    return row


def flatten_all(values: object, drop: CountKeyedDrop) -> dict[str, object]:
    """Return the numbers and the media in *values* by key."""
    media: list[FoundMedia] = []
    return {**flatten(values, drop, media), **dict(media)}


def has_entries(values: object) -> bool:
    """Return whether *values* is a mapping that is not empty.

    Also of one whose ``len()`` raises.
    """
    if type(values) is dict:
        return bool(values)  # pyright: ignore[reportUnknownArgumentType]  # any dict
    try:
        return isinstance(values, Mapping) and len(values) > 0  # pyright: ignore[reportUnknownArgumentType]  # any mapping
    except any_error_but_signals():  # code of the user's own object
        return True


class _RowReader:
    """Reads the values of one row, and counts what it leaves out with the key that is being read.

    Attributes:
        row: The numbers by their joined keys.
    """

    __slots__ = ("_budget", "_drop", "_key", "_media", "row")

    def __init__(self, drop: CountKeyedDrop, media: list[FoundMedia] | None) -> None:
        self.row: dict[str, Value] = {}
        self._drop = drop
        self._media = media
        # Of all mappings of the row together.
        self._budget = ReadBudget(MAX_KEYS)
        self._key = ""

    def read(
        self, values: Mapping[object, object], prefix: str, parents: tuple[int, ...]
    ) -> None:
        """Add the numbers in *values* to the row by their joined keys.

        *parents* are the ids of the mappings around: one that holds itself is counted as
        ``cyclic``, one below 32 others as ``too_deep``, entries beyond a million as ``clipped``.
        """
        self._key = prefix[:-1]
        if id(values) in parents or len(parents) >= MAX_DEPTH:
            self._lose("cyclic" if id(values) in parents else "too_deep")
            return
        # Once: another thread may add entries meanwhile, which would count as left out.
        size = len(values)
        share = self._budget.share(values, size)
        if share < size:
            self._lose(CLIPPED, size - share)
        for raw_key, raw_value in entries_of(values, share):
            key = self._joined_key(prefix, raw_key)
            if key is None:
                continue
            value = raw_value.item() if is_scalar(raw_value) else raw_value
            if _is_nested(value):
                self.read(value, f"{key}/", (*parents, id(values)))
                continue
            self._key = key
            number = value if type(value) is float else self._value_of(value)
            if number is None:
                continue
            if key in self.row:
                self._lose("same_key")
            self.row[key] = number

    def _joined_key(self, prefix: str, raw: object) -> str | None:
        """Return the joined key of an entry.

        ``None``, counted by its reason, when no tracker could show it.
        """
        try:
            key = prefix + (raw if type(raw) is str else key_text(raw))
        except any_error_but_signals():  # a user's __str__
            self._drop("bad_key", 1, f"{prefix}<{type(raw).__name__}>")
            return None
        if len(prefix) < len(key) <= MAX_KEY_CHARS and key != ROW:
            return key
        if key == ROW:
            reason = "reserved_key"
        else:
            reason = "long_key" if len(key) > MAX_KEY_CHARS else "empty_key"
        self._drop(reason, 1, key)
        return None

    def _value_of(self, value: object) -> Value | None:
        """Return the number or distribution of *value*.

        ``None`` for media, which are kept where they are asked for, and for what is counted.
        """
        media = None
        if self._media is not None and type(value) not in _NEVER_MEDIA:
            media = media_in(value)
        if self._media is None or media is None:
            return to_value(value, self._lose)
        self._media.append((self._key, media))
        return None

    def _lose(self, reason: str, number: int = 1) -> None:
        self._drop(reason, number, self._key)


def distinct(
    values: dict[str, Value], role: str | None, drop: CountKeyedDrop
) -> dict[str, Value]:
    """Return *values* without those that trackers would show under another value's key.

    The last value wins; the others are counted as ``same_key``.

    Args:
        values: Result of `flatten`.
        role: Role of the row: ``loss`` and ``<role>/loss`` are one key.
        drop: Callable that counts the values left out.
    """
    last_keys = {_shown_key(key, role): key for key in values}
    if len(last_keys) == len(values):
        return values
    dropped = without(values, set(last_keys.values()))
    drop("same_key", len(dropped), next(iter(dropped)))
    return without(values, dropped)


def _shown_key(key: str, role: str | None) -> str:
    """Return the key that trackers show; the key of a role's own step axis is never used."""
    full = key_of(role, key)
    if full == axis_of(role):
        return f"{full}_value"
    return full


def _is_nested(value: object) -> TypeGuard[Mapping[object, object]]:
    return type(value) is dict or (
        type(value) not in _FLAT and isinstance(value, Mapping)
    )


def to_value(value: object, drop: CountDrop) -> Value | None:
    """Return *value* as a number or a distribution; ``None``, counted, when *value* is neither.

    NaN and infinities are numbers. It never raises: a value that does is counted as
    ``unreadable_value``.
    """
    if isinstance(value, float):
        return float(value)
    if is_missing(value) or is_text(value):
        drop("none" if is_missing(value) else "text", 1)
        return None
    try:
        return _other(value, drop)
    except any_error_but_signals():  # code of the user's own object
        drop("unreadable_value", 1)
        return None


def _integer(value: int, drop: CountDrop) -> int | float | None:
    """Return an integer, beyond 64 bits as the nearest double.

    ``None``, counted as ``too_large_int``, beyond that.
    """
    if -_INT64 <= value < _INT64:
        return int(value)
    try:
        return float(value)
    except OverflowError:
        drop("too_large_int", 1)
        return None


def _other(value: object, drop: CountDrop) -> Value | None:
    """Return a value of a rarer type as a number or a distribution; ``None``, counted, for neither.

    What the code of a user's object raises is raised. An array of one number in any shape but 0-d
    is a distribution.
    """
    if isinstance(value, Histogram):
        return _of_histogram(value, drop)
    # Of a row that was read before it is written, as one inside another call is.
    if isinstance(value, HistogramPoint | BucketPoint):
        return value
    if tuple(value.shape) if is_array(value) else is_sequence(value):
        return distribution(value, drop)
    number = number_of(value)
    if number is None:
        return _of_tracker(value, drop)
    if isinstance(number, int):
        return _integer(number, drop)
    return number


def _of_tracker(value: object, drop: CountDrop) -> Value | None:
    """Return the distribution of a tracker's own histogram; ``None``, counted, if it cannot be used.

    Any other object is left out and counted, with the reason whose message names the right call.
    Trackers are recognised by name: they are never imported here.
    """
    if not _HISTOGRAMS.isdisjoint(bases_of(value)):
        return point_of_buckets(
            getattr(value, "histogram", None), getattr(value, "bins", None), drop
        )
    drop(_reason(value), 1)
    return None


def _of_histogram(histogram: Histogram, drop: CountDrop) -> Value | None:
    """Return the distribution of a `Histogram`, of numbers or of counts and edges.

    ``None``, counted as ``bad_histogram``, when it has several of them, none, or half of one.
    """
    counted: list[Sequence[object]] = []
    if histogram.np_histogram is not None:
        counted.append(histogram.np_histogram)
    if histogram.counts is not None or histogram.edges is not None:
        counted.append((histogram.counts, histogram.edges))
    if histogram.values is not None and not counted:
        return distribution(histogram.values, drop)
    if histogram.values is not None or len(counted) != 1 or len(counted[0]) != 2:
        drop("bad_histogram", 1)
        return None
    counts, edges = counted[0]
    return point_of_buckets(counts, edges, drop)


def _reason(value: object) -> str:
    """Return the reason of the drop of an object.

    Its message says what to do with objects of that library. What an attribute of the object raises
    is raised: `to_value` then counts ``unreadable_value``.
    """
    if isinstance(value, Unreadable):
        return "unreadable_value"
    is_complex = (
        isinstance(value, complex)
        or getattr(getattr(value, "dtype", None), "kind", "") == "c"
    )
    if is_complex:
        return "complex"
    for package, _ in bases_of(value):
        if package in _MEDIA:
            return _MEDIA[package]
    return "object"


def to_step(
    step: object, drop: CountKeyedDrop, *, reason: str = "bad_step"
) -> int | None:
    """Return *step* as an integer of 64 bits: the one reader of steps of rows, phases and rollouts.

    ``None`` for ``None``, and, counted as *reason*, when *step* is not a number within 64 bits: the
    caller takes another step.

    An array of one number and an object with ``__index__`` are that number, as in W&B, and so is a
    text of digits, as from JSON. A fraction is cut off, counted as ``fractional_step``.
    """
    # Nearly every step, of each row of a training.
    if step is None or (type(step) is int and -_INT64 <= step < _INT64):
        return step
    if isinstance(step, str):
        number: Value | None = coerce.integer(step)
    else:
        number = to_value(single_of(step), count_nothing)
    if isinstance(number, float) and math.isfinite(number):
        if not number.is_integer():
            drop("fractional_step", 1, any_text(step))
        number = math.trunc(number)
    if not isinstance(number, int) or not -_INT64 <= number < _INT64:
        drop(reason, 1, any_text(step))
        return None
    return int(number)


# Arrays and lists of numbers -> distributions, with numpy when the program itself imported numpy.

Value: TypeAlias = "int | float | HistogramPoint | BucketPoint"
CountDrop: TypeAlias = Callable[[str, int], None]
"""Callable with a reason and the number of dropped values."""

MAX_NUMBERS = 4_000_000
_SEQUENCES = (list, tuple, range, deque, array.array, Set)
_DOUBLE_BITS = 1000
"""Most bits of an integer that surely has a double."""


def is_sequence(value: object) -> TypeGuard[Iterable[object]]:
    """Return whether *value* is one of the plain collections that may hold numbers."""
    return isinstance(value, _SEQUENCES) or is_list_like(value)


def distribution(
    values: object,
    drop: CountDrop,
) -> HistogramPoint | None:
    """Return the distribution of the finite numbers in *values*.

    ``None``, counted, when *values* has none (``empty_distribution``) or more than four million
    (``too_many_numbers``). What iterating over them raises is raised: `to_value` counts it.

    Args:
        values: An array, or an iterable of numbers, nested or not.
        drop: Callable that counts the values left out.
    """
    if is_array(values):
        if math.prod(tuple(values.shape)) > MAX_NUMBERS:
            drop("too_many_numbers", 1)
            return None
        doubles = _as_numpy(values, drop)
        if doubles is not None:
            finite_doubles = doubles[sys.modules["numpy"].isfinite(doubles)]
            if _report(len(doubles), len(finite_doubles), drop):
                return distribution_of_array(finite_doubles)
            return None
        # tolist() works for numpy with custom dtypes (bfloat16) and for torch on any device.
        values = values.tolist()
    numbers: list[float] = []
    if not _collect(
        numbers,
        cast("Iterable[object]", values),
        drop,
        0,
        budget=ReadBudget(MAX_NUMBERS),
    ):
        drop("too_many_numbers", 1)
        return None
    finite = list(filter(math.isfinite, numbers))
    if _report(len(numbers), len(finite), drop):
        return distribution_of(finite)
    return None


def _report(count: int, finite: int, drop: CountDrop) -> bool:
    """Count the numbers that no bucket can hold; return whether any number remains."""
    if finite < count:
        drop("not_finite_in_distribution", count - finite)
    if not finite:
        drop("empty_distribution", 1)
    return finite > 0


def _as_numpy(
    values: Array, drop: CountDrop
) -> np.ndarray[Any, np.dtype[np.float64]] | None:
    """Return *values* as a flat array of doubles, when numpy is loaded and accepts them.

    Else ``None``: the caller reads them as a list. numpy is never imported here; its import starts
    threads.
    """
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    try:
        if isinstance(values, numpy.ma.MaskedArray):
            # asarray() would bring back what the user masked.
            array = cast("np.ma.MaskedArray[Any, Any]", values).compressed()
        else:
            array = numpy.asarray(values)
    except any_error_but_signals():
        # A tensor on a device, or one that keeps a gradient.
        return None
    if array.dtype.kind not in "fiub":
        return None
    # Only now: in a list the masked ones are counted as they are read.
    masked = math.prod(tuple(values.shape)) - array.size
    if masked:
        drop("none", masked)
    return array.astype(numpy.float64).ravel()


def _collect(
    numbers: list[float],
    values: Iterable[object],
    drop: CountDrop,
    depth: int,
    *,
    budget: ReadBudget,
) -> bool:
    """Append the numbers of nested *values*; return false when there are too many.

    Entries that are not numbers are counted by their reason (``none``, ``text``, ``object`` …), and
    the others are taken. What an iterator raises is raised.
    """
    for value in values:
        # Nearly every number of a list, without a call; float() of a longer integer would raise.
        if type(value) is float or (
            type(value) is int and value.bit_length() < _DOUBLE_BITS
        ):
            numbers.append(float(value))
        elif is_sequence(value):
            if depth >= MAX_DEPTH:  # also a collection that holds itself
                drop("too_deep", 1)
                continue
            size = len(cast("Sized", value))
            is_whole = budget.share(value, size) == size
            if not is_whole or not _collect(
                numbers, value, drop, depth + 1, budget=budget
            ):
                return False
        else:
            number = to_value(value, drop)
            if isinstance(number, (HistogramPoint, BucketPoint)):
                drop("object", 1)
            elif number is not None:
                numbers.append(float(number))
        if len(numbers) > MAX_NUMBERS:
            return False
    return True
