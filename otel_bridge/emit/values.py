"""What a user logs -> flat keys and numbers, without importing numpy or torch.

A value that is none is left out and counted by reason; the rest of the row goes on. Nothing raises but what a signal
handler raises. Reasons are the names of drops in the report.
"""

from __future__ import annotations

import array
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Set
from typing import Final, Protocol, TypeAlias, cast

from otel_bridge.emit.histogram import Distribution, Histogram, distribution_of
from otel_bridge.semconv import ROW

Value: TypeAlias = "int | float | Distribution"
CountDrop: TypeAlias = Callable[[str, int], None]
"""Called with a reason and how many values it took."""

MAX_DEPTH: Final = 32
MAX_KEY_CHARS: Final = 4096
MAX_NUMBERS: Final = 4_000_000
_INT64: Final = 1 << 63
_SEQUENCES: Final = (list, tuple, range, deque, array.array)


def flatten(values: object, drop: CountDrop) -> dict[str, Value]:
    """Return the numbers in *values* by key; nested keys are joined with ``/``, of equal ones the last holds."""
    out: dict[str, Value] = {}
    if isinstance(values, Mapping):
        _flatten_into(out, "", cast("Mapping[object, object]", values), drop, ())
    else:
        drop("not_a_mapping", 1)
    return out


def _flatten_into(
    out: dict[str, Value], prefix: str, values: Mapping[object, object], drop: CountDrop, parents: tuple[int, ...]
) -> None:
    if id(values) in parents or len(parents) >= MAX_DEPTH:
        drop("cyclic" if id(values) in parents else "too_deep", 1)
        return
    for raw_key, value in _snapshot(values, drop):
        key = _key(prefix, raw_key, drop)
        if key is None:
            continue
        if isinstance(value, Mapping):
            nested = cast("Mapping[object, object]", value)
            _flatten_into(out, f"{key}/", nested, drop, (*parents, id(values)))
            continue
        number = to_value(value, drop)
        if number is not None:
            if key in out:
                drop("same_key", 1)
            out[key] = number


def _snapshot(values: Mapping[object, object], drop: CountDrop) -> Iterable[tuple[object, object]]:
    # Copying a dict holds the interpreter: no other thread changes it meanwhile. Other mappings run code of their own.
    if isinstance(values, dict):
        return dict(values).items()
    items = _items(values) or _items(values)  # once more: another thread may have changed it meanwhile
    if items is None:
        drop("unreadable_mapping", 1)
        return ()
    return items


def _items(values: Mapping[object, object]) -> list[tuple[object, object]] | None:
    try:
        return list(values.items())
    except Exception:  # noqa: BLE001  # code of the user's own mapping
        return None


def _key(prefix: str, raw: object, drop: CountDrop) -> str | None:
    try:
        key = prefix + (raw if isinstance(raw, str) else str(raw))
    except Exception:  # noqa: BLE001  # a user's __str__
        drop("bad_key", 1)
        return None
    if not key or key == prefix:
        drop("empty_key", 1)
    elif key == ROW:
        drop("reserved_key", 1)
    elif len(key) > MAX_KEY_CHARS:
        drop("long_key", 1)
    else:
        return key
    return None


def to_value(value: object, drop: CountDrop) -> Value | None:
    """Return *value* as a number or a distribution; ``None``, counted, when it is neither."""
    if isinstance(value, float):
        return float(value)
    if isinstance(value, int):
        return _integer(value, drop)
    if value is None or isinstance(value, (str, bytes, bytearray)):
        drop("none" if value is None else "text", 1)
        return None
    try:
        return _other(value, drop)
    except Exception:  # noqa: BLE001  # code of the user's own object
        drop("unreadable_value", 1)
        return None


def _integer(value: int, drop: CountDrop) -> int | float | None:
    if -_INT64 <= value < _INT64:
        return int(value)
    try:
        return float(value)
    except OverflowError:
        drop("too_large_int", 1)
        return None


class _Array(Protocol):
    """What numpy, torch, jax and their like have in common."""

    shape: Iterable[int]

    def item(self) -> object: ...

    def tolist(self) -> object: ...


def _other(value: object, drop: CountDrop) -> Value | None:
    if isinstance(value, Histogram):
        return _distribution(value.values, drop)
    if isinstance(value, (*_SEQUENCES, Set)):
        return _distribution(cast("Iterable[object]", value), drop)
    shape = getattr(value, "shape", None)
    if shape is not None and hasattr(value, "tolist"):
        if tuple(shape):
            return _distribution(value, drop)
        item = cast("_Array", value).item()
        # item() of an object array may be anything, also an array again: take plain numbers only.
        if type(item) in {int, float, bool}:
            return to_value(item, drop)
        value = item
    if hasattr(type(value), "__float__"):
        return float(cast("float", value))
    drop("complex" if isinstance(value, complex) else "object", 1)
    return None


def _distribution(values: object, drop: CountDrop) -> Distribution | None:
    shape = getattr(values, "shape", None)
    if shape is not None and hasattr(values, "tolist"):
        if math.prod(tuple(shape)) > MAX_NUMBERS:
            drop("too_many_numbers", 1)
            return None
        # numpy of a dtype of its own (bfloat16) and torch of any device answer tolist() alike.
        values = cast("_Array", values).tolist()
    numbers: list[float] = []
    if not _collect(numbers, cast("Iterable[object]", values), drop, 0):
        drop("too_many_numbers", 1)
        return None
    finite = numbers if all(map(math.isfinite, numbers)) else [x for x in numbers if math.isfinite(x)]
    if len(finite) < len(numbers):
        drop("not_finite_in_distribution", len(numbers) - len(finite))
    if not finite:
        drop("empty_distribution", 1)
        return None
    return distribution_of(finite)


def _collect(numbers: list[float], values: Iterable[object], drop: CountDrop, depth: int) -> bool:
    """Append the numbers of nested *values*; false when they are too many."""
    for value in values:
        if type(value) is float:
            numbers.append(value)
        elif isinstance(value, (*_SEQUENCES, Set)):
            if depth >= MAX_DEPTH:  # also what holds itself
                drop("too_deep", 1)
            elif not _collect(numbers, cast("Iterable[object]", value), drop, depth + 1):
                return False
        else:
            number = to_value(value, drop)
            if isinstance(number, Distribution):
                drop("object", 1)
            elif number is not None:
                numbers.append(float(number))
        if len(numbers) > MAX_NUMBERS:
            return False
    return True


def to_step(step: object, drop: CountDrop) -> int | None:
    """Return *step* as an integer, a fraction cut off; ``None``, counted, when it is no finite number."""
    if isinstance(step, int):
        return int(step)
    number = to_value(step, lambda _reason, _count: None)
    if isinstance(number, float) and math.isfinite(number):
        if not number.is_integer():
            drop("fractional_step", 1)
        return math.trunc(number)
    if not isinstance(number, int):
        drop("bad_step", 1)
        return None
    return number
