"""Parsing and writing of JSON data in texts. Pure; never raises."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Final, cast

import orjson

from otel_bridge.records import Json

_MAX_DEPTH: Final = 64


def parsed_json(value: Json) -> Json:
    """Return the content of a JSON text.

    Return any other value, or text that is not an object or array, unchanged.

    JSON that nests deeper than a tracker shows stays text.
    """
    parsed = parsed_text(value)
    return value if parsed is not value and too_deep(parsed) else parsed


def parsed_text(value: Json) -> Json:
    """Return the content of a JSON text as `parsed_json` does, at any depth of nesting."""
    # Hot path: the first character decides for most texts. 64, because JSON may begin with spaces.
    if not isinstance(value, str) or value[:64].lstrip()[:1] not in {"[", "{"}:
        return value
    try:
        return cast("Json", orjson.loads(value))
    except ValueError:
        pass
    try:  # NaN, Infinity and lone surrogates, which orjson refuses
        return _sound(cast("Json", json.loads(value)))
    except (ValueError, RecursionError):
        return value


def number_or_name(value: float) -> float | str:
    """Return *value*.

    A number that is not finite, which JSON does not have, by its name: NaN, Infinity, -Infinity.
    """
    if math.isfinite(value):
        return value
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _sound(value: Json) -> Json:
    """Replace lone surrogates and integers beyond 64 bits, which no store accepts."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list):
        return [_sound(entry) for entry in value]
    if isinstance(value, dict):
        return {
            key.encode("utf-8", "replace").decode(): _sound(entry) for key, entry in value.items()
        }
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        return str(value)
    return value


def too_deep(value: Json) -> bool:
    """Return whether *value* nests deeper than trackers show and recursive readers should follow."""
    level = [value]
    # Level by level, because a recursive count would end at Python's own limit.
    for _ in range(_MAX_DEPTH + 1):
        level = [entry for collection in level for entry in _entries_of(collection)]
        if not level:
            return False
    return True


def _entries_of(value: Json) -> Iterable[Json]:
    """Return the entries of a list or map; nothing of any other value."""
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def as_text(value: Json) -> str:
    """Return a text unchanged, ``None`` as the empty text, any other value as JSON text."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    try:
        return orjson.dumps(value).decode()
    except (TypeError, ValueError):  # integers beyond 64 bits, lone surrogates, deep nesting
        pass
    try:
        return json.dumps(value)
    except RecursionError:
        # One line in place of the value: the record that holds it must not be lost.
        return "[nested too deeply]"
