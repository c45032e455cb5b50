"""Values of any type -> bytes that are equal for equal content: of prompts, and of cells of tables.

What a record only describes (bytes, large arrays, pictures, media) is read whole here, since two of
a size differ.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any, cast

from otel_bridge.emit.media.pictures import image_bytes, is_picture
from otel_bridge.emit.media.values import Media, Table
from otel_bridge.errors import any_error_but_signals
from otel_bridge.records import Json
from otel_bridge.values.plain import (
    PlainReader,
    ReadingRules,
    count_nothing,
    dumps,
)
from otel_bridge.values.scalars import Array

_MAX_ENTRIES = 2_000_000
_LISTED_NUMBERS = 1_000
"""Most numbers of an array that equals a list of them."""
_RULES = ReadingRules(entries=_MAX_ENTRIES)
_MAX_FIGURE_BYTES = 32 << 20
_OBJECTS = "O"


def content_key(
    value: object, own_key: Callable[[object], str | None] | None = None
) -> bytes:
    """Return bytes that are equal for values of equal content, whatever their types, in every process.

    It never raises: what raises when it is read counts as ``[unreadable]``, like any other such.

    Args:
        value: Anything.
        own_key: Callable from an object without a text to a key that it has of its own, ``None``
            without one.
    """
    return dumps(_ContentReader(own_key).read(value))


class _ContentReader(PlainReader):
    """Reads values as records do, but replaces what these only describe by a digest."""

    def __init__(self, own_key: Callable[[object], str | None] | None) -> None:
        super().__init__(_RULES, str, count_nothing)
        self._own_key = own_key

    def _array(self, value: Array, parents: tuple[int, ...]) -> Json:
        if math.prod(tuple(value.shape)) <= _LISTED_NUMBERS:
            return super()._array(value, parents)
        return _digest(_numbers_of(value), tuple(value.shape))

    def _nested(self, value: object, parents: tuple[int, ...]) -> Json:
        """Return a collection as a record shows it.

        A medium by its kind, content, caption and columns.
        """
        if not isinstance(value, Media):
            return super()._nested(value, parents)
        columns = value.columns if isinstance(value, Table) else None
        parts = [value.kind, value.value, value.caption, columns]
        return self._items(parts, (*parents, id(value)), parts)

    def _described(self, value: object) -> Json:
        """Return the key that an object has of its own, or a digest of its bytes or pixels.

        Of any other object the key is its description, as of a record.
        """
        key = None if self._own_key is None else self._own_key(value)
        if key is not None:
            return key
        if isinstance(value, (bytes, bytearray, memoryview)):
            return _digest(bytes(cast("bytes", value)))
        if is_picture(value):
            return _digest_of_picture(value)
        return super()._described(value)


def _numbers_of(value: Array) -> bytes:
    """Return the numbers of an array as bytes, with their type.

    Those of an array of objects, or of no bytes, as text. What ``tolist()`` then raises is raised;
    the reader shows such an array as ``[unreadable]``.
    """
    array: Any = value
    try:
        if not hasattr(array, "tobytes"):  # torch
            array = array.detach().cpu().numpy()
        if array.dtype.kind != _OBJECTS:
            return b"%b %b" % (str(array.dtype).encode(), array.tobytes())
    except any_error_but_signals():  # bfloat16 of torch, which numpy lacks
        pass
    return repr(value.tolist()).encode("utf-8", "replace")


def _digest_of_picture(value: object) -> str:
    """Return the digest of the pixels of an image of pillow, or of a figure as it is drawn."""
    picture: Any = value
    if hasattr(picture, "tobytes"):
        return _digest(picture.tobytes(), (picture.mode, picture.size))
    return _digest(image_bytes(value, _MAX_FIGURE_BYTES)[1])


def _digest(data: bytes, *parts: Sequence[object]) -> str:
    return hashlib.md5(
        b"%b%b" % (repr(parts).encode(), data), usedforsecurity=False
    ).hexdigest()
