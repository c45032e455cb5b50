"""Parsing and writing of JSON data in texts, and data that every store accepts. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from typing import cast

import orjson

from otel_bridge.records import Json

_MAX_DEPTH = 64


def parsed_json(value: Json) -> Json:
    """Return the content of a JSON text.

    Return any other value, or text that is not an object or array, unchanged.

    JSON that nests deeper than a tracker shows stays text.
    """
    parsed = parsed_text(value)
    if parsed is not value and too_deep(parsed):
        return value
    return parsed


def parsed_text(value: Json) -> Json:
    """Return the content of a JSON text as `parsed_json` does, at any depth of nesting.

    Any other value, and text that is not a valid object or array, is returned as it is. NaN and lone
    surrogates are read too, since programs write them.
    """
    # Hot path: the first character decides for most texts. 64, because JSON may begin with spaces.
    if not isinstance(value, str) or value[:64].lstrip()[:1] not in {"[", "{"}:
        return value
    try:
        return cast("Json", orjson.loads(value))
    except ValueError:
        pass
    try:  # NaN, Infinity and lone surrogates, which orjson refuses
        return with_leaves(cast("Json", json.loads(value)), sound_leaf)
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
    if value > 0:
        return "Infinity"
    return "-Infinity"


def with_leaves(value: Json, leaf: Callable[[Json], Json]) -> Json:
    """Return JSON data in which *leaf* has replaced each key, and each value but lists and maps.

    Of keys that become equal the last one stays. Raises `RecursionError` for data nested beyond
    Python's limit.
    """
    if isinstance(value, dict):
        entries: dict[str, Json] = {}
        for key, entry in value.items():
            entries[str(leaf(key))] = with_leaves(entry, leaf)
        return entries
    if isinstance(value, list):
        return [with_leaves(entry, leaf) for entry in value]
    return leaf(value)


def utf8(text: str) -> str:
    """Return *text* with ``?`` in place of lone surrogates, which UTF-8 does not have."""
    return text.encode("utf-8", "replace").decode()


def utf8_leaf(value: Json) -> Json:
    """Return a text as `utf8` does, anything else unchanged: for `with_leaves`."""
    if isinstance(value, str):
        return utf8(value)
    return value


def sound_leaf(value: Json) -> Json:
    """Return a text as `utf8_leaf` does, and an integer beyond 64 bits as text: what every store accepts."""
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        return str(value)
    return utf8_leaf(value)


def too_deep(value: Json) -> bool:
    """Return whether *value* nests deeper than trackers show and recursive readers should follow.

    `_MAX_DEPTH` levels are read; a producer may nest without bound.
    """
    level: list[Json] = [value]
    # Level by level, because a recursive count would end at Python's own limit.
    for _ in range(_MAX_DEPTH + 1):
        outer_level = level
        level = []
        for collection in outer_level:
            level.extend(_entries_of(collection))
        if not level:
            return False
    return True


def _entries_of(value: Json) -> Iterable[Json]:
    """Return the entries of a list or map; nothing of any other value."""
    if isinstance(value, dict):
        return value.values()
    if isinstance(value, list):
        return value
    return ()


def as_text(value: Json) -> str:
    """Return a text unchanged, ``None`` as the empty text, any other value as JSON text.

    Never raises.

    Data that nest too deeply become one line in their place: the record that holds them must not be
    lost.
    """
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    try:
        return orjson.dumps(value).decode()
    except (
        TypeError,
        ValueError,
    ):  # integers beyond 64 bits, lone surrogates, deep nesting
        pass
    try:
        return json.dumps(value)
    except RecursionError:
        # One line in place of the value: the record that holds it must not be lost.
        return "[nested too deeply]"
