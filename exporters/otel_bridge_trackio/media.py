"""Media -> Trackio's payloads, and their files in Trackio's folder.

Trackio's own objects name their files at random and write them when they are logged; here a file is
named by what it holds, so that a redelivery changes nothing. Source: ``TrackioMedia._to_dict`` in
trackio/media/media.py, ``Table._to_dict`` in trackio/table.py, ``Markdown._to_dict`` in
trackio/markdown.py.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import cast

from otel_bridge.capabilities import accepts
from otel_bridge.media_files import put_media
from otel_bridge.records import Json, MediaItem, MediaRecord
from otel_bridge_trackio.payload import RESERVED, Payload

Put = Callable[[MediaItem, int], str]
"""Stores the file of an item at a step; returns its path below Trackio's folder of media."""
_FILES = {
    "image": "trackio.image", "audio": "trackio.audio", "video": "trackio.video", "html": "trackio.html",
}  # fmt: skip
_FIND = "get_project_media_path"
_HOMES = ("trackio.media.utils", "trackio.media", "trackio.utils")
"""Modules that hold ``get_project_media_path``, the newest Trackio first."""
# Longest name of a file or folder on common file systems (ext4, APFS, NTFS).
_MAX_NAME_BYTES = 255
# More folders could make the path longer than a file system allows.
_MAX_DEPTH = 8


def local_put(project: str, run: str) -> Put | None:
    """Return what stores files in the local Trackio's folder, ``None`` when this Trackio has no such folder.

    The function that it returns raises `OSError` when a file cannot be written.
    """
    finder = next(filter(None, map(_folder_finder, _HOMES)), None)
    root: object = getattr(importlib.import_module("trackio.utils"), "MEDIA_DIR", None)
    # A version whose folders are not known: media are counted as left out, rows go on.
    if finder is None or root is None:
        return None
    folder_of = finder
    media_dir = Path(str(root))
    run_folder = folder_name(run)

    def put_file(item: MediaItem, step: int) -> str:
        folder = Path(folder_of(project=project, run=run_folder, step=step))
        # The umask decides, as for Trackio's own files: others may run the dashboard on this
        # folder.
        return str(put_media(folder, item, mode=0o666).relative_to(media_dir))

    return put_file


def folder_name(run: str) -> str:
    """Return the path below the project's folder for files of *run*.

    Trackio joins any name, ``..`` included, to its own folder. A name that could leave it, or that
    a file system refuses, is replaced by a hash.
    """
    parts = run.split("/")
    if len(parts) <= _MAX_DEPTH and all(map(_is_name, parts)):
        return run
    return (
        f"run-{hashlib.sha256(run.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"
    )


def _is_name(part: str) -> bool:
    """Return whether *part* can name a folder, and does not lead out of its own."""
    return (
        part not in {"", ".", ".."}
        and "\\" not in part
        and part.isprintable()
        and len(part.encode()) <= _MAX_NAME_BYTES
    )


def _folder_finder(home: str) -> Callable[..., Path] | None:
    """Return Trackio's function for the folder of a run's files in the module *home*, ``None`` without it."""
    try:
        module = importlib.import_module(home)
    except ImportError:
        # The other Trackios keep it in another module of the list.
        return None
    if not accepts(module, _FIND, "project", "run", "step"):
        return None
    return cast("Callable[..., Path]", getattr(module, _FIND))


def media_metrics(record: MediaRecord, put_file: Put, step: int) -> Payload:
    """Return the metrics of *record*: several pictures as one table, several of anything else under keys of their own.

    Pictures of one step belong side by side, and a table is the only value of Trackio that shows
    several. It has at least one item: the writer passes over a record without.

    Raises:
        OSError: A file cannot be written.
    """
    # As in rows: bulk_log, unlike Trackio's log(), renames nothing, and the dashboard overwrites
    # these.
    key = (
        f"__{record.key}"
        if record.key in RESERVED or record.key.startswith("__")
        else record.key
    )
    items = [*record.items]
    if len(items) == 1:
        return {key: _shown(record, items[0], put_file, step)}
    rows: list[Json] = []
    if all(item.kind == "image" for item in items):
        for item in items:
            image = _file(item, put_file, step)
            rows.append({"image": image, "caption": item.caption})
        return {key: {"_type": "trackio.table", "_value": rows}}
    metrics: Payload = {}
    for index, item in enumerate(items):
        metrics[f"{key}/{index}"] = _shown(record, item, put_file, step)
    return metrics


def _shown(record: MediaRecord, item: MediaItem, put_file: Put, step: int) -> Payload:
    """Return the payload of one item; a text is Markdown, for which Trackio has a type.

    Raises:
        OSError: A file cannot be written.
    """
    if item.kind == "table":
        return {"_type": "trackio.table", "_value": _rows(record, item, put_file, step)}
    if item.kind in _FILES:
        return _file(item, put_file, step)
    text = item.data.decode("utf-8", "replace")
    markdown = text
    if item.kind != "markdown":
        markdown = _fenced(text)
    return {
        "_type": "trackio.markdown",
        "_value": f"**{item.caption}**\n\n{markdown}" if item.caption else markdown,
    }


def _rows(record: MediaRecord, item: MediaItem, put_file: Put, step: int) -> list[Json]:
    """Return the rows of a table as Trackio stores them, with the files of media in its cells.

    The bridge has checked before that it is a table.

    Raises:
        OSError: A file cannot be written.
    """
    columns, rows = record.table(item)
    table: list[Json] = []
    for row in rows:
        cells: list[Json] = []
        for cell in row:
            if isinstance(cell, MediaItem):
                cells.append(_file(cell, put_file, step))
            else:
                cells.append(cell)
        table.append(dict(zip(columns, cells, strict=True)))
    return table


def _file(item: MediaItem, put_file: Put, step: int) -> Payload:
    """Store the file of *item* and return its payload; raises as *put_file*."""
    # A browser plays a GIF as an image only.
    kind = item.kind
    if item.mime_type.startswith("image/"):
        kind = "image"
    return {
        "_type": _FILES[kind],
        "file_path": put_file(item, step),
        "caption": item.caption or None,
    }


def _fenced(text: str) -> str:
    """Return plain *text* as a block that Markdown leaves as it is."""
    fence = "```"
    # CommonMark: a fence ends only at one that is at least as long.
    while fence in text:
        fence += "`"
    return f"{fence}\n{text}\n{fence}"
