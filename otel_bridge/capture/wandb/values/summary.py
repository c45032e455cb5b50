"""Shows a captured run's summary to its program, and records what the program sets in it, also in nested dicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

from otel_bridge.capture.wandb.values.shown_values import shown_value

_PLAIN: frozenset[type] = frozenset({int, float, bool, str, type(None)})
_SHOWN: frozenset[type] = _PLAIN | {list}
_MAX_KEYS = 100_000
_OWN = "_wandb"


class AttributeDict(dict[str, Any]):
    """Shows the entries of a dict as attributes too, as W&B's config and summary do."""

    __slots__ = ()

    def __getattr__(self, key: str) -> Any:
        try:
            return self[key]
        except KeyError:
            raise AttributeError(key) from None

    def __setattr__(self, key: str, value: Any) -> None:
        self[key] = value


class RecordedSummary(AttributeDict):
    """Holds the last value of each key, and what the program sets itself, which is recorded.

    Args:
        record: Records what the program sets.
    """

    __slots__ = ("record",)
    record: Callable[[Mapping[str, Any]], None]

    def __init__(self, record: Callable[[Mapping[str, Any]], None]) -> None:
        super().__init__()
        object.__setattr__(self, "record", record)

    def record_by(self, record: Callable[[Mapping[str, Any]], None]) -> None:
        """Give what the program sets from now on to *record*."""
        object.__setattr__(self, "record", record)

    def __setitem__(self, key: str, value: Any) -> None:
        self.update({key: value})

    def __delattr__(self, key: str) -> None:
        self.pop(key, None)

    def __reduce__(self) -> tuple[Any, ...]:
        """Let copies be plain dicts, which record nothing."""
        return dict, (self._as_dict(),)

    def update(self, *mappings: Any, **entries: Any) -> None:
        """Set and record entries; a dict replaces the one of its key."""
        new: dict[str, Any] = dict(*mappings, **entries)
        for key, value in new.items():
            plain: Any = value if type(value) in _PLAIN else shown_value(value)
            super().__setitem__(
                key,
                self._nested(key, cast("dict[str, Any]", plain))
                if isinstance(plain, dict)
                else plain,
            )
        self.record(new)

    def note(self, row: Mapping[str, Any]) -> None:
        """Set the last values of a row, which are recorded as such.

        Its dicts are merged, arrays are not kept alive.
        """
        self._set(row, _PLAIN)

    def show(self, values: Mapping[str, Any]) -> None:
        """Set values that are plain already, also lists."""
        self._set(values, _SHOWN)

    def replace(self, values: Mapping[str, dict[str, Any]]) -> None:
        """Set dicts in place of those of their keys."""
        for key, value in values.items():
            super().__setitem__(key, self._nested(key, value))

    def _set(self, values: Mapping[str, Any], kinds: frozenset[type]) -> None:
        # Bounds the memory of a program with ever-new keys.
        if len(self) >= _MAX_KEYS:
            return
        plain = {key: value for key, value in values.items() if type(value) in kinds}
        super().update(plain)
        # Nearly every row: it has no dict.
        if len(plain) == len(values):
            return
        for key, value in values.items():
            if isinstance(value, dict):
                entries: dict[str, Any] = shown_value(
                    value
                )  # a dict that holds itself ends there
                inner = self.get(key)
                if isinstance(inner, RecordedSummary) and "_type" not in entries:
                    inner._set(entries, kinds)
                else:
                    super().__setitem__(key, self._nested(key, entries))

    def _nested(self, key: str, values: Mapping[str, Any]) -> RecordedSummary:
        """Return a dict of the summary, whose entries are attributes and whose changes are recorded too."""
        inner = RecordedSummary(partial(self._record_below, key))
        inner.show(values)
        return inner

    def _record_below(self, key: str, changed: Mapping[str, Any]) -> None:
        self.record({key: changed})

    def _as_dict(self) -> dict[str, Any]:
        """Return the entries as plain dicts."""
        return {
            key: value._as_dict() if isinstance(value, RecordedSummary) else value
            for key, value in self.items()
            if key != _OWN
        }
