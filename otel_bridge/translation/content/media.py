"""Media -> the same media with less text, and without secrets. Pure.

Pictures, sounds and films are not text and stay. Text without a limit of characters is only redacted; with limit 0 no
text stays: captions, texts and HTML go, cells of a table become empty. HTML is never cut, because half of it is not
valid: what is longer than the limit goes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final, cast

import orjson

from otel_bridge.otlp.limits import cut
from otel_bridge.records import Json, MediaItem, MediaRecord

_CUT: Final = frozenset({"text", "markdown"})
_HTML: Final = "html"
_TABLE: Final = "table"


def limited_media(
    record: MediaRecord, limit: int | None, redact: Callable[[str], str] = lambda text: text
) -> MediaRecord:
    """Return *record* with texts of at most *limit* characters (0: none; ``None``: all), after *redact*."""

    def text(value: str) -> str:
        redacted = redact(value)
        return redacted if limit is None else cut(redacted, limit)

    def limited(items: Iterable[MediaItem]) -> list[MediaItem]:
        found = (_limited(item, limit, text) for item in items)
        return [item for item in found if item is not None]

    # Cells are pictures and sounds: none of them goes, so that the numbers in the table stay right.
    return replace(record, items=limited(record.items), cells=limited(record.cells))


def with_data(item: MediaItem, data: bytes) -> MediaItem:
    """Return *item* with other bytes."""
    return replace(item, data=data, digest=hashlib.sha256(data).hexdigest())


def _limited(item: MediaItem, limit: int | None, text: Callable[[str], str]) -> MediaItem | None:
    caption = text(item.caption) if item.caption else ""
    shown = item if caption == item.caption else replace(item, caption=caption)
    if item.kind == _TABLE:
        return _with_cells(shown, text)
    if item.kind not in _CUT and item.kind != _HTML:
        return shown
    content = item.data.decode("utf-8", "replace")
    if limit == 0 or (item.kind == _HTML and limit is not None and len(content) > limit):
        return None
    allowed = text(content)
    return shown if allowed == content else with_data(shown, allowed.encode("utf-8", "replace"))


def _with_cells(item: MediaItem, text: Callable[[str], str]) -> MediaItem:
    table = cast("dict[str, Any]", orjson.loads(item.data))
    rows: list[list[Json]] = [
        [text(cell) if isinstance(cell, str) else cell for cell in cast("list[Json]", row)] for row in table["rows"]
    ]
    data = orjson.dumps({"columns": table["columns"], "rows": rows})
    return item if data == item.data else with_data(item, data)
