"""A run's config -> what may be sent: plain values without secrets, cycles or memory addresses, bounded.

No ``repr()`` of a user's object: it may hold a secret, an address that differs in every process, or megabytes.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import math
import os
from collections.abc import Callable, Iterable, Mapping, Set
from types import FunctionType, SimpleNamespace
from typing import Final, cast

from otel_bridge.emit.wire import Attribute
from otel_bridge.records import Json
from otel_bridge.redaction import scrubbed, strike_out

MAX_DEPTH: Final = 16
MAX_ENTRIES: Final = 10_000
MAX_TEXT_CHARS: Final = 10_000
MAX_TOTAL_CHARS: Final = 1 << 20
_MAX_ARRAY_NUMBERS: Final = 100
CYCLE: Final = "[cycle]"
TOO_DEEP: Final = "[too deep]"


def config_of(config: object, drop: Callable[[str], None]) -> dict[str, Attribute]:
    """Return *config* as nested plain values.

    Args:
        config: A mapping, a dataclass, a namespace, or what has ``to_dict()`` or ``model_dump()``.
        drop: Called with the reason when nothing, or not all of it, can be taken.
    """
    mapping = _as_mapping(config)
    if mapping is None:
        drop("config_not_a_mapping")
        return {}
    cleaner = _Cleaner()
    cleaned = cleaner.mapping(mapping, (id(config),))
    if cleaner.clipped:
        drop("config_clipped")
    # The cleaner has looked at every text; names hold for all that lies below them.
    return cast("dict[str, Attribute]", scrubbed(cast("Json", cleaned), shapes=False))


def _as_mapping(value: object) -> Mapping[object, object] | None:
    if isinstance(value, Mapping):
        return cast("Mapping[object, object]", value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    for method in ("model_dump", "to_dict"):
        found = getattr(type(value), method, None)
        if callable(found):
            dumped: object = found(value)
            return cast("Mapping[object, object]", dumped) if isinstance(dumped, Mapping) else None
    if isinstance(value, SimpleNamespace) or type(value).__module__ == "argparse":
        return cast("Mapping[object, object]", vars(value))
    return None


class _Cleaner:
    """Copies one config, counting what it takes."""

    def __init__(self) -> None:
        self.clipped = False
        self._entries = 0
        self._chars = 0

    def mapping(self, values: Mapping[object, object], parents: tuple[int, ...]) -> dict[str, Attribute]:
        out: dict[str, Attribute] = {}
        for raw_key, value in list(values.items()):
            if self._full():
                break
            key = self._text(raw_key.name if isinstance(raw_key, enum.Enum) else _name(raw_key))
            if key:
                out[key] = self.value(value, parents)
        return out

    def value(self, value: object, parents: tuple[int, ...]) -> Attribute:
        self._entries += 1
        plain = self._plain(value)
        if plain is not None or value is None:
            return plain
        if id(value) in parents:
            return CYCLE
        if len(parents) >= MAX_DEPTH:
            self.clipped = True
            return TOO_DEEP
        inside = (*parents, id(value))
        mapping = _as_mapping(value)
        if mapping is not None:
            return self.mapping(mapping, inside)
        if isinstance(value, (list, tuple, range, Set)):
            return self._items(cast("Iterable[object]", value), inside)
        return self._array(value, inside)

    def _plain(self, value: object) -> Attribute:
        if isinstance(value, enum.Enum):
            return self._plain(value.value) if isinstance(value.value, str | int | float) else self._text(value.name)
        if isinstance(value, bool | int | float):
            kind = bool if isinstance(value, bool) else int if isinstance(value, int) else float
            return kind(value)
        text = _as_text(value)
        return None if text is None else self._text(text)

    def _items(self, values: Iterable[object], parents: tuple[int, ...]) -> list[Attribute]:
        out: list[Attribute] = []
        for item in list(values):
            if self._full():
                break
            out.append(self.value(item, parents))
        return out

    def _array(self, value: object, parents: tuple[int, ...]) -> Attribute:
        """Return an array's numbers when they are few, a number for a 0-d one, else what kind of object it is."""
        shape: object = getattr(value, "shape", None)
        tolist: object = getattr(value, "tolist", None)
        if isinstance(shape, tuple) and callable(tolist):
            sizes = cast("tuple[int, ...]", shape)
            if math.prod(sizes) <= _MAX_ARRAY_NUMBERS:
                return self.value(tolist(), parents)
            return f"<{type(value).__name__} of shape {'x'.join(map(str, sizes))}>"
        if isinstance(value, type | FunctionType):
            return self._text(f"{value.__module__}.{value.__qualname__}")
        return self._text(f"<{type(value).__module__}.{type(value).__qualname__}>")

    def _text(self, value: str) -> str:
        kept = strike_out(value[: MAX_TEXT_CHARS + 1000])[:MAX_TEXT_CHARS]
        self.clipped |= len(value) > MAX_TEXT_CHARS
        self._chars += len(kept)
        return kept

    def _full(self) -> bool:
        full = self._entries >= MAX_ENTRIES or self._chars >= MAX_TOTAL_CHARS
        self.clipped |= full
        return full


def _as_text(value: object) -> str | None:
    if isinstance(value, str):
        return str(value)
    if isinstance(value, os.PathLike):
        return os.fsdecode(cast("os.PathLike[str]", value))
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return f"<{len(value)} bytes>" if isinstance(value, bytes | bytearray) else None


def _name(key: object) -> str:
    return str(key) if key is None or isinstance(key, str | int | float | tuple) else ""  # pyright: ignore[reportUnknownArgumentType]  # any tuple
