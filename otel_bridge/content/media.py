"""Media -> the same media with less text, and without secrets. Pure.

Pictures, sounds and films are not text and stay. Text without a limit of characters is only
redacted; with limit 0 no text stays: captions, texts and HTML go, cells of a table become empty.
HTML is never cut, because half of it is not valid: what is longer than the limit goes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, cast

import orjson

from otel_bridge.content.policy import ContentPolicy, TextKind
from otel_bridge.records import Json, MediaItem, MediaRecord

_CUT = frozenset({"text", "markdown"})
_HTML = "html"
_TABLE = "table"


def limited_media(record: MediaRecord, policy: ContentPolicy) -> MediaRecord:
    """Return *record* with the texts that *policy* allows; its items may be none.

    Tables of *record* are those that decoding has checked, so that nothing raises.
    """
    # Cells are pictures and sounds: none of them goes, so that the numbers in the table stay right.
    return replace(
        record,
        items=_limited_items(record.items, policy),
        cells=_limited_items(record.cells, policy),
    )


def _limited_items(
    items: Iterable[MediaItem], policy: ContentPolicy
) -> list[MediaItem]:
    limited_items: list[MediaItem] = []
    for item in items:
        limited = _limited(item, policy)
        if limited is not None:
            limited_items.append(limited)
    return limited_items


def with_data(item: MediaItem, data: bytes) -> MediaItem:
    """Return *item* with other bytes."""
    return replace(item, data=data, digest=hashlib.sha256(data).hexdigest())


def _limited(item: MediaItem, policy: ContentPolicy) -> MediaItem | None:
    """Return *item* with less text; ``None`` when nothing of it may leave.

    A picture stays, with the caption that may leave. HTML above the limit goes whole: half of it is
    not valid.
    """
    captioned = replace(item, caption=policy.allowed(item.caption, TextKind.MESSAGE))
    if item.kind == _TABLE:
        return _with_cells(captioned, policy)
    if item.kind not in _CUT and item.kind != _HTML:
        return captioned
    content = item.data.decode("utf-8", "replace")
    too_long = policy.limit is not None and len(content) > policy.limit
    if policy.off or (item.kind == _HTML and too_long):
        return None
    allowed = policy.allowed(content, TextKind.MESSAGE)
    if allowed == content:
        return captioned
    return with_data(captioned, allowed.encode("utf-8", "replace"))


def _with_cells(item: MediaItem, policy: ContentPolicy) -> MediaItem:
    """Return a table with the texts of its cells under *policy*.

    Names of columns stay, as keys of metrics do. Data that is not the JSON of a table raises
    `ValueError` or `KeyError`; an event with such data is refused before it becomes a record.
    """
    table = cast("dict[str, Any]", orjson.loads(item.data))
    rows: list[list[Json]] = []
    for row in cast("list[list[Json]]", table["rows"]):
        cells = [_allowed_cell(cell, policy) for cell in row]
        rows.append(cells)
    data = orjson.dumps({"columns": table["columns"], "rows": rows})
    if data == item.data:
        return item
    return with_data(item, data)


def _allowed_cell(cell: Json, policy: ContentPolicy) -> Json:
    """Return the part of a cell that may leave. Only texts: numbers have no secrets."""
    return policy.allowed(cell, TextKind.MESSAGE) if isinstance(cell, str) else cell
