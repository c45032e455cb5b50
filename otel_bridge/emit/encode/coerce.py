"""Users' values of rollout fields -> plain numbers and names; unreadable values become ``None``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sized
from typing import Any, cast

from otel_bridge.errors import any_error_but_signals
from otel_bridge.values.reading import ReadBudget, is_list_like, is_text
from otel_bridge.values.scalars import is_array, name_of, number_of

_INT64 = 1 << 63
_MAX_NAME_CHARS = 1024
_MAX_NUMBERS = 1_000_000
"""Most numbers of one reward."""
_TOTALS = ("reward", "total", "score")


def number(value: object, *, mean: bool = False) -> float | None:
    """Return *value* as a finite number; ``None`` for anything else.

    It never raises, and counts nothing: the caller knows the field, and counts it by its reason.

    Args:
        value: A number, an array of any library, or a list with one value per token.
        mean: Whether a list is averaged instead of summed.
    """
    if type(value) is float:
        if math.isfinite(value):
            return value
        return None
    if value is None or is_text(value):
        return None
    try:
        return _number(value, ReadBudget(_MAX_NUMBERS), mean=mean)
    except any_error_but_signals():
        # Code of the user's own object, or too many numbers.
        return None


def _number(value: object, budget: ReadBudget, *, mean: bool) -> float | None:
    """Return *value* as a finite number, ``None`` when it holds none.

    Raises what reading it raises, and `OverflowError` beyond the budget: lists may hold one
    another.
    """
    if value is None or is_text(value):
        return None
    whole = value
    if is_array(value) and tuple(value.shape):
        value = value.tolist()
    if isinstance(value, Mapping) or is_list_like(value):
        size = len(cast("Sized", value))
        if budget.share(whole, size) < size:
            raise OverflowError
        if isinstance(value, Mapping):
            return _total(cast("Mapping[object, object]", value), budget)
        return _combined(value, budget, mean=mean)
    plain = number_of(value)
    if plain is None or not math.isfinite(plain):
        return None
    return float(plain)


def _combined(
    entries: Iterable[object], budget: ReadBudget, *, mean: bool
) -> float | None:
    """Return the sum or mean of the numbers among *entries*, ``None`` when none is.

    An entry that raises or is not a number does not count; too many raise `OverflowError`, since
    half a sum would be wrong.
    """
    numbers: list[float] = []
    for entry in entries:
        if type(entry) is float and math.isfinite(entry):
            numbers.append(entry)
            continue
        try:
            plain = _number(entry, budget, mean=mean)
        except OverflowError:
            raise
        except any_error_but_signals():
            # Code of the user's own object: the other entries count.
            continue
        if plain is not None:
            numbers.append(plain)
    if not numbers:
        return None
    if mean:
        return sum(numbers) / len(numbers)
    return sum(numbers)


def _total(parts: Mapping[object, object], budget: ReadBudget) -> float | None:
    """Return the part named ``reward``, ``total`` or ``score`` of a reward, else the sum of its parts.

    A total beside its parts would count twice in a sum. ``None`` when it is not a number.
    """
    for name in _TOTALS:
        if name in parts:
            return _number(parts[name], budget, mean=False)
    return _combined(parts.values(), budget, mean=False)


def integer(value: object) -> int | None:
    """Return *value* as an integer of 64 bits.

    ``None`` with a fraction, beyond 64 bits, or for anything else. Texts of digits are numbers: ids
    of datasets and steps come so from JSON.
    """
    if value is None:
        return None
    if type(value) is int:
        if -_INT64 <= value < _INT64:
            return value
        return None
    plain = _parsed(value) if isinstance(value, str) else number(value)
    if plain is None or plain != math.floor(plain) or not -_INT64 <= plain < _INT64:
        return None
    return int(plain)


def _parsed(text: str) -> float | None:
    """Return a text of digits as a number; ``None`` for any other text, and for a longer one."""
    # A double holds any integer of 15 digits; longer ids would become other ids.
    if text.isascii() and text.removeprefix("-").isdigit() and len(text) < 16:
        return float(text)
    return None


def mapping(value: object) -> Mapping[str, Any]:
    """Return *value* when it is a mapping, else an empty one."""
    if isinstance(value, Mapping):
        return cast("Mapping[str, Any]", value)
    return {}


def name(value: object) -> str | None:
    """Return an id or a name as text of at most 1,024 characters.

    ``None`` when *value* is neither, empty or raises.
    """
    # Nearly every name, of all rollouts of a call.
    if value is None or (type(value) is str and len(value) <= _MAX_NAME_CHARS):
        return value or None
    return name_of(value, _MAX_NAME_CHARS)
