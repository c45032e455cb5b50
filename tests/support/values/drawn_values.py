"""Nested values of all kinds that programs log. Each leaf and each key holds a number of its own: its mark."""

from __future__ import annotations

import argparse
import datetime
import enum
import re
import uuid
from collections import UserDict, UserString, deque, namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass
from decimal import Decimal
from fractions import Fraction
from functools import partial
from pathlib import PurePosixPath
from types import MappingProxyType, SimpleNamespace
from typing import Any, Final

import attrs
import numpy as np
import pandas as pd
import pyarrow as pa
import pydantic
from hypothesis import strategies as st

_FIRST_MARK: Final = 100_000
_START: Final = datetime.datetime(2000, 1, 1)


class Marks:
    """Makes the marks of one example."""

    def __init__(self) -> None:
        self._last = _FIRST_MARK

    def next(self) -> int:
        """Return a number of six digits that occurs once in the example."""
        self._last += 1
        return self._last


@dataclass
class Drawn:
    """Holds a value, and the key below which each of its marks stands.

    Attributes:
        value: The value.
        marks: Mark of a key or a leaf to the mark of the innermost key above it, empty without one.
    """

    value: Any
    marks: dict[str, str] = field(default_factory=dict[str, str])

    def uncounted(
        self, text: str, drops: Iterable[str], names: Sequence[str] = ()
    ) -> list[str]:
        """Return the marks that are not in *text* and below no key that was dropped.

        Args:
            text: What an exporter holds.
            drops: Reasons and keys of what was counted as dropped.
            names: Names under which the value was recorded, by which it may be counted as well.
        """
        dropped = "\n".join(drops)
        return [
            mark
            for mark in self.marks
            if mark not in text
            and not any(name in dropped for name in (*self._path(mark), *names))
        ]

    def _path(self, mark: str) -> Iterator[str]:
        """Yield a mark and those of the keys above it."""
        while mark:
            yield mark
            mark = self.marks[mark]


class WithText:
    """An object whose ``str()`` is its value."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __str__(self) -> str:
        return f"object {self._number}"


class WithFloat:
    """An object that converts to a number."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __float__(self) -> float:
        return self._number + 0.5


class WithIndex:
    """An object that is an integer to Python."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __index__(self) -> int:
        return self._number


class Tensor:
    """An array as torch has them: it is not a sequence."""

    def __init__(self, numbers: Any) -> None:
        self._numbers = np.asarray(numbers)
        self.shape = self._numbers.shape
        self.dtype = "torch.float32"

    def tolist(self) -> Any:
        return self._numbers.tolist()

    def item(self) -> Any:
        return self._numbers.item()


class Opaque:
    """An object without a text of its own."""


class Raising:
    """An object that raises however it is read."""

    def __str__(self) -> str:
        raise RuntimeError("unreadable")

    def __float__(self) -> float:
        raise RuntimeError("unreadable")


def _time(number: int) -> datetime.datetime:
    return _START + datetime.timedelta(minutes=number - _FIRST_MARK)


def _shown_time(number: int) -> str:
    return _time(number).isoformat()


NUMBERS: Final[Mapping[str, Callable[[int], Any]]] = {
    "int": int,
    "float": lambda number: number + 0.5,
    "np.int64": np.int64,
    "np.uint32": np.uint32,
    "np.float32": lambda number: np.float32(number + 0.5),
    "np.float64": lambda number: np.float64(number + 0.5),
    "np.longdouble": np.longdouble,
    "0-d array": np.array,
    "0-d tensor": Tensor,
    "Decimal": Decimal,
    "Fraction": Fraction,  # whole, since a text such as "200007/2" would hide the mark
    "IntEnum": lambda number: enum.IntEnum("Number", {f"M{number}": number})[
        f"M{number}"
    ],
    "with __float__": WithFloat,
    "with __index__": WithIndex,
}
"""Kinds of numbers, each made of a mark."""
TEXTS: Final[Mapping[str, Callable[[int], Any]]] = {
    "str": "text {}".format,
    "np.str_": lambda number: np.str_(f"text {number}"),
    "UserString": lambda number: UserString(f"text {number}"),
    "bytes": lambda number: f"text {number}".encode(),
    "bytearray": lambda number: bytearray(f"text {number}".encode()),
    "memoryview": lambda number: memoryview(f"text {number}".encode()),
    "with half a surrogate pair": "text \ud800 {} \udfff".format,
    "with control characters": "text \x00\x1b[31m {} \u2028\x7f".format,
    "long": lambda number: f"{number} {'long ' * 1000}",
    "Path": lambda number: PurePosixPath(f"/data/{number}"),
    "UUID": lambda number: uuid.UUID(f"{number:032d}"),
    "timedelta": lambda number: datetime.timedelta(days=number),
    "pattern": lambda number: re.compile(f"{number}+"),
    "class": lambda number: type(f"Class{number}", (), {}),
    "partial": lambda number: partial(type(f"Class{number}", (), {})),
    "with __str__": WithText,
    "exception": lambda number: ValueError(f"error {number}"),
    "complex": lambda number: complex(number, 1),
    "beyond 64 bits": lambda number: number * 10**30,
    "Enum": lambda number: enum.Enum("Text", {f"M{number}": f"text {number}"})[
        f"M{number}"
    ],
    "Enum by name": lambda number: enum.Enum("Name", {f"MEMBER_{number}": (1, 2)})[
        f"MEMBER_{number}"
    ],
    "np.bytes_": lambda number: np.bytes_(f"text {number}"),
    "Interval": lambda number: pd.Interval(number, number + 1),
}
"""Kinds of texts, and of values that become one, each made of a mark."""
TIMES: Final[Mapping[str, Callable[[int], Any]]] = {
    "datetime": _time,
    "Timestamp": lambda number: pd.Timestamp(_time(number)),
    "datetime64": lambda number: np.datetime64(_time(number)),
    "Period": lambda number: pd.Period(_time(number), freq="min"),
}
"""Kinds of times; their mark is their text up to the minute."""
UNMARKED: Final[Mapping[str, Callable[[], Any]]] = {
    "None": lambda: None,
    "True": lambda: True,
    "np.bool_": lambda: np.bool_(False),
    "nan": lambda: float("nan"),
    "inf": lambda: np.float32("inf"),
    "NA": lambda: pd.NA,
    "NaT": lambda: pd.NaT,
    "empty text": str,
    "empty list": list,
    "empty dict": dict,
    "bytes that are not text": lambda: b"\xff\xfe",
    "opaque": Opaque,
    "raising": Raising,
    "generator": lambda: (number for number in range(2)),
    "dtype": lambda: np.dtype("float32"),
    "slice": lambda: slice(1, 2),
}
"""Values that cannot hold a mark; the mark of their key shows them."""
MISSING: Final = frozenset({"None", "NA", "NaT"})
"""Values that stand for a missing one."""
LEAVES: Final = (*NUMBERS, *TEXTS, *TIMES, *UNMARKED)
KEYS: Final[Mapping[str, Callable[[int], Any]]] = {
    "str": "key {}".format,
    "int": int,
    "float": lambda number: number + 0.5,
    "np.int64": np.int64,
    "np.float32": lambda number: np.float32(number + 0.5),
    "np.str_": lambda number: np.str_(f"key {number}"),
    "UserString": lambda number: UserString(f"key {number}"),
    "bytes": lambda number: f"key {number}".encode(),
    "bytes that are not text": lambda number: b"\xff%d" % number,
    "tuple": lambda number: (number, "a"),
    "frozenset": lambda number: frozenset({number}),
    "range": range,
    "Enum by name": lambda number: enum.Enum("Name", {f"KEY_{number}": 1})[
        f"KEY_{number}"
    ],
    "Path": lambda number: PurePosixPath(f"key {number}"),
    "with __str__": WithText,
    "class": lambda number: type(f"Class{number}", (), {}),
    "with half a surrogate pair": "key \ud800 {}".format,
    "with control characters": "key \x00\n {}".format,
    "with dots and slashes": "key/{}.x".format,
    "Decimal": Decimal,
    "long": lambda number: f"{number} {'long ' * 1000}",
}
"""Kinds of keys, each made of a mark."""
SAME_KEYS: Final = ("same: int and str", "same: bytes and str")
"""Kinds of two keys that become the same text: the second holds the value of the node, the first a mark."""
MAPPINGS: Final = (
    "dict", "UserDict", "MappingProxyType", "dataclass", "attrs", "pydantic", "SimpleNamespace", "Namespace",
    "with to_dict", "cyclic", "Series",
)  # fmt: skip
WIRE_LEAVES: Final = (
    "str",
    "with control characters",
    "long",
    "int",
    "float",
    "True",
    "empty text",
)
WIRE_KEYS: Final = ("str", "with control characters", "with dots and slashes")
ROW_MAPPINGS: Final = ("dict", "UserDict", "MappingProxyType", "cyclic")
"""Mappings that a row takes as such: the fields of other objects are not values of a row."""
LISTS: Final = (
    "list", "tuple", "namedtuple", "deque", "dict values", "object array", "shared", "DataFrame of one column",
    "list in tuple",
)  # fmt: skip
ARRAYS: Final = (
    "array",
    "2-d array",
    "tensor",
    "range",
    "set",
    "frozenset",
    "Index",
    "pyarrow array",
)
"""Collections of numbers, of which the first and the last are marks."""


@dataclass(frozen=True)
class Node:
    """Describes one value: its kind, for a mapping the kinds of its keys, and what it holds."""

    kind: str
    children: tuple[Node, ...] = ()
    keys: tuple[str, ...] = ()


_LEAF: Final = st.builds(Node, st.sampled_from((*LEAVES, *ARRAYS)))


def leaves() -> st.SearchStrategy[Node]:
    """Return the strategy of values that hold no others."""
    return st.builds(Node, st.sampled_from(LEAVES))


def nested(most: int = 12) -> st.SearchStrategy[Node]:
    """Return the strategy of values, nested or not."""
    return st.recursive(
        _LEAF, lambda inner: st.one_of(mappings(inner), _lists(inner)), max_leaves=most
    )


def row_values(
    most: int = 12, left_out: frozenset[str] = frozenset()
) -> st.SearchStrategy[Node]:
    """Return the strategy of values of a row: leaves but of *left_out*, collections of numbers, mappings of these."""
    # The numbers of a row are doubles.
    leaf = _LEAF.filter(
        lambda node: node.kind not in {"empty dict", "beyond 64 bits", *left_out}
    )
    return st.recursive(
        leaf, lambda inner: mappings(inner, ROW_MAPPINGS), max_leaves=most
    )


def flat(most: int = 12) -> st.SearchStrategy[Node]:
    """Return the strategy of values whose lists hold no mappings: calls with flat keys take a list as one value."""
    # An empty mapping has no values below flat keys.
    leaf = _LEAF.filter(lambda node: node.kind != "empty dict")
    base = st.one_of(leaf, _lists(leaf))
    return st.recursive(base, mappings, max_leaves=most)


def wire(most: int = 12) -> st.SearchStrategy[Node]:
    """Return the strategy of values that OTLP has as such."""
    leaf = st.builds(Node, st.sampled_from(WIRE_LEAVES))
    return st.recursive(
        leaf,
        lambda inner: st.one_of(
            mappings(inner, ("dict",), WIRE_KEYS), _lists(inner, ("list",))
        ),
        max_leaves=most,
    )


def _lists(
    inner: st.SearchStrategy[Node], kinds: tuple[str, ...] = LISTS
) -> st.SearchStrategy[Node]:
    children = st.lists(inner, min_size=1, max_size=3).map(tuple)
    return st.builds(Node, st.sampled_from(kinds), children)


def mappings(
    inner: st.SearchStrategy[Node],
    kinds: tuple[str, ...] = MAPPINGS,
    keys: tuple[str, ...] = (*KEYS, *SAME_KEYS),
) -> st.SearchStrategy[Node]:
    """Return the strategy of mappings of what *inner* makes."""
    entries = st.lists(st.tuples(st.sampled_from(keys), inner), min_size=1, max_size=4)
    return st.builds(
        lambda kind, pairs: Node(
            kind, tuple(node for _, node in pairs), tuple(key for key, _ in pairs)
        ),
        st.sampled_from(kinds),
        entries,
    )


def drawn(node: Node, marks: Marks) -> Drawn:
    """Return the value that *node* describes."""
    if node.kind in LISTS:
        return _list(node, marks)
    if node.kind in MAPPINGS:
        return _mapping(node, marks)
    if node.kind in ARRAYS:
        return _array(node.kind, marks)
    if node.kind in UNMARKED:
        return Drawn(UNMARKED[node.kind]())
    number = marks.next()
    if node.kind in TIMES:
        minute = _time(number).isoformat(sep="~")[:16].split("~")
        return Drawn(TIMES[node.kind](number), dict.fromkeys(minute, ""))
    make = NUMBERS.get(node.kind) or TEXTS[node.kind]
    return Drawn(make(number), {str(number): ""})


def _array(kind: str, marks: Marks) -> Drawn:
    numbers = [marks.next() for _ in range(4)]
    shown = {str(number): "" for number in (numbers[0], numbers[-1])}
    make: Mapping[str, Callable[[], Any]] = {
        "array": lambda: np.array(numbers, dtype=np.float32),
        "2-d array": lambda: np.array(numbers).reshape(2, 2),
        "tensor": lambda: Tensor(numbers),
        "range": lambda: range(numbers[0], numbers[-1] + 1),
        "set": lambda: set(numbers),
        "frozenset": lambda: frozenset(numbers),
        "Index": lambda: pd.Index(numbers),
        "pyarrow array": lambda: pa.array(numbers),
    }
    return Drawn(make[kind](), shown)


def _list(node: Node, marks: Marks) -> Drawn:
    parts = [drawn(child, marks) for child in node.children]
    values = [part.value for part in parts]
    shown = {mark: key for part in parts for mark, key in part.marks.items()}
    make: Mapping[str, Callable[[], Any]] = {
        "list": lambda: values,
        "tuple": lambda: tuple(values),
        "namedtuple": lambda: namedtuple(
            "Fields", [f"f{index}" for index in range(len(values))]
        )(*values),
        "deque": lambda: deque(values),
        "dict values": lambda: dict(enumerate(values)).values(),
        "object array": lambda: _object_array(values),
        "shared": lambda: [values, values],
        "DataFrame of one column": lambda: pd.DataFrame(
            {"column": pd.Series(values, dtype=object)}
        ),
        "list in tuple": lambda: (values,),
    }
    return Drawn(make[node.kind](), shown)


def _object_array(values: list[Any]) -> Any:
    array = np.empty(len(values), dtype=object)
    for index, value in enumerate(values):
        array[index] = value
    return array


def _mapping(node: Node, marks: Marks) -> Drawn:
    whole = Drawn({})
    for kind, child in zip(node.keys, node.children, strict=True):
        number = marks.next()
        mark = str(number)
        if kind in SAME_KEYS:
            key: Any = mark
            first_number = marks.next()
            whole.value[number if "int" in kind else mark.encode()] = first_number
            whole.marks[str(first_number)] = mark
        else:
            key = KEYS[kind](number)
        part = drawn(child, marks)
        whole.value[key] = part.value
        whole.marks |= {inner: above or mark for inner, above in part.marks.items()}
        whole.marks[mark] = ""
    whole.value = _as(node.kind, whole.value)
    return whole


def _as(kind: str, entries: dict[Any, Any]) -> Any:
    """Return *entries* as a mapping or object of a kind; keys of objects are names."""
    named = {
        re.sub(r"\W", "_", f"field {key}"): value
        for key, value in entries.items()
        if _is_name(key)
    }
    if kind == "dict" or len(named) < len(entries):
        return entries
    if kind == "cyclic":
        entries["whole"] = entries
        return entries
    make: Mapping[str, Callable[[], Any]] = {
        "UserDict": lambda: UserDict(entries),
        "MappingProxyType": lambda: MappingProxyType(entries),
        "dataclass": lambda: make_dataclass("Data", list(named))(**named),
        "attrs": lambda: attrs.make_class("Attributes", list(named))(**named),
        "pydantic": lambda: _model(named),
        "SimpleNamespace": lambda: SimpleNamespace(**named),
        "Namespace": lambda: argparse.Namespace(**named),
        "with to_dict": lambda: _WithToDict(entries),
        "Series": lambda: pd.Series(
            list(entries.values()), index=list(entries), dtype=object
        ),
    }
    return make[kind]()


def _is_name(key: object) -> bool:
    return isinstance(key, str) and "\ud800" not in key and len(key) < 100


def _model(fields: dict[str, Any]) -> Any:
    class Model(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(extra="allow", arbitrary_types_allowed=True)

    return Model(**fields)


class _WithToDict:
    """An object of a library that turns into a dict."""

    def __init__(self, entries: dict[Any, Any]) -> None:
        self._entries = entries

    def to_dict(self) -> dict[Any, Any]:
        return self._entries
