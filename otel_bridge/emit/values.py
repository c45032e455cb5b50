"""What a user logs -> flat keys and numbers, without importing numpy or torch.

A value that is none is left out and counted by reason; the rest of the row goes on. Nothing raises but what a signal
handler raises. Reasons are the names of drops in the report.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final, cast

from otel_bridge.emit.arrays import (
    MAX_DEPTH,
    CountDrop,
    Value,
    distribution,
    is_array,
    is_scalar,
    is_sequence,
)
from otel_bridge.emit.histogram import Histogram
from otel_bridge.semconv import ROW

MAX_KEY_CHARS: Final = 4096
_INT64: Final = 1 << 63
_MEDIA: Final = {
    "wandb": "wandb_media", "mlflow": "mlflow_media", "trackio": "trackio_media",
    "PIL": "figure", "matplotlib": "figure", "plotly": "figure", "bokeh": "figure",
}  # fmt: skip
"""Package of an object that is no number, to the reason under which it is told what to call instead."""
_FLAT: Final = frozenset({int, float, bool, str, list, tuple, type(None)})
"""Common types that are no mapping: asking the ABC costs more than the rest."""


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
        number: Value | None
        if type(value) is not float and is_scalar(value):
            value = value.item()  # noqa: PLW2901  # from here on a plain number
        if type(value) is float:
            number = value
        elif type(value) is dict or (type(value) not in _FLAT and isinstance(value, Mapping)):
            nested = cast("Mapping[object, object]", value)
            _flatten_into(out, f"{key}/", nested, drop, (*parents, id(values)))
            continue
        else:
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
    size = len(key)
    if len(prefix) < size <= MAX_KEY_CHARS and key != ROW:
        return key
    drop("reserved_key" if key == ROW else "long_key" if size > MAX_KEY_CHARS else "empty_key", 1)
    return None


def to_value(value: object, drop: CountDrop) -> Value | None:
    """Return *value* as a number or a distribution; ``None``, counted, when it is neither."""
    try:
        if is_scalar(value):
            value = value.item()
        if isinstance(value, float):
            return float(value)
        if isinstance(value, int):
            return _integer(value, drop)
        if value is None or isinstance(value, (str, bytes, bytearray)):
            drop("none" if value is None else "text", 1)
            return None
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


def _other(value: object, drop: CountDrop) -> Value | None:
    if isinstance(value, Histogram):
        return distribution(value.values, to_value, drop)
    if is_array(value):
        if tuple(value.shape):
            return distribution(value, to_value, drop)
        value = value.item()
        # item() of an object array may be anything, also an array again: take plain numbers only.
        if type(value) in {int, float, bool}:
            return to_value(value, drop)
    elif is_sequence(value):
        return distribution(value, to_value, drop)
    if hasattr(type(value), "__float__") and not is_array(value):
        return float(cast("float", value))
    drop("complex" if isinstance(value, complex) else _MEDIA.get(_package_of(value), "object"), 1)
    return None


def _package_of(value: object) -> str:
    return type(value).__module__.partition(".")[0]


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
