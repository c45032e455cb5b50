"""Users' values of rollout fields -> plain numbers and names; unreadable values become ``None``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from otel_bridge.errors import any_error

_INT64: Final = 1 << 63
_MAX_NAME_CHARS: Final = 1024
_TOTALS: Final = ("reward", "total", "score")


def number(value: object, *, mean: bool = False) -> float | None:
    """Return *value* as a finite number.

    Args:
        value: A number, an array of any library, or a list with one value per token.
        mean: Whether a list is averaged instead of summed.
    """
    if type(value) is float:
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (str, bytes)):
        return None
    try:
        return _number(value, mean=mean)
    except any_error():  # code of the user's own object
        return None


def _number(value: object, *, mean: bool) -> float | None:
    tolist = getattr(value, "tolist", None)
    if callable(tolist):
        value = tolist()
    if isinstance(value, Mapping):
        return _total(cast("Mapping[object, object]", value))
    if isinstance(value, (list, tuple)):
        known = [one for entry in cast("Sequence[object]", value) if (one := number(entry, mean=mean)) is not None]
        if not known:
            return None
        return sum(known) / len(known) if mean else sum(known)
    if getattr(getattr(value, "dtype", None), "kind", "") == "c":  # float() of a complex long double only warns
        return None
    plain = float(cast("float", value))
    return plain if math.isfinite(plain) else None


def _total(parts: Mapping[object, object]) -> float | None:
    """Return the total of named reward parts: the part named ``reward``, else the sum."""
    total = next((parts[name] for name in _TOTALS if name in parts), None)
    return number(list(parts.values()) if total is None else total)


def integer(value: object) -> int | None:
    """Return *value* as an integer of 64 bits."""
    if type(value) is int:
        return value if -_INT64 <= value < _INT64 else None
    plain = number(value) if not isinstance(value, str) else _parsed(value)
    if plain is None or plain != math.floor(plain) or not -_INT64 <= plain < _INT64:
        return None
    return int(plain)


def _parsed(text: str) -> float | None:
    return float(text) if text.isascii() and text.lstrip("-").isdigit() and len(text) < 16 else None


def mapping(value: object) -> Mapping[str, Any]:
    """Return *value* when it is a mapping, else an empty one."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def name(value: object) -> str | None:
    """Return an id or a name as text of bounded length; ``None`` when *value* is neither."""
    if value is None:
        return None
    try:
        text = value if type(value) is str else str(value)
    except any_error():  # code of the user's own object
        return None
    return text[:_MAX_NAME_CHARS] or None
