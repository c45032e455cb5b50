"""Values of a program -> the plain ones that W&B keeps of them: in the config, in the summary, and as latest texts.

Source: wandb 0.31, ``util.json_friendly``. Nothing is imported of numpy, torch or wandb: objects are recognised by
their shapes and names.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Callable, Mapping, Sequence, Set
from datetime import date
from typing import Any, Final, cast

import orjson

from otel_bridge.emit.values.scalars import is_array, is_scalar
from otel_bridge.errors import any_error

NUMBERS: Final = frozenset({int, float, bool})
_BUILT_IN: Final = "builtins"
_MAX_LIST: Final = 32
"""Most numbers of an array that W&B keeps as a list."""
_MAX_SHOWN: Final = 10_000
"""Most entries of a list, or numbers of an array, that the summary shows."""
_BINS: Final = 32
_FILES: Final = {"Image": "image-file", "Audio": "audio-file", "Video": "video-file", "Html": "html-file"}
_SEVERAL: Final = {"Image": "images/separated", "Audio": "audio", "Video": "videos", "Html": "html"}


def plain_value(given: Any, large: Callable[[Any], Any] = str) -> Any:
    """Return a value as JSON holds it: numbers and texts, lists and dicts of them.

    Args:
        given: The value.
        large: Makes the value of an array of more than 32 numbers; W&B's config has its text.
    """
    value: Any = _plain_scalar(given, large)
    if isinstance(value, dict):
        return {key: plain_value(one, large) for key, one in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, Sequence | Set) and not isinstance(value, str):
        return [plain_value(one, large) for one in cast("Sequence[Any]", value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain_value(dataclasses.asdict(value), large)
    return value if type(value).__module__ == _BUILT_IN else str(value)


def _plain_scalar(given: Any, large: Callable[[Any], Any]) -> Any:
    value: Any = given
    if is_scalar(value):
        value = value.item()
    elif is_array(value):
        size = math.prod(tuple(value.shape))
        value = value.item() if size == 1 else cast("Any", value).tolist() if size <= _MAX_LIST else large(value)
    for kind, plain in _PLAIN_OF:
        if isinstance(value, kind):
            return plain(value)
    name = getattr(given, "__qualname__", None) if callable(given) else None
    return value if name is None else f"{given.__module__}.{name}"


_PLAIN_OF: Final[tuple[tuple[type[Any], Callable[[Any], Any]], ...]] = (
    (bytes, lambda value: value.decode("utf-8", "replace")),
    (date, lambda value: value.isoformat()),
    (enum.Enum, lambda value: value.name),
    (slice, lambda value: {f"slice_{part}": getattr(value, part) for part in ("start", "step", "stop")}),
)


def single_number(value: Any) -> Any:
    """Return the number in an array or tensor of one element, as W&B does; any other value as it is."""
    try:
        if is_scalar(value) or (is_array(value) and math.prod(tuple(value.shape)) == 1):
            number = value.item()
            return number if type(number) in NUMBERS else value
    except any_error():  # an object of the user's; the recorder counts it
        return value
    return value


def text_of(value: object) -> str | None:
    """Return what W&B shows of a text, a time, a name or a list of texts; ``None`` for every other value."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes | date | complex) or (isinstance(value, enum.Enum) and not isinstance(value, int)):
        return str(plain_value(value))
    if not isinstance(value, list | tuple):
        return None
    texts = cast("Sequence[object]", value)
    return orjson.dumps(list(texts)).decode() if texts and all(isinstance(one, str) for one in texts) else None


def shown_value(value: Any) -> Any:
    """Return a value of a row, other than a number or a dict, as the summary shows it to the program."""
    one: Any = value[0] if type(value) in {list, tuple} and value else value
    described = _described(one)
    if described is not None and one is not value:
        described["count"] = len(value)
        described["_type"] = _SEVERAL.get(type(one).__name__, described["_type"])
    if described is not None:
        return described
    if type(value) in {list, tuple}:
        return plain_value(value[:_MAX_SHOWN], _histogram)
    return plain_value(value, _histogram)


def recorded_value(value: Any) -> Any:
    """Return a value that a program sets in the summary as it is recorded: lists are texts in trackers."""
    plain = plain_value(value, _histogram)
    if isinstance(plain, dict):
        return {key: recorded_value(one) for key, one in cast("dict[str, Any]", plain).items()}
    return orjson.dumps(plain, option=orjson.OPT_NON_STR_KEYS).decode() if isinstance(plain, list) else plain


def _described(value: Any) -> dict[str, Any] | None:
    """Return what W&B keeps of a medium, a table or a histogram in the summary, without its file."""
    if hasattr(value, "histogram") and hasattr(value, "bins"):
        return {"_type": "histogram", "values": list(value.histogram), "bins": list(value.bins)}
    if hasattr(value, "columns") and hasattr(value, "data"):
        return {"_type": "table-file", "ncols": len(value.columns), "nrows": len(value.data)}
    kind: Any = getattr(cast("Any", type(value)), "_log_type", None) or _FILES.get(type(value).__name__)
    if kind is None:
        return None
    facts = {fact: getattr(value, f"_{fact}", None) for fact in ("width", "height", "format", "caption")}
    return {"_type": str(kind)} | {fact: found for fact, found in facts.items() if found is not None}


def _histogram(array: Any) -> dict[str, Any]:
    """Return a large array as W&B's summary has it: its histogram, for arrays of numpy of a moderate size."""
    try:
        if math.prod(tuple(array.shape)) <= _MAX_SHOWN:
            numbers = sorted(float(one) for one in array.ravel().tolist())
            low, high = numbers[0], numbers[-1]
            size = (high - low) / _BINS or 1.0
            counts = [0] * _BINS
            for number in numbers:
                counts[min(_BINS - 1, int((number - low) / size))] += 1
            return {"_type": "histogram", "values": counts, "bins": [low + size * at for at in range(_BINS + 1)]}
    except any_error():  # an array of objects or without numbers
        pass
    return {"_type": "histogram", "values": [], "bins": []}
