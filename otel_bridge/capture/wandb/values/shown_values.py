"""Values of a program -> what W&B's summary shows of them, and what is recorded of those that the program sets in it.

Source: wandb 0.31, ``util.json_friendly``. Nothing is imported of wandb: objects are recognised by
their names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from otel_bridge.errors import any_error_but_signals
from otel_bridge.records import Json
from otel_bridge.values.plain import (
    CountKeyedDrop,
    PlainReader,
    ReadingRules,
    count_nothing,
    dumps,
)
from otel_bridge.values.scalars import scalar_of

_MAX_LIST = 32
"""Most numbers of an array that W&B keeps as a list."""
_MAX_SHOWN = 10_000
"""Most entries of a list, or numbers of an array, that the summary shows."""
_RULES = ReadingRules(
    number=lambda number: number, entries=_MAX_SHOWN, array_numbers=_MAX_LIST
)
_FILES = {
    "Image": "image-file",
    "Audio": "audio-file",
    "Video": "video-file",
    "Html": "html-file",
}


def text_in(value: object) -> str | None:
    """Return what W&B shows of a text, a time, a name or a list of texts.

    ``None`` for every other value.

    ``None`` too for an empty list, one with anything else in it, and an object that raises.
    """
    if isinstance(value, list | tuple):
        entries = cast("Sequence[object]", value)
        texts: list[Json] = [entry for entry in entries if isinstance(entry, str)]
        if texts and len(texts) == len(entries):
            return dumps(texts).decode()
        return None
    try:
        scalar = scalar_of(value)
    except any_error_but_signals():  # code of the user's own object
        return None
    if isinstance(scalar, str):
        return scalar
    return None


def shown_value(value: Any) -> Any:
    """Return a value of a row, other than a number or a dict, as the summary shows it to the program."""
    kind = _kind_of(value)
    if kind is None:
        return PlainReader(_RULES, str, count_nothing).read(value, "")
    return {"_type": kind}


def recorded_value(value: Any, key: str, drop: CountKeyedDrop) -> Any:
    """Return a value that a program sets in the summary as it is recorded: lists are texts in trackers.

    Of a medium, which is counted as ``not_captured``, nothing.
    """
    if _kind_of(value) is None:
        return _with_lists_as_texts(PlainReader(_RULES, str, drop).read(value, key))
    drop("not_captured", 1, key)
    return {}


def _with_lists_as_texts(plain: Json) -> Json:
    """Return a value with its lists as JSON. Last values of trackers are numbers and texts."""
    if isinstance(plain, dict):
        return {key: _with_lists_as_texts(value) for key, value in plain.items()}
    if isinstance(plain, list):
        return dumps(plain).decode()
    return plain


def _kind_of(value: Any) -> str | None:
    """Return what W&B's summary calls a medium, a table or a histogram, or the first of a list.

    ``None`` for anything else, also for an object whose attributes raise.
    """
    if type(value) in {list, tuple} and value:
        value = value[0]
    try:
        if hasattr(value, "histogram") and hasattr(value, "bins"):
            return "histogram"
        if hasattr(value, "columns") and hasattr(value, "data"):
            return "table-file"
    except any_error_but_signals():  # an object of the user's
        return None
    kind = cast("type[object]", type(value))
    name: object = getattr(kind, "_log_type", None) or _FILES.get(kind.__name__)
    if name is None:
        return None
    return str(name)
