"""A run's config -> values to send: plain and bounded, without secrets, cycles or memory addresses.

Never use ``repr()`` of a user's object: it may hold a secret, an address that differs in every process, or megabytes.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MappingView, Sequence, Set
from dataclasses import dataclass
from itertools import islice
from types import SimpleNamespace
from typing import Final, TypeGuard, cast

from otel_bridge.emit.encode.protobuf import Attribute
from otel_bridge.errors import any_error
from otel_bridge.records import Json
from otel_bridge.text.keys import key_text, text_of
from otel_bridge.text.secret_patterns import redact_and_cut, scrubbed

MAX_DEPTH: Final = 16
MAX_ENTRIES: Final = 10_000
MAX_TEXT_CHARS: Final = 10_000
MAX_TOTAL_CHARS: Final = 1 << 20
_MAX_ARRAY_NUMBERS: Final = 100
CYCLE: Final = "[cycle]"
TOO_DEEP: Final = "[too deep]"


def config_of(config: object, drop: Callable[[str, int, str], None]) -> dict[str, Attribute]:
    """Return *config* as nested plain values.

    Args:
        config: A mapping, dataclass, attrs class, namespace, or an object with ``to_dict()`` or ``model_dump()``.
        drop: Called with the reason, the number and the first key when *config* cannot be recorded in full.
    """
    mapping = _as_mapping(config)
    if mapping is None:
        drop("config_not_a_mapping", 1, type(config).__name__)
        return {}
    cleaner = _Cleaner()
    cleaned = cleaner.mapping(mapping, (id(config),))
    if cleaner.clipped:
        drop("config_clipped", 1, "")
    for reason, keys in cleaner.lost_keys.items():
        drop(reason, len(keys), keys[0])
    if cleaner.unreadable:
        drop("config_unreadable", len(cleaner.unreadable), cleaner.unreadable[0])
    # The cleaner has checked every text; a secret name covers everything below it.
    return cast("dict[str, Attribute]", scrubbed(cast("Json", cleaned), shapes=False))


def config_snapshot(config: object) -> dict[str, Attribute]:
    """Return *config* as it would be recorded, and count nothing; empty when it cannot be read."""
    try:
        return config_of(config, _ignore_drop)
    except any_error():  # code of the user's own objects
        return {}


def _ignore_drop(_reason: str, _number: int, _key: str) -> None:
    """Do nothing: the config is counted where it is recorded."""


def replaced_entries(config: Mapping[str, Attribute], later: Mapping[str, Attribute]) -> list[str]:
    """Return the keys of *config* for which *later* has another value."""
    return [
        key for key, value in later.items() if key in config and _text_of_entry(config[key]) != _text_of_entry(value)
    ]


def _text_of_entry(value: Attribute) -> str:
    """Return a text that is equal for equal values; a NaN equals no NaN otherwise."""
    return json.dumps(value, sort_keys=True, default=repr)


def _as_mapping(value: object) -> Mapping[object, object] | None:
    if isinstance(value, Mapping):
        return cast("Mapping[object, object]", value)
    kind = type(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _Fields(value, [field.name for field in dataclasses.fields(value)])
    if (attrs := getattr(kind, "__attrs_attrs__", None)) is not None:
        return _Fields(value, [str(one.name) for one in attrs])
    dumps = [found for name in ("model_dump", "to_dict") if callable(found := getattr(kind, name, None))]
    for dump in dumps:
        try:
            dumped: object = dump(value)
        except any_error():  # code of the user's own object
            continue
        return cast("Mapping[object, object]", dumped) if isinstance(dumped, Mapping) else None
    if dumps or isinstance(value, SimpleNamespace) or _is_of("argparse", value):
        return cast("Mapping[object, object]", getattr(value, "__dict__", None))
    return None


def bases_of(value: object) -> Iterator[tuple[str, str]]:
    """Yield package and name of the object's class and its bases: a subclass may lie in a package of its own."""
    return ((base.__module__.partition(".")[0], base.__name__) for base in type(value).__mro__)


def _is_of(package: str, value: object) -> bool:
    return any(found == package for found, _ in bases_of(value))


class _Fields(Mapping[object, object]):
    """Maps an object's fields by name; each is read on access."""

    def __init__(self, of: object, names: list[str]) -> None:
        self._of, self._names = of, names

    def __getitem__(self, name: object) -> object:
        return getattr(self._of, cast("str", name))

    def __iter__(self) -> Iterator[object]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class _Cleaner:
    """Copies one config, and counts for its limits."""

    def __init__(self) -> None:
        self.clipped = False
        self.unreadable: list[str] = []
        self.lost_keys: dict[str, list[str]] = {}
        self._entries = 0
        self._chars = 0
        self._path: list[str] = []

    def mapping(self, values: Mapping[object, object], parents: tuple[int, ...]) -> dict[str, Attribute]:
        out: dict[str, Attribute] = {}
        for raw_key, value in entries_of(values, MAX_ENTRIES + 1):
            if self._full():
                break
            key = self._key(raw_key)
            if not key:
                continue
            if key in out:
                self._lose("same_key", key)
            self._path.append(key)
            out[key] = self.value(value, parents)
            self._path.pop()
        return out

    def value(self, value: object, parents: tuple[int, ...]) -> Attribute:
        self._entries += 1
        if not isinstance(value, Unreadable):
            try:
                return self._value(value, parents)
            except any_error():  # code of the user's own object
                value = Unreadable()
        self.unreadable.append(".".join(self._path))
        return self._text(value.shown)

    def _value(self, value: object, parents: tuple[int, ...]) -> Attribute:
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
        if is_list_like(value):
            return self._items(value, inside)
        return self._array(value, inside)

    def _plain(self, value: object) -> Attribute:
        if isinstance(value, enum.Enum):
            return self._plain(value.value) if isinstance(value.value, str | int | float) else self._text(value.name)
        if isinstance(value, bool | int | float):
            kind = bool if isinstance(value, bool) else int if isinstance(value, int) else float
            return kind(value)
        text = text_of(value)
        return None if text is None else self._text(text)

    def _items(self, values: Iterable[object], parents: tuple[int, ...]) -> list[Attribute]:
        out: list[Attribute] = []
        for item in items_of(values, MAX_ENTRIES + 1):
            if self._full():
                break
            out.append(self.value(item, parents))
        return out

    def _array(self, value: object, parents: tuple[int, ...]) -> Attribute:
        """Return the numbers of a small array, the number of a 0-d array, else a description of the array."""
        shape: object = getattr(value, "shape", None)
        tolist: object = getattr(value, "tolist", None)
        if isinstance(shape, tuple) and callable(tolist):
            sizes = cast("tuple[int, ...]", shape)
            if math.prod(sizes) <= _MAX_ARRAY_NUMBERS:
                return self.value(tolist(), parents)
            return f"<{type(value).__name__} of shape {'x'.join(map(str, sizes))}>"
        return self._text(f"<{type(value).__module__}.{type(value).__qualname__}>")

    def _key(self, raw: object) -> str:
        """Return the text of a key; an empty one, counted, when it has none."""
        try:
            key = self._text(key_text(raw))
        except any_error():  # a user's __str__
            self._lose("bad_key", f"<{type(raw).__name__}>")
            return ""
        if not key:
            self._lose("empty_key", "")
        return key

    def _lose(self, reason: str, key: str) -> None:
        self.lost_keys.setdefault(reason, []).append(".".join((*self._path, key)))

    def _text(self, value: str) -> str:
        kept = redact_and_cut(value, MAX_TEXT_CHARS)
        self.clipped |= len(value) > MAX_TEXT_CHARS
        self._chars += len(kept)
        return kept

    def _full(self) -> bool:
        full = self._entries >= MAX_ENTRIES or self._chars >= MAX_TOTAL_CHARS
        self.clipped |= full
        return full


# Mappings and sequences of any library -> their entries; each entry is read alone when a joint read fails.
#
# A config may be OmegaConf with a missing mandatory value, or an object whose methods raise. An entry that cannot be
# read affects no other entry. Nothing here raises, and no library is imported.

_TEXTS: Final = (str, bytes, bytearray, memoryview)
_SEQUENCES: Final = (Sequence, Set, MappingView, deque)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Stands for an entry that raised when it was read.

    Attributes:
        shown: Known text of the entry: OmegaConf's ``???`` or ``${…}``.
    """

    shown: str = "[unreadable]"


def is_list_like(value: object) -> TypeGuard[Iterable[object]]:
    """Return whether *value* is a collection of entries, and not a text, a mapping or an iterator."""
    return isinstance(value, _SEQUENCES) and not isinstance(value, _TEXTS)


def entries_of(values: Mapping[object, object], limit: int) -> list[tuple[object, object]]:
    """Return the first *limit* entries of a mapping; an entry that cannot be read is an `Unreadable`."""
    if type(values) is dict:  # copied while the interpreter is held: no other thread changes it meanwhile
        copied = dict(cast("dict[object, object]", values))
        return list(islice(copied.items(), limit))
    for _ in range(2):  # another thread may have changed it meanwhile
        try:
            return [(key, value) for key, value in islice(values.items(), limit)]
        except any_error():  # noqa: PERF203  # code of the user's own mapping
            continue
    keys = _read_until_it_raises(values, limit)
    raw = _without_resolving(values)
    held: Mapping[object, object] = cast("Mapping[object, object]", raw) if isinstance(raw, dict) else {}
    return [_entry(values, key, held) for key in keys]


def items_of(values: Iterable[object], limit: int) -> list[object]:
    """Return the first *limit* items of a collection; an item that cannot be read is an `Unreadable`."""
    try:
        return list(islice(values, limit))
    except any_error():  # code of the user's own collection
        if not isinstance(values, Sequence):
            return _read_until_it_raises(values, limit)
    sequence: Sequence[object] = values
    raw = _without_resolving(sequence)
    held: Sequence[object] = cast("Sequence[object]", raw) if isinstance(raw, list) else ()
    try:
        count = min(len(sequence), limit)
    except any_error():
        return _read_until_it_raises(values, limit)
    return [_item(sequence, index, held) for index in range(count)]


def _entry(values: Mapping[object, object], key: object, held: Mapping[object, object]) -> tuple[object, object]:
    if isinstance(key, Unreadable):
        return key.shown, key
    try:
        return key, values[key]
    except any_error():  # code of the user's own mapping
        raw = held.get(key)
        return key, Unreadable(raw) if isinstance(raw, str) else Unreadable()


def _item(values: Sequence[object], index: int, held: Sequence[object]) -> object:
    try:
        return values[index]
    except any_error():  # code of the user's own collection
        raw = held[index] if index < len(held) else None
        return Unreadable(raw) if isinstance(raw, str) else Unreadable()


def _read_until_it_raises(values: Iterable[object], limit: int) -> list[object]:
    found: list[object] = []
    try:
        found.extend(islice(values, limit))
    except any_error():
        found.append(Unreadable())
    return found


def _without_resolving(values: object) -> object:
    """Return the unresolved content of an OmegaConf container, ``None`` for anything else."""
    omegaconf = sys.modules.get("omegaconf")
    if omegaconf is None or not _is_of("omegaconf", values):
        return None
    try:
        return cast("object", omegaconf.OmegaConf.to_container(values, resolve=False, throw_on_missing=False))
    except any_error():
        return None
