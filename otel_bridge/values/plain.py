"""Values of any type -> plain data: nested, bounded, without cycles or addresses.

Nothing is lost without a count.

One reader for configs, summaries, facts and content of rollouts, and cells of tables.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, TypeAlias, cast

import orjson

from otel_bridge.errors import any_error_but_signals
from otel_bridge.records import Json
from otel_bridge.values.reading import (
    ReadBudget,
    Unreadable,
    entries_of,
    is_list_like,
    is_of,
    items_of,
)
from otel_bridge.values.scalars import (
    Array,
    described,
    is_array,
    is_missing,
    key_text,
    own_text,
    scalar_of,
)

CountKeyedDrop: TypeAlias = Callable[[str, int, str], None]
"""Callable with a reason, the number of dropped values, and the key of the first."""

CYCLE = "[cycle]"
TOO_DEEP = "[too deep]"
CLIPPED = "clipped"
MAX_DEPTH = 32
MAX_ENTRIES = 100_000
_INT64 = 1 << 63


def count_nothing(_reason: str, _number: int, _key: str = "") -> None:
    """Do nothing: what reads the value again, to record it, counts what it leaves out."""


@dataclass(slots=True)
class Losses:
    """Collects what the values of one record lose, until its owner counts them.

    Attributes:
        counts: Reason to number.
        first_keys: Reason to the key of the first.
    """

    counts: dict[str, int] = field(default_factory=dict[str, int])
    first_keys: dict[str, str] = field(default_factory=dict[str, str])

    def add(self, reason: str, number: int, key: str) -> None:
        """Note that *number* values are lost, of which *key* names the first."""
        self.counts[reason] = self.counts.get(reason, 0) + number
        self.first_keys.setdefault(reason, key)

    def merge(self, part_losses: Losses) -> None:
        """Add the losses of another part of the record."""
        part_losses.report(self.add)

    def report(self, drop: CountKeyedDrop) -> None:
        """Count the losses with *drop*."""
        for reason, number in self.counts.items():
            drop(reason, number, self.first_keys[reason])


def json_number(value: float) -> Json:
    """Return a number that JSON can hold: NaN, infinities and integers beyond 64 bits become text.

    orjson writes NaN as null, and refuses longer integers.
    """
    if isinstance(value, int):
        if -_INT64 <= value < _INT64:
            return value
        return str(value)
    if math.isfinite(value):
        return value
    return str(value)


@dataclass(frozen=True, slots=True)
class ReadingRules:
    """Defines how one kind of call reads values.

    Attributes:
        number: Callable from a number to what is recorded.
        entries: Most entries of all collections of one call.
        depth: Most levels of nesting.
        array_numbers: Most numbers of an array that is read; a larger one is described.
        text_chars: Longest text that is recorded whole.
        total_chars: Most characters of all texts and keys.
    """

    number: Callable[[float], Json] = json_number
    entries: int = MAX_ENTRIES
    depth: int = MAX_DEPTH
    array_numbers: int = MAX_ENTRIES
    text_chars: int = sys.maxsize
    total_chars: int = sys.maxsize


class PlainReader:
    """Reads the values of one record.

    What cannot be read costs itself alone, and is counted. Only what ``__len__`` of the whole mapping
    raises is raised, by `read_mapping` and `entries`.

    Args:
        rules: Numbers and limits.
        text: Callable from a text to the part of it that is recorded.
        lose: Notified of each value that is not recorded, with its key.
        budget: Entries that are left for the record; ``None`` for those of *rules*.
    """

    def __init__(
        self,
        rules: ReadingRules,
        text: Callable[[str], str],
        lose: CountKeyedDrop,
        budget: ReadBudget | None = None,
    ) -> None:
        self._rules = rules
        self._number = rules.number
        self._filter = text
        self._lose_key = lose
        self._budget = budget or ReadBudget(rules.entries)
        self._chars_left = rules.total_chars
        self._path: list[str] = []

    def read(self, value: object, name: str = "") -> Json:
        """Return *value*, named *name*, as plain data. It never raises: see `_value`."""
        self._path = [name] if name else []
        return self._value(value, ())

    def read_mapping(
        self, values: Mapping[object, object], whole: object
    ) -> dict[str, Json]:
        """Return the entries of a mapping; *whole* is the object that they were read of.

        What its ``__len__`` raises is raised: then nothing of it is recorded.
        """
        self._path = []
        return self._mapping(values, (id(whole),), whole)

    def _value(self, value: object, parents: tuple[int, ...]) -> Json:
        """Return one value as plain data; it never raises.

        The common types come first: a config has thousands of them. One that raises is a
        placeholder, counted as ``unreadable_value``.
        """
        kind = type(value)
        if kind is str:
            return self._text(cast("str", value))
        if kind is float or kind is int:
            return self._number(cast("float", value))
        if kind is bool or value is None:
            return cast("bool | None", value)
        if not isinstance(value, Unreadable):
            try:
                return self._object(value, parents)
            except any_error_but_signals():  # code of the user's own object
                value = Unreadable()
        self._lose("unreadable_value")
        return self._text(value.shown)

    def _object(self, value: object, parents: tuple[int, ...]) -> Json:
        """Return a value that is not of a built-in plain type; what reading it raises is raised."""
        if is_missing(value):
            return None
        if not isinstance(value, Mapping) and not is_list_like(value):
            scalar = scalar_of(value)
            if scalar is not None:
                return self._value(scalar, parents)
        return self._nested(value, parents)  # pyright: ignore[reportUnknownArgumentType]  # any object

    def _nested(self, value: object, parents: tuple[int, ...]) -> Json:
        """Return a collection, or an object with fields.

        Any other object by its own text or its type. One that holds itself, or lies too deep,
        becomes a mark; the depth is counted as ``clipped``.
        """
        if id(value) in parents:
            return CYCLE
        if len(parents) >= self._rules.depth:
            self._lose(CLIPPED)
            return TOO_DEEP
        inside = (*parents, id(value))
        mapping = mapping_of(value)
        if mapping is not None:
            return self._mapping(mapping, inside, value)
        if is_list_like(value):
            return self._items(value, inside, value)
        if is_array(value):
            return self._array(value, inside)
        return self._described(value)

    def _described(self, value: object) -> Json:
        """Return the text that an object has, else its type, counted as ``described``.

        Its ``repr()`` may hold secrets.
        """
        text = own_text(value)
        if text is None:
            self._lose("described")
            text = described(value)
        return self._text(text)

    def _mapping(
        self, values: Mapping[object, object], parents: tuple[int, ...], whole: object
    ) -> dict[str, Json]:
        """Return a mapping by the texts of its keys.

        What the limits leave out is counted as ``clipped``. Two keys may be equal only once they
        are redacted or cut: the last one counts, which is counted as ``same_key``.
        """
        plain: dict[str, Json] = {}
        entries = self.entries(values, whole)
        for index, (text, value) in enumerate(entries.items()):
            key = self._filter(text)
            if self._chars_left <= 0:
                self._lose(CLIPPED, len(entries) - index, key)
                break
            self._chars_left -= len(key)
            self._path.append(key)
            if key in plain:  # redacted, or cut
                self._lose("same_key")
            plain[key] = self._value(value, parents)
            self._path.pop()
        return plain

    def entries(
        self, values: Mapping[object, object], whole: object
    ) -> dict[str, object]:
        """Return the entries of a mapping, not yet read, by the texts of their keys.

        Of equal keys the last counts. Counted are entries beyond the budget (``clipped``), keys
        that come twice (``same_key``), that are empty (``empty_key``), or whose ``str()`` raises
        (``bad_key``). What ``__len__`` of *values* raises is raised.

        Args:
            values: The mapping.
            whole: The object whose entries they are.
        """
        entries: dict[str, object] = {}
        size = len(values)
        share = self._budget.share(whole, size)
        for index, (raw_key, value) in enumerate(entries_of(values, share + 1)):
            key = raw_key if type(raw_key) is str else self._key(raw_key)
            if index == share:
                # Also of a mapping that is longer than its len(). A dict that another thread has grown
                # meanwhile is read as it was.
                if share < size or type(values) is not dict:
                    self._lose(CLIPPED, max(size - share, 1), key or "")
                break
            if key in entries:
                self._lose("same_key", 1, key)
            if key:
                entries[key] = value
            elif key is not None:
                self._lose("empty_key", 1, "")
        return entries

    def _items(
        self, values: Iterable[object], parents: tuple[int, ...], whole: object
    ) -> list[Json]:
        """Return the items of a collection; those beyond the budget are counted as ``clipped``.

        What its ``__len__`` raises is raised: `_value` makes a placeholder of the whole.
        """
        size = len(cast("Sized", values))
        share = self._budget.share(whole, size)
        if share < size:
            self._lose(CLIPPED, size - share)
        return [self._value(item, parents) for item in items_of(values, share)]

    def _array(self, value: Array, parents: tuple[int, ...]) -> Json:
        """Return an array as nested lists, a 0-d one as its number.

        One above the limit as its shape, counted as ``clipped``. What an array of another library
        raises is raised: `_value` makes a placeholder of it.
        """
        size = math.prod(tuple(value.shape))
        if size > self._rules.array_numbers:
            self._lose(CLIPPED, size)
            return described(value)
        items: object = value.tolist()
        if not isinstance(items, list):
            return self._value(items, parents)
        # An array of arrays makes another list each time: the array shows that it was read before.
        return self._items(cast("list[object]", items), parents, value)

    def _key(self, raw: object) -> str | None:
        """Return the text of a key; ``None``, counted, when it raises."""
        try:
            return key_text(raw)
        except any_error_but_signals():  # a user's __str__
            self._lose("bad_key", 1, f"<{type(raw).__name__}>")
            return None

    def _text(self, text: str) -> str:
        """Return the part of *text* that is recorded.

        A longer one, and any beyond all characters, is counted as ``clipped``; the latter is empty.
        """
        if self._chars_left <= 0:
            self._lose(CLIPPED)
            return ""
        if len(text) > self._rules.text_chars:
            self._lose(CLIPPED)
        recorded = self._filter(text)
        self._chars_left -= len(recorded)
        return recorded

    def _lose(self, reason: str, number: int = 1, *key: str) -> None:
        self._lose_key(reason, number, ".".join((*self._path, *key)))


def by_text(values: Mapping[Any, object], drop: CountKeyedDrop) -> dict[str, object]:
    """Return the entries of a mapping as they are, by the texts of their keys.

    Of equal keys the last counts; what `PlainReader.entries` leaves out is counted by *drop*.
    """
    return PlainReader(ReadingRules(), str, drop).entries(values, values)


def mapping_of(value: object) -> Mapping[object, object] | None:
    """Return the fields of a mapping, dataclass, attrs or pydantic object, namespace or pandas object.

    ``None`` for anything else. What the code of the object raises is raised, unless it has another
    way to its fields. Declared fields come before dumps, which copy all that is below.
    """
    if isinstance(value, Mapping):
        return cast("Mapping[object, object]", value)
    kind = type(value)
    declared = _declared_fields(kind)
    if declared is not None:
        return {name: _field_of(value, name) for name in declared}
    if is_of("pandas", value) and hasattr(kind, "items"):
        return _Labeled(value)
    if any(callable(getattr(kind, name, None)) for name in _DUMPS):
        return _dumped(value)
    if isinstance(value, SimpleNamespace) or is_of("argparse", value):
        return cast("Mapping[object, object]", vars(value))
    return None


def _declared_fields(kind: type) -> list[str] | None:
    """Return the names of the fields of a dataclass or attrs class.

    ``None`` for any other class.
    """
    if dataclasses.is_dataclass(kind):
        return [declared.name for declared in dataclasses.fields(kind)]
    attributes: Any = getattr(cast("Any", kind), "__attrs_attrs__", None)
    if attributes is None:
        return None
    return [str(attribute.name) for attribute in attributes]


def _field_of(value: object, name: str) -> object:
    """Return a field of an object; one that raises is an `Unreadable`, and costs itself alone."""
    try:
        return getattr(value, name)
    except any_error_but_signals():  # code of the user's own object
        return Unreadable()


_DUMPS = ("model_dump", "to_dict", "to_pydict")
"""Methods by which objects of pydantic, polars, pyarrow and their like give their fields."""


def _dumped(value: object) -> Mapping[object, object] | None:
    """Return the fields that an object gives by a method of its class.

    Its attributes if each of them raises; ``None`` if it gives anything but a mapping, or has no
    attributes.
    """
    for name in _DUMPS:
        dump = getattr(type(value), name, None)
        if not callable(dump):
            continue
        try:
            dumped: object = dump(value)
        except any_error_but_signals():  # code of the user's own object
            continue
        if isinstance(dumped, Mapping):
            return cast("Mapping[object, object]", dumped)
        return None
    return cast("Mapping[object, object] | None", getattr(value, "__dict__", None))


class _Labeled(Mapping[object, object]):
    """Maps the labels of a pandas object to its columns or values.

    A label may come twice, which `to_dict()` hides: `items()` shows it, so that it is counted.
    """

    def __init__(self, whole: Any) -> None:
        self._whole = whole

    def __getitem__(self, label: object) -> object:
        return cast("object", self._whole[label])

    def __iter__(self) -> Iterator[object]:
        return iter(self._whole.keys())

    def __len__(self) -> int:
        return len(self._whole.keys())

    def items(self) -> Any:
        """Return the pairs of label and column or value."""
        return self._whole.items()


def dumps(value: Json) -> bytes:
    """Encode JSON data as UTF-8.

    Lone surrogates become question marks, integers beyond 64 bits their digits: orjson refuses
    both. The copy without them is made only where it does.

    Raises:
        TypeError: Something in it is not JSON, which a `PlainReader` never returns.
    """
    try:
        return orjson.dumps(value)
    except TypeError:
        return orjson.dumps(_encodable(value))


def _encodable(value: Json) -> Json:
    """Return JSON data without what orjson refuses: lone surrogates, integers beyond 64 bits.

    Other values as they are.
    """
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, int):
        return json_number(value)
    if isinstance(value, dict):
        return {str(_encodable(key)): _encodable(item) for key, item in value.items()}
    if isinstance(value, list):
        return list(map(_encodable, value))
    return value
