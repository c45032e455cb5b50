"""Arguments of ``run.summary()`` -> flat keys with numbers, texts and bools, without secrets. Nothing raises."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias, cast

from otel_bridge.emit.config.hyperparameters import MAX_TEXT_CHARS, entries_of
from otel_bridge.emit.encode.values import MAX_DEPTH, MAX_KEY_CHARS, is_array, is_scalar, to_value
from otel_bridge.errors import any_error
from otel_bridge.records import Json, Scalar
from otel_bridge.text.keys import SharedReads, key_text
from otel_bridge.text.secret_patterns import redact_and_cut, scrubbed

MAX_ENTRIES: Final = 10_000
"""Most entries of one call, and of a run in the bridge."""
_Drop: TypeAlias = Callable[[str, int, str], None]


def summary_of(values: object, drop: _Drop) -> dict[str, Scalar]:
    """Return the entries of *values* by flat key; whatever is not a number, text or bool is left out and counted.

    Args:
        values: Entries by key; nested mappings are flattened with ``/``.
        drop: Callable with a reason, a number and the first key.
    """
    found: dict[str, Scalar] = {}
    if isinstance(values, Mapping):
        _collect(found, "", cast("Mapping[object, object]", values), drop, (SharedReads(), 0))
    else:
        drop("not_a_mapping", 1, type(values).__name__)
    if len(found) > MAX_ENTRIES:
        drop("summary_clipped", len(found) - MAX_ENTRIES, "")
        found = dict(list(found.items())[:MAX_ENTRIES])
    return cast("dict[str, Scalar]", scrubbed(cast("Json", found), shapes=False))


def _collect(
    found: dict[str, Scalar],
    prefix: str,
    values: Mapping[object, object],
    drop: _Drop,
    nesting: tuple[SharedReads, int],
) -> None:
    """Add the entries of *values* to *found*; *nesting* is what was read, and the depth."""
    shared = nesting[0]
    depth = nesting[1]
    for raw, value in entries_of(values, MAX_ENTRIES + 1):
        try:
            key = prefix + key_text(raw)
        except any_error():  # a user's __str__
            drop("bad_key", 1, f"{prefix}<{type(raw).__name__}>")
            continue
        nested = cast("Mapping[object, object]", value) if isinstance(value, Mapping) else None
        if nested is not None and depth < MAX_DEPTH:
            if shared.admits(nested):
                _collect(found, f"{key}/", nested, drop, (shared, depth + 1))
            else:
                drop("summary_clipped", 1, key)
            continue
        scalar = _scalar(value)  # pyright: ignore[reportUnknownArgumentType]  # any mapping, too deep
        if scalar is None or not len(prefix) < len(key) <= MAX_KEY_CHARS:
            drop("summary_value" if scalar is None else "long_key" if key != prefix else "empty_key", 1, key)
        else:
            if key in found:
                drop("same_key", 1, key)
            found[key] = scalar


def _scalar(value: object) -> Scalar | None:
    """Return *value* as a plain number, text or bool; ``None`` when it is something else."""
    try:
        if is_scalar(value) or (is_array(value) and not tuple(value.shape)):
            value = value.item()
    except any_error():  # a user's object
        return None
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return redact_and_cut(value, MAX_TEXT_CHARS)
    number = to_value(value, lambda _reason, _count: None)
    return number if isinstance(number, (int, float)) else None
