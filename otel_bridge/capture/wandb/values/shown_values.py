"""Values of a program -> what W&B's summary shows of them, and what is recorded of those that the program sets in it.

Source: wandb 0.31, ``util.json_friendly``. Nothing is imported of wandb: objects are recognised by
their names.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

from otel_bridge.emit.values.plain import (
    CountKeyedDrop,
    PlainReader,
    ReadingRules,
    count_nothing,
    dumps,
)
from otel_bridge.emit.values.scalars import is_array, scalar_of
from otel_bridge.errors import any_error
from otel_bridge.records import Json

_MAX_LIST = 32
"""Most numbers of an array that W&B keeps as a list."""
_MAX_SHOWN = 10_000
"""Most entries of a list, or numbers of an array, that the summary shows."""
_RULES = ReadingRules(
    number=lambda number: number, entries=_MAX_SHOWN, array_numbers=_MAX_LIST
)
_BINS = 32
_FILES = {
    "Image": "image-file",
    "Audio": "audio-file",
    "Video": "video-file",
    "Html": "html-file",
}
_SEVERAL = {
    "Image": "images/separated",
    "Audio": "audio",
    "Video": "videos",
    "Html": "html",
}


def text_in(value: object) -> str | None:
    """Return what W&B shows of a text, a time, a name or a list of texts.

    ``None`` for every other value.
    """
    if isinstance(value, list | tuple):
        entries = cast("Sequence[object]", value)
        texts: list[Json] = [entry for entry in entries if isinstance(entry, str)]
        if texts and len(texts) == len(entries):
            return dumps(texts).decode()
        return None
    try:
        scalar = scalar_of(value)
    except any_error():  # code of the user's own object
        return None
    if isinstance(scalar, str):
        return scalar
    return None


def shown_value(value: Any) -> Any:
    """Return a value of a row, other than a number or a dict, as the summary shows it to the program."""
    return _shown(value, "", count_nothing)


def recorded_value(value: Any, key: str, drop: CountKeyedDrop) -> Any:
    """Return a value that a program sets in the summary as it is recorded: lists are texts in trackers."""
    return _with_lists_as_texts(_shown(value, key, drop))


def _with_lists_as_texts(plain: Json) -> Json:
    if isinstance(plain, dict):
        return {key: _with_lists_as_texts(value) for key, value in plain.items()}
    if isinstance(plain, list):
        return dumps(plain).decode()
    return plain


def _shown(value: Any, key: str, drop: CountKeyedDrop) -> Any:
    medium: Any = value[0] if type(value) in {list, tuple} and value else value
    try:
        described = _described(medium) or _histogram(value)
    except any_error():  # an object of the user's, or an array without numbers
        described = None
    if described is None:
        return PlainReader(_RULES, str, drop).read(value, key)
    if medium is not value:
        described["count"] = len(value)
        described["_type"] = _SEVERAL.get(type(medium).__name__, described["_type"])
    return described


def _described(value: Any) -> dict[str, Any] | None:
    """Return what W&B keeps of a medium, a table or a histogram in the summary, without its file."""
    if hasattr(value, "histogram") and hasattr(value, "bins"):
        return {
            "_type": "histogram",
            "values": list(value.histogram),
            "bins": list(value.bins),
        }
    if hasattr(value, "columns") and hasattr(value, "data"):
        return {
            "_type": "table-file",
            "ncols": len(value.columns),
            "nrows": len(value.data),
        }
    kind: Any = getattr(cast("Any", type(value)), "_log_type", None) or _FILES.get(
        type(value).__name__
    )
    if kind is None:
        return None
    facts = {
        fact: getattr(value, f"_{fact}", None)
        for fact in ("width", "height", "format", "caption")
    }
    return {"_type": str(kind)} | {
        fact: fact_value for fact, fact_value in facts.items() if fact_value is not None
    }


def _histogram(value: Any) -> dict[str, Any] | None:
    """Return the histogram of an array of many numbers, as W&B's summary has it.

    ``None`` for anything else.
    """
    if (
        not is_array(value)
        or not _MAX_LIST < math.prod(tuple(value.shape)) <= _MAX_SHOWN
    ):
        return None
    numbers = sorted(float(number) for number in cast("Any", value).ravel().tolist())
    low = numbers[0]
    # Equal numbers have a range of 0.
    size = (numbers[-1] - low) / _BINS or 1.0
    counts = [0] * _BINS
    for number in numbers:
        counts[min(_BINS - 1, int((number - low) / size))] += 1
    return {
        "_type": "histogram",
        "values": counts,
        "bins": [low + size * index for index in range(_BINS + 1)],
    }
