"""One ``wandb.log()`` call -> numbers for the row, media, texts, and what the summary shows of the last two."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, cast

from otel_bridge.capture.wandb.values.shown_values import shown_value, text_in
from otel_bridge.values.plain import CountKeyedDrop, by_text
from otel_bridge.values.reading import ReadBudget
from otel_bridge.values.scalars import single_of

NUMBERS = frozenset({int, float, bool})
_MAX_DEPTH = 32
_MAX_ENTRIES = 100_000
"""Most entries of nested dicts that are sorted; the row reads what is beyond, within its own limits."""
_TEXTS = frozenset({str})
_EVERY_S = 10.0
_MAX_KEYS = 10_000
"""Most keys whose last value is held, and most that the program has set itself."""
_OBJECTS = ("wandb.", "otel_bridge.emit.media.", "PIL.", "matplotlib.")
"""Packages whose objects are media and tables."""
_FRAME = "DataFrame"


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
    """Sorts the values of calls by what becomes of them.

    Args:
        drop: Counts keys that cannot be recorded.
    """

    def __init__(self, drop: CountKeyedDrop) -> None:
        self._drop = drop

    def sort(self, values: Mapping[str, Any]) -> LoggedValues:
        """Return the values of one call by what becomes of them.

        Raises what an object of the program raises when it is read; the caller counts that.
        """
        logged = LoggedValues({})
        logged.row, logged.shown = self._sort(
            values, "", logged, ReadBudget(_MAX_ENTRIES), 0
        )
        return logged

    def _sort(
        self,
        values: Mapping[Any, Any],
        prefix: str,
        logged: LoggedValues,
        budget: ReadBudget,
        depth: int,
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the part of *values* for the row and what the summary shows.

        Add media and texts to *logged*.

        A dict beyond the depth or the number of entries stays in the row as it is, which drops and
        counts what is too much. ``None`` has no place in a row. Of other values that are not
        numbers, such as arrays, the row makes distributions.
        """
        if _TEXTS.issuperset(map(type, values)):
            row = dict(values)
        else:
            row = by_text(values, self._drop)
        shown: dict[str, Any] = {}
        for key, value in list(row.items()):
            kind = type(value)
            if kind in NUMBERS:
                continue
            full = f"{prefix}{key}"
            if isinstance(value, Mapping):
                nested = cast("Mapping[object, object]", value)
                if depth < _MAX_DEPTH and budget.share(nested, len(nested)) == len(
                    nested
                ):
                    row[key], inner = self._sort(
                        nested, f"{full}/", logged, budget, depth + 1
                    )
                    shown |= {key: inner} if inner else {}
            elif value is None:  # shown, as in W&B; there is nothing to record
                shown[key] = row.pop(key)
            elif (text := text_in(value)) is not None:
                logged.texts[full] = text
                shown[key] = shown_value(row.pop(key))
            elif self._is_special(value):
                logged.media[full] = row.pop(key)
                shown[key] = shown_value(value)
            else:
                number = single_of(value)
                if type(number) in NUMBERS:
                    row[key] = number
                else:
                    shown[key] = shown_value(value)
        return row, shown

    def _is_special(self, value: Any) -> bool:
        """Return whether a value, or the first of a list, is a medium, a table or a data frame.

        W&B's ``Histogram`` is not: a row takes it as a distribution. Recognised by the names of
        packages, none of which is imported here. Of a list the first entry decides: W&B takes lists
        of one kind.
        """
        kind = cast("type[object]", type(value))
        if kind in {list, tuple}:
            return bool(value) and self._is_special(value[0])
        is_histogram = any(base.__name__ == "Histogram" for base in kind.__mro__)
        is_medium = f"{kind.__module__}.".startswith(_OBJECTS) and not is_histogram
        return is_medium or kind.__name__ == _FRAME


class LatestValues:
    """Records the latest value of each key as a last value of the run, at once, then at most every 10 s.

    W&B shows a text in its history and in the summary. In a row of numbers it has no place, and a
    text of every step would cost as much as the row. A number is noted here where its key has a
    last value already, which it replaces in W&B's summary.

    Args:
        record: Records last values.
        drop: Counts the values of keys beyond the limit.
    """

    def __init__(
        self,
        record: Callable[[Mapping[str, str | float]], None],
        drop: CountKeyedDrop,
    ) -> None:
        self._record = record
        self._drop = drop
        self._recorded: dict[str, str | float] = {}
        self._pending: dict[str, str | float] = {}
        self._noted: set[str] = set()
        self._set_by_program: set[str] = set()
        self._due = 0.0

    def note(self, values: Mapping[str, str | float]) -> None:
        """Take the values of one call.

        Of a new key beyond `_MAX_KEYS` the value is dropped and counted as ``too_many_texts``.
        """
        for key, value in values.items():
            is_known = key in self._noted or key in self._set_by_program
            # Bounds the memory of ever-new keys; the known ones go on.
            if is_known or len(self._noted) < _MAX_KEYS:
                self._noted.add(key)
                self._pending[key] = value
            else:
                self._drop("too_many_texts", 1, key)
        if time.monotonic() >= self._due:
            self.flush()

    def note_row(self, row: Mapping[str, Any]) -> None:
        """Take the numbers of a row whose key has or awaits a last value, which nearly no row has."""
        if not (self._set_by_program or self._noted):
            return
        replaced = {
            key: value
            for key, value in _leaves(row)
            if type(value) in NUMBERS
            # Also one that waits: it would be recorded after this number.
            and (key in self._set_by_program or key in self._noted)
        }
        if replaced:
            self.note(replaced)

    def note_set(self, values: Mapping[str, Any]) -> None:
        """Note that the program has set these last values itself, which replace what was noted."""
        for key, _ in _leaves(values):
            self._pending.pop(key, None)
            self._recorded.pop(key, None)
            self._noted.discard(key)
            if len(self._set_by_program) < _MAX_KEYS:
                self._set_by_program.add(key)

    def flush(self) -> None:
        """Record the values that have changed.

        A value that is equal to the recorded one costs nothing. After the run's end nothing is
        recorded: the run counts the values as late.
        """
        pending = self._pending
        self._pending = {}
        changed = {
            key: value
            for key, value in pending.items()
            if self._recorded.get(key) != value
        }
        if changed:
            self._recorded.update(changed)
            # First: another thread's newer values would be recorded before these.
            self._due = time.monotonic() + _EVERY_S
            self._record(changed)


def _leaves(values: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    """Return what nested dicts hold by joined keys, as texts are noted, within the limits of a call."""
    return islice(_nested_leaves(values, "", 0), _MAX_ENTRIES)


def _nested_leaves(
    values: Mapping[str, Any], prefix: str, depth: int
) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict) and depth < _MAX_DEPTH:
            nested = cast("dict[str, Any]", value)
            yield from _nested_leaves(nested, f"{prefix}{key}/", depth + 1)
        else:
            yield f"{prefix}{key}", value
