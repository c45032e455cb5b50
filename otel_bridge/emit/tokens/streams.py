"""Per-token values of many rollouts, as a program has them -> flat streams of one length. Pure.

Nothing is copied but into the flat stream.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy

from otel_bridge.emit.rollouts.columns import Column
from otel_bridge.errors import any_error
from otel_bridge.tokens.names import REFERENCES
from otel_bridge.tokens.statistics import Numbers

UNREADABLE = "token_unreadable"
OTHER_LENGTH = "token_length"
NOT_FINITE = "token_not_finite"
_NUMBERS = "fiub"
_AS_THEY_ARE = frozenset({"<f4", "<f8"})

CountDrop = Callable[[str, int, str], None]


@dataclass(slots=True)
class TokenColumn:
    """Holds one stream: the numbers of each rollout, ``None`` where a rollout has none.

    Attributes:
        without: Number of tokens of each rollout that have ``None`` instead of a number.
    """

    rows: list[Numbers | None]
    without: list[int]

    def of(self, indices: Sequence[int]) -> TokenColumn:
        """Return the values of some of the rollouts, in this order."""
        return TokenColumn(
            [self.rows[index] for index in indices],
            [self.without[index] for index in indices],
        )

    def remove(self, index: int) -> None:
        """Remove the values of one rollout."""
        self.rows[index] = None
        self.without[index] = 0

    def missing(self, lengths: Sequence[int]) -> int:
        """Return the number of tokens that have no value by the program's own statement."""
        absent = sum(
            length
            for row, length in zip(self.rows, lengths, strict=True)
            if row is None
        )
        return absent + sum(self.without)


def column_of(
    name: str, stream: object, rollouts: int, count_drop: CountDrop
) -> TokenColumn:
    """Read a stream: an array with a row for each rollout, or a list of arrays or lists."""
    column = TokenColumn([], [])
    for row in _rows(stream, rollouts):
        numbers: Numbers | None = None
        without = 0
        if row is not None:
            try:
                numbers, without = _numbers(row)
            except any_error():  # whatever the program put there
                count_drop(UNREADABLE, 1, name)
        column.rows.append(numbers)
        column.without.append(without)
    if len(column.rows) != rollouts:
        count_drop(OTHER_LENGTH, abs(len(column.rows) - rollouts), name)
        column.rows = [*column.rows, *[None] * rollouts][:rollouts]
        column.without = [*column.without, *[0] * rollouts][:rollouts]
    return column


def _rows(stream: object, rollouts: int) -> Iterable[object]:
    if hasattr(stream, "detach"):  # one copy to the CPU instead of one a rollout
        stream = _tensor(stream)
    if hasattr(stream, "__array__") and hasattr(stream, "__iter__"):
        return cast("Iterable[object]", stream)
    return Column(stream).at_all(range(max(rollouts, len(Column(stream)))))


def _tensor(tensor: Any) -> Numbers:
    """Return the numbers of a torch tensor; numpy lacks some of its types, such as bfloat16."""
    return tensor.detach().float().cpu().numpy()


def _numbers(row: object) -> tuple[Numbers, int]:
    """Return the values of one rollout, NaN for ``None``, and how many are ``None``.

    Raises:
        TypeError: They are not numbers; also what the program's own objects raise.
    """
    if hasattr(row, "detach"):
        row = _tensor(row)
    if isinstance(row, numpy.ndarray):
        return _floats_of(row), 0
    values = list(cast("Iterable[Any]", row))
    numbers = [math.nan if value is None else float(value) for value in values]
    return numpy.array(numbers), sum(value is None for value in values)


def _floats_of(array: Any) -> Numbers:
    """Return the values of a numpy array as floats.

    Raises:
        TypeError: They are not numbers.
    """
    if array.ndim == 1 and array.dtype.str in _AS_THEY_ARE:  # nearly every row
        return array
    if array.dtype.kind not in _NUMBERS:
        raise TypeError(array.dtype)
    is_double = array.dtype.kind == "f" and array.dtype.itemsize > 4
    return array.reshape(-1).astype("f8" if is_double else "f4", copy=False)


def lengths_of(
    columns: Mapping[str, TokenColumn], names: Sequence[str], count_drop: CountDrop
) -> list[int]:
    """Return the number of tokens of each rollout.

    Streams of another length lose that rollout, and are counted.

    Args:
        columns: Streams by name; without any, nothing is returned.
        names: Name of each rollout.
        count_drop: Notified of each stream of another length.
    """
    if not columns:
        return []
    lengths: list[int] = []
    for index, rollout in enumerate(names):
        rows = {name: column.rows[index] for name, column in columns.items()}
        sizes = {name: len(row) for name, row in rows.items() if row is not None}
        length = _length_of(sizes)
        for name, size in sizes.items():
            if size != length:
                count_drop(OTHER_LENGTH, 1, f"{name} of {rollout}")
                columns[name].remove(index)
        lengths.append(length)
    return lengths


def _length_of(sizes: Mapping[str, int]) -> int:
    """Return the length that the ids of the tokens have, else their mask, else most streams.

    0 without any.
    """
    for name in REFERENCES:
        if name in sizes:
            return sizes[name]
    streams = Counter(sizes.values())
    return max(streams, key=streams.__getitem__, default=0)


def flat(
    column: TokenColumn, lengths: Sequence[int], missing: float = math.nan
) -> Numbers:
    """Return the numbers of all rollouts, one after the other, *missing* for rollouts without the stream."""
    arrays = [
        numpy.full(length, missing, "f4") if row is None else row
        for row, length in zip(column.rows, lengths, strict=True)
    ]
    return numpy.concatenate(arrays)


def masked(stream: Numbers, mask: Numbers) -> Numbers:
    """Return *stream* with NaN for the tokens whose *mask* is 0: they were not sampled."""
    return numpy.where(mask > 0, stream, numpy.nan).astype(stream.dtype, copy=False)
