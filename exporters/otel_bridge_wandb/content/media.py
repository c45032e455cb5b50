"""Media -> W&B's media types. Imports nothing of wandb: the module is given.

W&B has no type for plain text or Markdown in a run's history, so that they are shown as HTML. It
copies files when they are logged, so that those here are needed no longer than the call.
"""

from __future__ import annotations

import errno
import hashlib
import html
import io
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from otel_bridge.errors import ExporterError, RetryableError
from otel_bridge.media_files import put_media
from otel_bridge.records import MediaItem, MediaRecord
from otel_bridge_wandb.content.payload import shown_key
from otel_bridge_wandb.errors import class_names, outcome, refused
from otel_bridge_wandb.online.refused_files import RefusedFiles

_BATCHED = {
    "image": "image",
    "video": "video",
    "text": "page",
    "markdown": "page",
    "html": "page",
}
"""Kinds of which W&B shows a list under one key; sounds it joins by a package that the bridge does
not need."""
_MAX_PART_BYTES = 150
"""Most bytes of a part of a key: W&B's files are named by their keys, with a step and a digest."""
_MAX_KEY_BYTES = 1_000
# NAME_MAXLEN of wandb's artifacts (sdk/artifacts/_validators.py, 0.31).
_MAX_ARTIFACT_CHARS = 128
_DIGEST_CHARS = 10


class WandbMedia:
    """Makes W&B's objects.

    Args:
        wandb: The module.
        run_id: Id of the run in W&B.
        refused: Counts the files that W&B did not take; ``None`` offline.
    """

    def __init__(
        self, wandb: Any, run_id: str, refused: RefusedFiles | None = None
    ) -> None:
        self._wandb = wandb
        self._refused = refused
        # Of a table with media wandb makes an artifact, whose name has both, and a digest where
        # characters are odd.
        self._table_bytes = max(
            _MAX_ARTIFACT_CHARS - len(f"run-{run_id}-") - 2 * _DIGEST_CHARS,
            _DIGEST_CHARS,
        )
        self._written = False

    @property
    def left_out(self) -> Counter[str]:
        """Return what W&B did not take: reason to count.

        The log is read here and not while rows are written: wandb uploads files later than their
        lines.
        """
        # Without media there is nothing to read wandb's log for.
        if self._refused is None or not self._written:
            return Counter()
        self._refused.look()
        return self._refused.counts

    def values_of(self, record: MediaRecord, folder: Path) -> dict[str, object]:
        """Return W&B's objects for *record* by key.

        Items of mixed kinds get a key each, because W&B shows lists of one kind alone; without
        items the result is empty.

        Args:
            record: The media.
            folder: Empty folder for their files, which exists while the values are logged.

        Raises:
            PermanentError: The bytes are not what they claim to be, or wandb makes no object of
                them, as of a picture without Pillow.
            OSError: A file cannot be written, as on a full disk.
        """
        try:
            values = [self._shown(record, item, folder) for item in record.items]
        # A full disk passes by itself: the record is not at fault, and must not become a dead
        # letter.
        except (OSError, ExporterError):
            raise
        except Exception as exc:
            raise refused(
                f"media of key {record.key[:80]!r}: {exc}", record.position
            ) from exc
        max_bytes = _MAX_KEY_BYTES
        if record.cells:
            max_bytes = self._table_bytes
        key = shown_key(safe_key(record.key, max_bytes), record.axis)
        if len(record.items) == 1:
            return {key: values[0]}
        kinds = {_BATCHED.get(item.kind) for item in record.items}
        if len(kinds) == 1 and None not in kinds:
            return {key: values}
        values_by_key: dict[str, object] = {}
        for number, value in enumerate(values):
            values_by_key[f"{key}/{number}"] = value
        return values_by_key

    def log(
        self,
        log: Callable[[dict[str, object]], None],
        line: dict[str, object],
        record: MediaRecord,
    ) -> None:
        """Call *log* with *line*, and count the files that W&B refuses from then on.

        Raises:
            PermanentError: wandb refuses what it is given, so that it would refuse it again.
            Exception: Any other exception of *log*, which the caller maps.
        """
        self._written = True
        try:
            log(line)
        except Exception as exc:
            # A refusal that outcome() would retry for ever; one for which a person must act stays
            # blocked.
            if _is_refusal(exc) and isinstance(outcome(exc, ""), RetryableError):
                raise refused(
                    f"media of key {record.key[:80]!r}: {exc}", record.position
                ) from exc
            raise

    def _shown(self, record: MediaRecord, item: MediaItem, folder: Path) -> object:
        """Return W&B's object of one item; raises as `_file`, or what wandb raises for a table."""
        if item.kind == "table":
            return self._table(record, item, folder)
        if item.kind in {"text", "markdown", "html"}:
            return self._page(item)
        return self._file(item, folder)

    def _file(self, item: MediaItem, folder: Path) -> object:
        """Return W&B's object of an image, a sound or a film.

        Raises:
            ValueError: Pillow cannot read the picture. It raises OSError for that, which elsewhere
                means a full disk.
            OSError: The file cannot be written.
        """
        makers = {
            "image": self._wandb.Image,
            "audio": self._wandb.Audio,
            "video": self._wandb.Video,
        }
        make: Callable[..., object] = makers[item.kind]
        path = str(put_media(folder, item))
        try:
            return make(path, caption=item.caption or None)
        except OSError as exc:  # pillow's error for bytes that are not a picture
            raise ValueError(
                f"{item.mime_type} of {len(item.data)} bytes: {exc}"
            ) from exc

    def _page(self, item: MediaItem) -> object:
        """Return a page of *item*.

        A text and its caption are escaped, bytes that are not UTF-8 are replaced.

        A page of HTML is not escaped, and has no place for a caption.
        """
        text = item.data.decode("utf-8", "replace")
        if item.kind != "html":
            title = ""
            if item.caption:
                title = f"<b>{html.escape(item.caption)}</b>"
            text = (
                f'{title}<pre style="white-space: pre-wrap">{html.escape(text)}</pre>'
            )
        # As a file: of a text that is the path of a page here, wandb would send that page.
        return self._wandb.Html(io.StringIO(text))

    def _table(self, record: MediaRecord, item: MediaItem, folder: Path) -> object:
        """Return a ``wandb.Table`` that allows mixed types, which wandb refuses by default.

        Raises as `_file` for a cell. The bytes are a table: the bridge has checked them before.
        """
        columns, rows = record.table(item)
        data: list[list[object]] = []
        for row in rows:
            data.append([self._cell(cell, folder) for cell in row])
        return self._wandb.Table(columns=columns, data=data, allow_mixed_types=True)

    def _cell(self, cell: object, folder: Path) -> object:
        if isinstance(cell, MediaItem):
            return self._file(cell, folder)
        return cell


def safe_key(key: str, most_bytes: int = _MAX_KEY_BYTES) -> str:
    """Return *key* as wandb can name files by it.

    A key that must change ends with a digest of what it was. The digest keeps two keys apart that
    become alike.
    """
    safe = _cut("/".join(map(_safe_part, key.split("/"))), most_bytes)
    if safe == key:
        return safe
    digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{safe}~{digest[:8]}"


def _safe_part(part: str) -> str:
    """Return a part of a key as the name of a file: without ``..``, control characters and overlength."""
    if part in {".", ".."}:
        return "_" * len(part)
    return _cut(
        "".join(char if char.isprintable() else "_" for char in part), _MAX_PART_BYTES
    )


def _cut(text: str, size: int) -> str:
    # In bytes, because file systems count them; half a character at the cut is dropped.
    return text.encode()[:size].decode("utf-8", "ignore")


def _is_refusal(exc: Exception) -> bool:
    """Return whether wandb raised *exc* because of the value that it was given.

    A name that is too long for the file system is the value's fault too. wandb's UsageError is
    matched by its name, because this module imports nothing of wandb.
    """
    too_long = isinstance(exc, OSError) and exc.errno == errno.ENAMETOOLONG
    return (
        too_long
        or isinstance(exc, (ValueError, TypeError, LookupError, AssertionError))
        or "UsageError" in class_names(exc)
    )
