"""Media -> W&B's media types. Imports nothing of wandb: the module is given.

W&B has no type for plain text or Markdown in a run's history, so that they are shown as HTML. It copies files when
they are logged, so that those here are needed no longer than the call.
"""

from __future__ import annotations

import html
import importlib.util
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from otel_bridge.errors import ExporterError
from otel_bridge.media_files import put_media
from otel_bridge.records import MediaItem, MediaRecord
from otel_bridge_wandb.errors import refused

_NO_PILLOW: Final = "images: wandb needs pillow to log them; pip install pillow where the bridge runs"


class WandbMedia:
    """Makes W&B's objects.

    Args:
        wandb: The module.
    """

    def __init__(self, wandb: Any) -> None:
        self._wandb = wandb
        self._has_pillow = importlib.util.find_spec("PIL") is not None
        self.left_out: Counter[str] = Counter()

    def value_of(self, record: MediaRecord, folder: Path) -> object | None:
        """Return W&B's object for *record*, as `value` does.

        Raises:
            PermanentError: The bytes are not what they claim to be.
        """
        try:
            return self.value(record, folder)
        except (OSError, ExporterError):
            raise
        except Exception as exc:
            raise refused(f"media of key {record.key[:80]!r}: {exc}", record.position) from exc

    def value(self, record: MediaRecord, folder: Path) -> object | None:
        """Return what to log for *record*, ``None`` when W&B can show none of it.

        Args:
            record: The media.
            folder: Empty folder for their files, which exists while the value is logged.
        """
        found = [self._shown(record, item, folder) for item in record.items]
        values = [value for value in found if value is not None]
        return None if not values else values[0] if len(record.items) == 1 else values

    def _shown(self, record: MediaRecord, item: MediaItem, folder: Path) -> object | None:
        if item.kind == "table":
            return self._table(record, item, folder)
        if item.kind in {"text", "markdown", "html"}:
            return self._page(item)
        return self._file(item, folder)

    def _file(self, item: MediaItem, folder: Path) -> object | None:
        if item.kind == "image" and not self._has_pillow:
            self.left_out[_NO_PILLOW] += 1
            return None
        makers = {"image": self._wandb.Image, "audio": self._wandb.Audio, "video": self._wandb.Video}
        make: Callable[..., object] = makers[item.kind]
        path = str(put_media(folder, item))
        try:
            return make(path, caption=item.caption or None)
        except OSError as exc:  # pillow's error for bytes that are not a picture
            raise ValueError(f"{item.mime_type} of {len(item.data)} bytes: {exc}") from exc

    def _page(self, item: MediaItem) -> object:
        text = item.data.decode("utf-8", "replace")
        if item.kind != "html":
            title = f"<b>{html.escape(item.caption)}</b>" if item.caption else ""
            text = f'{title}<pre style="white-space: pre-wrap">{html.escape(text)}</pre>'
        return self._wandb.Html(text)

    def _table(self, record: MediaRecord, item: MediaItem, folder: Path) -> object:
        columns, rows = record.table(item)
        data = [[self._cell(cell, folder) for cell in row] for row in rows]
        return self._wandb.Table(columns=_distinct(columns), data=data, allow_mixed_types=True)

    def _cell(self, cell: object, folder: Path) -> object:
        return self._file(cell, folder) if isinstance(cell, MediaItem) else cell


def _distinct(columns: Sequence[str]) -> list[str]:
    """Return *columns* with different names, because W&B keeps one of several columns with the same name."""
    seen: Counter[str] = Counter()
    names: list[str] = []
    for column in columns:
        seen[column] += 1
        names.append(column if seen[column] == 1 else f"{column}_{seen[column]}")
    return names
