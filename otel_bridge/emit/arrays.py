"""Arrays and lists of numbers -> distributions, with numpy where the program itself imported it.

Looks at what numpy, torch and jax have in common (``shape``, ``item``, ``tolist``); imports none of them.
"""

from __future__ import annotations

import array
import math
import sys
from collections import deque
from collections.abc import Callable, Iterable, Set
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeGuard, cast

from otel_bridge.emit.histogram import Distribution, distribution_of, distribution_of_array

if TYPE_CHECKING:
    import numpy as np

Value: TypeAlias = "int | float | Distribution"
CountDrop: TypeAlias = Callable[[str, int], None]
"""Called with a reason and how many values it took."""

MAX_DEPTH: Final = 32
MAX_NUMBERS: Final = 4_000_000
_SEQUENCES: Final = (list, tuple, range, deque, array.array, Set)
_scalar_types: dict[type, bool] = {}
_MAX_TYPES: Final = 256
_DOUBLE_BITS: Final = 1000
"""Integers of so few bits have a double."""


class HasItem(Protocol):
    """A numpy scalar."""

    def item(self) -> object:
        """Return it as a plain number."""
        ...


class Array(HasItem, Protocol):
    """An array of numpy, torch, jax and their like."""

    @property
    def shape(self) -> Iterable[int]:
        """Its sizes, none for a 0-d one."""
        ...

    def tolist(self) -> object:
        """Return nested lists of plain numbers."""
        ...


def is_scalar(value: object) -> TypeGuard[HasItem]:
    """Tell whether *value* is a numpy scalar, by its type."""
    kind = type(value)
    known = _scalar_types.get(kind)
    if known is None:
        known = any(base.__name__ == "generic" and base.__module__ == "numpy" for base in kind.__mro__)
        if len(_scalar_types) < _MAX_TYPES:
            _scalar_types[kind] = known
    return known


def is_array(value: object) -> TypeGuard[Array]:
    """Tell whether *value* is an array, 0-d ones included."""
    return getattr(value, "shape", None) is not None and hasattr(value, "tolist")


def is_sequence(value: object) -> TypeGuard[Iterable[object]]:
    """Tell whether *value* is one of the plain collections that may hold numbers."""
    return isinstance(value, _SEQUENCES)


def distribution(
    values: object, convert: Callable[[object, CountDrop], Value | None], drop: CountDrop
) -> Distribution | None:
    """Return the distribution of the finite numbers in *values*; ``None``, counted, when there is none.

    Args:
        values: An array, or an iterable of numbers, nested or not.
        convert: From one value to a number.
        drop: Counts what is left out.
    """
    if is_array(values):
        if math.prod(tuple(values.shape)) > MAX_NUMBERS:
            drop("too_many_numbers", 1)
            return None
        doubles = _as_numpy(values)
        if doubles is not None:
            finite_doubles = _finite_of(doubles)
            told = _tell(len(doubles), len(finite_doubles), drop)
            return distribution_of_array(finite_doubles) if told else None
        # numpy of a dtype of its own (bfloat16) and torch of any device answer tolist() alike.
        values = values.tolist()
    numbers: list[float] = []
    if not _collect(numbers, cast("Iterable[object]", values), convert, drop, 0):
        drop("too_many_numbers", 1)
        return None
    finite = [number for number in numbers if math.isfinite(number)]
    return distribution_of(finite) if _tell(len(numbers), len(finite), drop) else None


def _tell(count: int, finite: int, drop: CountDrop) -> bool:
    """Count what no bucket can hold; true when something is left."""
    if finite < count:
        drop("not_finite_in_distribution", count - finite)
    if not finite:
        drop("empty_distribution", 1)
    return finite > 0


def _as_numpy(values: Array) -> np.ndarray[Any, np.dtype[np.float64]] | None:
    """Return *values* as a flat array of doubles where numpy is there and takes them."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    try:
        found = numpy.asarray(values)
        return found.astype(numpy.float64).ravel() if found.dtype.kind in "fiub" else None
    except Exception:  # noqa: BLE001  # a tensor on a device, or one that keeps a gradient
        return None


def _finite_of(doubles: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    return cast("np.ndarray[Any, np.dtype[np.float64]]", doubles[sys.modules["numpy"].isfinite(doubles)])


def _collect(
    numbers: list[float],
    values: Iterable[object],
    convert: Callable[[object, CountDrop], Value | None],
    drop: CountDrop,
    depth: int,
) -> bool:
    """Append the numbers of nested *values*; false when they are too many."""
    for value in values:
        if type(value) is float or (type(value) is int and value.bit_length() < _DOUBLE_BITS):
            numbers.append(float(value))
        elif is_sequence(value):
            if depth >= MAX_DEPTH:  # also what holds itself
                drop("too_deep", 1)
            elif not _collect(numbers, value, convert, drop, depth + 1):
                return False
        else:
            number = convert(value, drop)
            if isinstance(number, Distribution):
                drop("object", 1)
            elif number is not None:
                numbers.append(float(number))
        if len(numbers) > MAX_NUMBERS:
            return False
    return True
