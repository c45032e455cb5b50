"""An event ``rl.media`` -> one part of the media of one key, or all of it. Pure.

What any client sends is checked here: sizes, digests, kinds, and that a table is a table. An event
that is refused (`InvalidRecordError`) is dropped by `MediaAssembler`, and counted (``media/invalid``).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import orjson

from otel_bridge import semconv
from otel_bridge.errors import InvalidRecordError
from otel_bridge.records import Json, MediaItem
from otel_bridge.translation.decode.attributes import int_in, text_in

KINDS = frozenset({"image", "table", "text", "markdown", "html", "audio", "video"})
MAX_ITEMS = 10_000
MAX_PARTS = 4_096
_MAX_KEY_CHARS = 4_096
_MIME = re.compile(r"[a-z0-9][\w.+-]{0,63}/[a-z0-9][\w.+-]{0,63}", re.ASCII)
_MAX_COLUMNS = 10_000


@dataclass(frozen=True, slots=True)
class MediaPart:
    """Holds one part of an event's bytes.

    Attributes:
        id: Joins the parts; empty for the only part.
        part: From 0.
        parts: Number of parts.
    """

    id: str
    part: int
    parts: int


def part_of(attributes: Mapping[str, object]) -> MediaPart:
    """Return which part an event is.

    Without numbers the event is the only part. Their number is bounded, since parts wait in the
    state.

    Raises:
        InvalidRecordError: The numbers contradict each other.
    """
    parts = int_in(attributes, semconv.MEDIA_PARTS) or 1
    part = int_in(attributes, semconv.MEDIA_PART) or 0
    name = text_in(attributes, semconv.MEDIA_ID)
    if (
        not 0 <= part < parts <= MAX_PARTS
        or (parts > 1 and not name)
        or len(name) > _MAX_KEY_CHARS
    ):
        raise InvalidRecordError(
            f"part {part} of {parts} parts, at most {MAX_PARTS} expected, joined by rl.media.id"
        )
    return MediaPart(name if parts > 1 else "", part, parts)


def key_in(attributes: Mapping[str, object]) -> str:
    """Return the key of the media.

    Raises:
        InvalidRecordError: It has none, or a key that no tracker shows.
    """
    key = text_in(attributes, semconv.MEDIA_KEY)
    if not 0 < len(key) <= _MAX_KEY_CHARS:
        raise InvalidRecordError(
            f"a key of {len(key)} characters, 1 to {_MAX_KEY_CHARS} expected"
        )
    return key


def items_of(
    attributes: Mapping[str, object], data: bytes
) -> tuple[list[MediaItem], list[MediaItem]]:
    """Return the items that are shown, and those in cells of a table.

    What any client sends is checked before a tracker stores it.

    Args:
        attributes: Attributes of the first part.
        data: Bytes of all parts.

    Raises:
        InvalidRecordError: Attributes and bytes are not what they claim to be.
    """
    listed = attributes.get(semconv.MEDIA_ITEMS)
    if (
        not isinstance(listed, list)
        or not 0 < len(cast("list[object]", listed)) <= MAX_ITEMS
    ):
        raise InvalidRecordError(
            f"no list of 1 to {MAX_ITEMS} items in {semconv.MEDIA_ITEMS}"
        )
    items: list[MediaItem] = []
    cells: list[MediaItem] = []
    start = 0
    for entry in cast("list[object]", listed):
        described: Mapping[str, object] = {}
        if isinstance(entry, Mapping):
            described = cast("Mapping[str, object]", entry)
        item, start = _item(described, data, start)
        (cells if described.get("cell") is True else items).append(item)
    # Bytes that no item claims show that the sizes are wrong.
    if start != len(data):
        raise InvalidRecordError(f"{len(data)} bytes, items of {start} bytes expected")
    if not items:
        raise InvalidRecordError("no item is shown by itself")
    for item in items:
        if item.kind == "table":
            _check_table(item.data, len(cells))
    return items, cells


def _item(
    described: Mapping[str, object], data: bytes, start: int
) -> tuple[MediaItem, int]:
    """Return the item that begins at *start* of *data*, and where the next one begins.

    Raise if it is invalid.

    Raises `InvalidRecordError` for an unknown kind, a size beyond the bytes, a MIME type or digest
    that does not fit.
    """
    size = int_in(described, "size")
    kind = text_in(described, "type")
    mime = text_in(described, "mime_type")
    digest = text_in(described, "sha256")
    # Sizes come from a producer: none may reach beyond the bytes.
    if kind not in KINDS or size is None or not 0 <= size <= len(data) - start:
        raise InvalidRecordError(
            f"type {kind[:40]!r} of {size} bytes, expected one of {', '.join(sorted(KINDS))}"
        )
    if kind == "table" and described.get("cell") is True:
        raise InvalidRecordError("a table in a cell of a table")
    if _MIME.fullmatch(mime) is None:
        raise InvalidRecordError(f"{mime[:80]!r} is not a MIME type")
    content = data[start : start + size]
    content_digest = hashlib.sha256(content).hexdigest()
    # A part that is missing or mixed up shows here, before a tracker stores the file.
    if digest and digest != content_digest:
        raise InvalidRecordError(
            f"SHA-256 of an item is {content_digest}, {digest[:64]!r} expected"
        )
    return MediaItem(
        kind, mime, content, content_digest, text_in(described, "caption")
    ), start + size


def _check_table(data: bytes, media: int) -> None:
    """Raise `InvalidRecordError` unless *data* is a table as JSON with at most `_MAX_COLUMNS` columns.

    Its cells may refer to *media* items.

    It is checked here, where the event can be counted, not by each tracker after it was accepted.
    """
    try:
        parsed: object = orjson.loads(data)
    except orjson.JSONDecodeError as exc:
        raise InvalidRecordError(f"a table is not JSON: {exc}") from exc
    table: Mapping[str, object] = {}
    if isinstance(parsed, dict):
        table = cast("Mapping[str, object]", parsed)
    columns = table.get("columns")
    rows = table.get("rows")
    if not isinstance(columns, list) or not isinstance(rows, list) or len(table) != 2:
        raise InvalidRecordError(
            "a table has lists of columns and rows, and nothing else"
        )
    names = cast("list[object]", columns)
    if len(names) > _MAX_COLUMNS or not all(isinstance(name, str) for name in names):
        raise InvalidRecordError(
            f"a table has at most {_MAX_COLUMNS} columns, whose names are texts"
        )
    for row in cast("list[object]", rows):
        _check_row(row, len(names), media)


def _check_row(row: object, columns: int, media: int) -> None:
    """Raise `InvalidRecordError` unless *row* has *columns* cells, each a scalar or a reference to a medium.

    A reference beyond the media would make every writer of the table fail.
    """
    cells = None
    if isinstance(row, list):
        cells = cast("list[object]", row)
    if cells is None or len(cells) != columns:
        raise InvalidRecordError(f"a row of a table has not {columns} cells")
    for cell in cells:
        if isinstance(cell, (dict, list)) and not _is_reference(
            cast("Json", cell), media
        ):
            raise InvalidRecordError(
                "a cell of a table is not a number, a text or a reference to a medium"
            )


def _is_reference(cell: Json, media: int) -> bool:
    if not isinstance(cell, dict) or len(cell) != 1:
        return False
    index = cell.get("media")
    return type(index) is int and 0 <= index < media
