"""One ``wandb.log()`` call -> numbers for the row, media, texts, and what the summary shows of the last two."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

from otel_bridge.capture.wandb.values.plain_values import NUMBERS, shown_value, single_number, text_of

_MAX_DEPTH: Final = 32
_EVERY_S: Final = 10.0
_MAX_KEYS: Final = 10_000
_OBJECTS: Final = ("wandb.", "otel_bridge.emit.media.", "PIL.", "matplotlib.")
"""Packages whose objects are media and tables."""
_FRAME: Final = "DataFrame"
_MAX_TYPES: Final = 256


@dataclass(slots=True)
class LoggedValues:
    """Holds the values of one call by what becomes of them.

    Attributes:
        row: Numbers, and values that become distributions, nested as given.
        media: Media and tables by key, whose parts are joined with ``/``.
        texts: Texts by such a key.
        shown: What the summary shows of values that are not numbers, nested as given.
    """

    row: dict[str, Any]
    media: dict[str, Any] = field(default_factory=dict[str, Any])
    texts: dict[str, str] = field(default_factory=dict[str, str])
    shown: dict[str, Any] = field(default_factory=dict[str, Any])


class ValueSorter:
    """Sorts the values of calls; remembers which types are media."""

    def __init__(self) -> None:
        self._special: dict[type, bool] = {}

    def sort(self, given: Mapping[str, Any]) -> LoggedValues:
        """Return the values of one call by what becomes of them."""
        found = LoggedValues({})
        found.row, found.shown = self._sort(given, "", found, 0)
        return found

    def _sort(
        self, given: Mapping[str, Any], prefix: str, found: LoggedValues, depth: int
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        row, shown = dict(given), dict[str, Any]()
        for key, value in given.items():
            kind = cast("type[object]", type(value))
            if kind in NUMBERS:
                continue
            full = f"{prefix}{key}"
            if kind is dict:
                if depth < _MAX_DEPTH:
                    row[key], inner = self._sort(cast("dict[str, Any]", value), f"{full}/", found, depth + 1)
                    shown |= {key: inner} if inner else {}
            elif value is None:  # shown, as in W&B; there is nothing to record
                shown[key] = row.pop(key)
            elif (text := text_of(value)) is not None:
                found.texts[full], shown[key] = text, shown_value(row.pop(key))
            elif self._is_special(value):
                found.media[full], shown[key] = row.pop(key), shown_value(value)
            else:
                row[key] = number = single_number(value)
                if type(number) not in NUMBERS:
                    shown[key] = shown_value(value)
        return row, shown

    def _is_special(self, value: Any) -> bool:
        kind = cast("type[object]", type(value))
        if kind in {list, tuple}:
            return bool(value) and self._is_special(value[0])
        known = self._special.get(kind)
        if known is None:
            histogram = any(base.__name__ == "Histogram" for base in kind.__mro__)
            known = (f"{kind.__module__}.".startswith(_OBJECTS) and not histogram) or kind.__name__ == _FRAME
            if len(self._special) < _MAX_TYPES:
                self._special[kind] = known
        return known


class LatestTexts:
    """Records the latest text of each key as a last value of the run, at once, then at most every 10 s.

    W&B shows a text in its history and in the summary. In a row of numbers it has no place, and a text of every step
    would cost as much as the row.

    Args:
        record: Records last values.
    """

    def __init__(self, record: Callable[[Mapping[str, str]], None]) -> None:
        self._record = record
        self._recorded: dict[str, str] = {}
        self._pending: dict[str, str] = {}
        self._due = 0.0

    def note(self, texts: Mapping[str, str]) -> None:
        """Take the texts of one call."""
        if len(self._recorded) + len(self._pending) < _MAX_KEYS:
            self._pending.update(texts)
        if time.monotonic() >= self._due:
            self.flush()

    def flush(self) -> None:
        """Record the texts that have changed."""
        taken, self._pending = self._pending, {}
        changed = {key: text for key, text in taken.items() if self._recorded.get(key) != text}
        if changed:
            self._recorded.update(changed)
            self._record(changed)
            self._due = time.monotonic() + _EVERY_S
