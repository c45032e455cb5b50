"""Media of one key -> items: bytes with their MIME types, under the content policy.

Pictures are not text. Texts, HTML and tables are: with policy ``off`` texts and HTML do not leave,
cells with text are empty and captions are missing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, cast

from otel_bridge.content.policy import ContentPolicy
from otel_bridge.content.user_function import hooked
from otel_bridge.emit.media.pictures import MediaDropped, file_bytes, image_bytes
from otel_bridge.emit.media.sounds import audio_bytes, video_bytes
from otel_bridge.emit.media.values import Audio, Image, Media, Table, Video
from otel_bridge.errors import any_error_but_signals
from otel_bridge.messages.content_filter import ContentFilter
from otel_bridge.records import Json
from otel_bridge.text.secret_patterns import MARGIN_CHARS, REDACTED, may_be_secret
from otel_bridge.values.plain import PlainReader, ReadingRules, dumps
from otel_bridge.values.reading import ReadBudget
from otel_bridge.values.scalars import key_text

MAX_CAPTION_CHARS = 10_000
_MIMES = {
    "text": "text/plain",
    "markdown": "text/markdown",
    "html": "text/html",
    "table": "application/json",
}
_MAX_CELLS = 2_000_000
_PLAIN = frozenset({str, int, float, bool, type(None)})


@dataclass(frozen=True, slots=True)
class EncodedMedium:
    """Holds one item; *cell* when a cell of a table holds it."""

    kind: str
    mime_type: str
    data: bytes
    caption: str
    cell: bool = False


def file_of(medium: Image | Audio | Video, limit_bytes: int) -> tuple[str, bytes]:
    """Return MIME type and bytes of the file of a medium.

    Raises:
        MediaDropped: It is of another form, or larger than *limit_bytes*.
    """
    if isinstance(medium, Image):
        return image_bytes(medium.value, limit_bytes)
    if isinstance(medium, Audio):
        return audio_bytes(medium.value, medium.sample_rate, limit_bytes)
    return video_bytes(medium.value, medium.fps, limit_bytes)


_CELLS = ReadingRules(number=lambda number: number, entries=1_000_000)
"""Rules of cells: NaN and infinities become null in the JSON of a table."""


@dataclass(slots=True)
class MediaEncoder:
    """Encodes the media of one key.

    Attributes:
        policy: Content policy.
        limit_bytes: Most bytes of all items.
        max_items: Most items that are still allowed, those in cells included.
        count: Counts drops by reason and number.
        items: What was encoded.
    """

    policy: ContentPolicy
    limit_bytes: int
    max_items: int
    count: Callable[[str, int], None]
    items: list[EncodedMedium] = field(default_factory=list[EncodedMedium])
    _cells: list[EncodedMedium] = field(default_factory=list[EncodedMedium])
    _budget: ReadBudget = field(default_factory=lambda: ReadBudget(_CELLS.entries))
    _size: int = 0

    def encode(self, media: Sequence[object]) -> Sequence[EncodedMedium]:
        """Encode *media*.

        Those that cannot be are counted and left out, those beyond `max_items` as ``media_rate``.
        """
        for index, medium in enumerate(media):
            if len(self.items) + len(self._cells) >= self.max_items:
                self.count("media_rate", len(media) - index)
                break
            self._counted(partial(self._encode, medium, alone=len(media) == 1))
        # A table is alone. Without it, those of its cells would be shown as of the next one.
        if not self.items:
            return []
        return [*self.items, *self._cells]

    def _counted(self, encode: Callable[[], None]) -> bool:
        """Return whether *encode* added its medium; otherwise the reason is counted.

        That of `MediaDropped`, or ``media_unreadable`` for whatever else *encode* raises.
        """
        try:
            encode()
        except MediaDropped as exc:
            self.count(str(exc), 1)
            return False
        except any_error_but_signals():
            # Code of the user's own object costs this medium only.
            self.count("media_unreadable", 1)
            return False
        return True

    def _encode(self, medium: object, *, alone: bool) -> None:
        """Add a medium, or a table that is *alone*.

        A key has one table, whose cells name media by their numbers.

        Raises:
            MediaDropped: It cannot be encoded.
        """
        if not isinstance(medium, Media) or (isinstance(medium, Table) and not alone):
            raise MediaDropped("media_mixed")
        if isinstance(medium, Table):
            self._table(medium)
        elif isinstance(medium, (Image, Audio, Video)):
            self._add(medium, *file_of(medium, self.limit_bytes))
        else:
            self._add(medium, _MIMES[medium.kind], self._text(medium))

    def _text(self, medium: Media) -> bytes:
        """Return a text under the content policy.

        HTML is never cut, because half of it is not valid.

        Raises:
            MediaDropped: The policy is ``off``, or the text is too long.
        """
        if self.policy.off:
            raise MediaDropped("media_text_off")
        value = medium.value
        is_html = medium.kind == "html"
        if is_html and isinstance(value, os.PathLike):
            value = file_bytes(
                cast("os.PathLike[str]", value), self.limit_bytes
            ).decode("utf-8", "replace")
        if isinstance(value, (bytes, bytearray)):  # the encoding of a page may be any
            value = value.decode("utf-8", "replace")
        text = self._as_text(value)
        if len(text) > self.limit_bytes:
            raise MediaDropped("media_too_large")
        limit = self.policy.limit
        if (
            is_html and limit is not None and len(text) > limit
        ):  # half of a page is not valid
            raise MediaDropped("media_html_cut")
        return self._filter().text(text).encode("utf-8", "replace")

    def _as_text(self, value: object) -> str:
        return value if isinstance(value, str) else str(self._plain(value))

    def _filter(self) -> ContentFilter:
        return ContentFilter(self.policy, self.limit_bytes)

    def _add(
        self, medium: Media, mime: str, data: bytes, *, cell: bool = False
    ) -> None:
        """Add an item with its caption, which is text and has the policy and a limit of its own.

        Raises:
            MediaDropped: All items together would be too large.
        """
        if self._size + len(data) > self.limit_bytes:
            raise MediaDropped("media_too_large")
        caption = self._as_text(medium.caption)
        if caption:
            caption = self._filter().text(caption[: MAX_CAPTION_CHARS + MARGIN_CHARS])[
                :MAX_CAPTION_CHARS
            ]
        self._size += len(data)
        (self._cells if cell else self.items).append(
            EncodedMedium(medium.kind, mime, data, caption, cell)
        )

    # --- tables -----------------------------------------------------------------------------------
    def _table(self, table: Table) -> None:
        """Add a table and the media of its cells.

        Raises:
            MediaDropped: It has more than two million cells, or is too large; then those of its cells are left out too.
        """
        columns, rows = columns_and_rows(table, self.count)
        if len(columns) * len(rows) > _MAX_CELLS:
            raise MediaDropped("media_too_large")
        cells = [list(map(self._cell, row)) for row in rows]
        self._add(table, _MIMES["table"], self._json(columns, cells))

    def _cell(self, value: object) -> Json:
        # Nearly every cell; what orjson does not write as it should be, `dumps` replaces.
        if type(value) in _PLAIN:
            return cast("Json", value)
        if isinstance(value, Media):
            return self._medium_in_cell(value)
        return self._plain(value)

    def _json(self, columns: list[str], cells: list[list[Json]]) -> bytes:
        """Return a table as JSON under the content policy.

        A column whose name is that of a secret has no texts; numbers stay. With policy ``off``
        cells with text are empty.
        """
        data = dumps(
            {"columns": cast("list[Json]", columns), "rows": cast("list[Json]", cells)}
        )
        policy = self.policy
        is_secret = [policy.secrets and may_be_secret(column) for column in columns]
        texts = self._filter()
        if not any(is_secret) and self._stays(columns, cells):
            return data

        def allowed(cell: Json, column: int) -> Json:
            if not isinstance(cell, str):
                return cell
            if policy.off:
                return None
            if is_secret[column]:
                return REDACTED
            return texts.text(cell)

        rows: list[Json] = []
        for row in cells:
            rows.append([allowed(cell, column) for column, cell in enumerate(row)])
        return dumps({"columns": list(map(policy.redact, columns)), "rows": rows})

    def _stays(self, columns: list[str], cells: list[list[Json]]) -> bool:
        """Return whether no text of a table changes under the policy.

        False where only each text by itself shows it. One search of the whole: each cell by itself
        would cost a table of 5,000 cells some 50 milliseconds.
        """
        # The user's function must see each text once.
        if self.policy.limit is not None or hooked():
            return False
        texts = list(columns)
        for row in cells:
            for cell in row:
                if isinstance(cell, str):
                    texts.append(cell)
        whole = "\n".join(texts)
        return self.policy.redact(whole) == whole

    def _plain(self, value: object) -> Json:
        """Return a value as a number, a text or nothing.

        The entries of a collection or an object are JSON text. What it loses is counted by the
        reader's reasons.
        """
        # A reader that is stored with this method would keep the tables of a call until the next
        # cycle collection.
        plain = PlainReader(_CELLS, str, self._count_lost, self._budget).read(value)
        if isinstance(plain, (dict, list)):
            return dumps(plain).decode()
        return plain

    def _count_lost(self, reason: str, number: int, _key: str) -> None:
        self.count(reason, number)

    def _medium_in_cell(self, medium: Media) -> Json:
        """Return what stands for a medium in its cell: the number of its item, or its text.

        ``None``, counted, for one that cannot be encoded. The place of one item is left for the
        table itself.
        """
        if not isinstance(medium, (Image, Audio, Video)):
            has_caption = not isinstance(medium.caption, str) or medium.caption != ""
            # A cell shows the text, or the rows as JSON, alone.
            if has_caption or isinstance(medium, Table):
                self.count("media_mixed", 1)
            return self._plain(medium.value)
        if len(self._cells) + len(self.items) + 1 >= self.max_items:
            self.count("media_rate", 1)
            return None
        if self._counted(partial(self._add_to_cell, medium)):
            return {"media": len(self._cells) - 1}
        return None

    def _add_to_cell(self, medium: Image | Audio | Video) -> None:
        mime, data = file_of(medium, self.limit_bytes)
        self._add(medium, mime, data, cell=True)


def columns_and_rows(
    table: Table, count: Callable[[str, int], None]
) -> tuple[list[str], list[Sequence[object]]]:
    """Return the names of the columns, and rows with a cell for each.

    Rows of another length are cut or filled, and counted as ``media_row_length``. What iterating
    over the table raises is raised.
    """
    value: Any = table.value
    if table.columns is None:
        columns = None
    else:
        columns = list(cast("Iterable[object]", table.columns))
    if callable(getattr(value, "itertuples", None)):  # a pandas data frame
        columns = list(value.columns) if columns is None else columns
        value = value.itertuples(index=False, name=None)
    # One row too many shows that the table is too large; an iterator need not end.
    rows: list[object] = list(islice(cast("Iterable[object]", value), _MAX_CELLS + 1))
    if columns is None:
        columns = _columns_in(rows)
    fitted_rows: list[Sequence[object]] = []
    changed = 0
    for row in rows:
        cells, fits = _fitted(row, columns)
        fitted_rows.append(cells)
        changed += not fits
    if changed:
        count("media_row_length", changed)
    return list(map(key_text, columns)), fitted_rows


def _columns_in(rows: Sequence[object]) -> list[object]:
    """Return the keys of all mappings, or the numbers of the cells of the first row, as columns.

    Such rows have no names of their own. Empty without rows.
    """
    if rows and isinstance(rows[0], Mapping):
        names: dict[object, None] = {}
        for row in rows:
            if isinstance(row, Mapping):
                names |= dict.fromkeys(cast("Mapping[object, object]", row))
        return list(names)
    if rows:
        return list(range(len(_cells_of(rows[0]))))
    return []


def _fitted(row: object, columns: Sequence[object]) -> tuple[Sequence[object], bool]:
    """Return the cells of *row* by *columns*, and whether it had a cell for each and no other.

    A mapping need not have all columns: each row of a data set names what it has.
    """
    if isinstance(row, Mapping):
        entries = cast("Mapping[object, object]", row)
        return [entries.get(column) for column in columns], set(columns).issuperset(
            entries
        )
    cells = _cells_of(row)
    missing = len(columns) - len(cells)
    if missing == 0:
        return cells, True
    return [*cells[: len(columns)], *([None] * missing)], False


def _cells_of(row: object) -> list[object]:
    """Return the cells of *row*; a row that is not a sequence is one cell."""
    if type(row) is list:
        return cast("list[object]", row)
    if isinstance(row, Iterable) and not isinstance(row, str):
        return list(cast("Iterable[object]", row))
    return [row]
