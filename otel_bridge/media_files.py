"""Media -> files, named by what they hold: the same bytes are one file, however often they are written."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from otel_bridge.journal.files import create_regular
from otel_bridge.records import MediaItem

_EXTENSIONS = {
    "application/json": "json", "audio/flac": "flac", "audio/mpeg": "mp3", "audio/ogg": "ogg", "audio/wav": "wav",
    "image/gif": "gif", "image/jpeg": "jpg", "image/png": "png", "image/svg+xml": "svg", "image/webp": "webp",
    "text/html": "html", "text/markdown": "md", "text/plain": "txt", "video/mp4": "mp4", "video/ogg": "ogg",
    "video/webm": "webm",
}  # fmt: skip
_OTHER = "bin"


def extension_of(item: MediaItem) -> str:
    """Return the end of a file's name for *item*, without a dot."""
    return _EXTENSIONS.get(item.mime_type, _OTHER)


def file_name(item: MediaItem) -> str:
    """Return the file name of *item*: the digest of its bytes, and what they are."""
    return f"{item.digest}.{extension_of(item)}"


def put_media(folder: Path, item: MediaItem, *, mode: int = 0o600) -> Path:
    """Return the file of *item* in *folder*, which exists; a new file is synced, then renamed.

    Args:
        folder: Where it lies.
        item: The medium.
        mode: Mode of a new file, before the umask; the folders of some trackers are shared by several users.

    Raises:
        OSError: It cannot be written; no part of it stays. The writer that called passes it on, and
            its batch is tried again.
    """
    path = folder / file_name(item)
    # The name has the digest of the content: the same size is the same content, another a torn
    # file.
    if path.is_file() and path.stat().st_size == len(item.data):
        return path
    put_synced(path, item.data, mode=mode)
    return path


def put_synced(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Write *data* to a file that has its name only once it is whole and synced; its folder exists.

    A file of that name is replaced. The folder is not synced: a power cut may take a new name away,
    but leaves no torn file.

    Raises:
        OSError: It cannot be written; no part of it stays.
    """
    # Several processes may write one file at a time: each has its own name until then. What a
    # killed process of the same id left there is replaced.
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(create_regular(unfinished, mode=mode), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise
