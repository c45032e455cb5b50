"""Media -> artifacts of an MLflow run, as ``log_image`` and ``log_table`` of MLflow's client name them.

Those calls give files random names, need pillow and pandas, and read a table back to add to it.
Here a name follows from the record, so that a redelivered record replaces its own files. Source:
``log_image`` and ``log_table`` in mlflow/tracking/client.py; the UI finds images by these names and
the tag, tables by the other tag.
"""

from __future__ import annotations

import errno
import hashlib
import inspect
import io
import json
import re
import tempfile
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from otel_bridge.errors import (
    BlockedError,
    ExporterError,
    PermanentError,
    RetryableError,
)
from otel_bridge.media_files import extension_of
from otel_bridge.records import Json, MediaItem, MediaRecord
from otel_bridge_mlflow.connection import Connection
from otel_bridge_mlflow.errors import Refused, as_bridge_errors
from otel_bridge_mlflow.runs import OpenMlflowRun, require_active

_IMAGES_TAG = "mlflow.loggedImages"
_TABLES_TAG = "mlflow.loggedArtifacts"
_ILLEGAL_KEY = re.compile(r"[^a-zA-Z0-9_\-./ ]")
_ILLEGAL_PATH = re.compile(r"[^a-zA-Z0-9_\-.]")
_MAX_KEY = 120
"""Most characters of a key in the name of a file or folder, where step, time and hash follow."""
_SMALL_SIDE = 256
"""Longest side of the picture that the grid of images shows."""
_MAX_TAG = 4_500
"""Most characters of the tag that lists tables; the oldest entries leave it beyond that."""
_NO_CAPTION = "captions: MLflow shows none"
_UNWRITABLE = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR})
"""Errors of a folder that no retry mends."""


class MediaWriter:
    """Writes media to one MLflow run.

    Args:
        connection: The store.
        run: MLflow's run.
        left_out: Counts what MLflow cannot show.
    """

    def __init__(
        self, connection: Connection, run: OpenMlflowRun, left_out: Counter[str]
    ) -> None:
        self._connection = connection
        self._run = run
        self._run_id = run.id
        self._left_out = left_out
        self._mark = "%"
        if _names_with_plus(connection.client):
            self._mark = "+"
        self._tagged = False
        self._tables: list[Json] | None = None

    def write(self, media: Sequence[MediaRecord]) -> None:
        """Store *media* as artifacts.

        Raises:
            PermanentError: The artifact store does not accept them. It is not the store of metrics,
                which go on.
            RetryableError: The artifact store cannot be reached now.
            BlockedError: The store of metrics needs a person too.
        """
        for record in media:
            self._write_or_raise(record)

    def _write_or_raise(self, record: MediaRecord) -> None:
        """Store one record; each error names its position.

        Raises:
            PermanentError: The artifact store refuses it, or needs a person: metrics have another
                store, and go on.
            RetryableError: The artifact store, or the temporary folder, cannot be used now.
            BlockedError: The store of metrics needs a person too, for a login or a deleted run.
        """
        try:
            self._write_unless_blocked(record)
        except Refused as exc:
            raise PermanentError(
                f"media {record.key}: {exc}", position=record.position
            ) from exc
        except OSError as exc:
            raise RetryableError(
                f"media {record.key}: {exc}", position=record.position
            ) from exc
        except ExporterError as exc:
            exc.position = record.position
            raise

    def _write_unless_blocked(self, record: MediaRecord) -> None:
        """Store one record; raises as `_write_or_raise`, with `Refused` for `PermanentError`."""
        try:
            self._write(record)
        except BlockedError as exc:
            # Blocked only where rows are blocked too: no medium is lost by a login that has expired.
            require_active(self._connection, self._run)
            # A dead letter else: artifacts have a store of their own, and rows go on.
            raise Refused(str(exc)) from exc

    def _write(self, record: MediaRecord) -> None:
        """Write the files of *record* into a temporary folder, upload the folder in one call, and tag the run.

        The tag comes last: it makes MLflow's page look for files that must be there. Raises
        `Refused`, `OSError` and as `as_bridge_errors`.
        """
        with tempfile.TemporaryDirectory(prefix="otel-bridge-") as name:
            folder = Path(name)
            for index, item in enumerate(record.items):
                if item.kind == "image":
                    self._image(folder, record, item, index)
                elif item.kind == "table":
                    self._table(folder, record, item, index)
                else:
                    path = f"media/{_path(record.key)}/{_stem(record)}-{index}.{extension_of(item)}"
                    _put(folder, path, item.data)
            if not record.items:
                return
            with as_bridge_errors(f"storing artifacts at {self._connection.shown}"):
                self._upload(folder)
        self._tag(record)
        # Last, because a record that is tried again must not count twice.
        lacking = sum(map(_lacks_caption, (*record.items, *record.cells)))
        if lacking:
            self._left_out[_NO_CAPTION] += lacking

    def _upload(self, folder: Path) -> None:
        """Upload *folder* as artifacts of the run.

        Raises:
            Refused: The artifact store is a folder in which this machine cannot write, whatever time
                passes: a server without ``--serve-artifacts`` names one of its own machine.
            Exception: MLflow's own.
        """
        try:
            self._connection.client.log_artifacts(self._run_id, str(folder))
        except OSError as exc:
            if exc.errno not in _UNWRITABLE:
                raise
            raise Refused(f"the artifact store: {exc}") from exc

    def _image(
        self, folder: Path, record: MediaRecord, item: MediaItem, index: int
    ) -> None:
        """Put an image and a small one into *folder*, under names from which the page reads key, step and time.

        MLflow's own names end in a random UUID; here it follows from the record, so that a
        redelivered one replaces itself. Raises as `_put`.
        """
        key = _ILLEGAL_KEY.sub("_", record.key)[:_MAX_KEY]
        key = (key if key == record.key else f"{key}-{_hash(record.key)[:8]}").replace(
            "/", "~"
        )
        facts = (
            "step",
            str(record.step or 0),
            "timestamp",
            str(record.time_unix_ns // 1_000_000),
            _uuid(record, index),
        )
        stem = self._mark.join((key, *facts))
        whole, small = pictures_of(item)
        _put(folder, f"images/{stem}.png", whole)
        _put(folder, f"images/{stem}{self._mark}compressed.webp", small)

    def _table(
        self, folder: Path, record: MediaRecord, item: MediaItem, index: int
    ) -> None:
        """Put a table, and the media in its cells, into *folder*.

        Raises as `_put`. The bytes are a table: the bridge has checked them before.
        """
        columns, rows = record.table(item)
        data: list[Json] = []
        for row in rows:
            data.append([self._cell(folder, record, cell) for cell in row])
        table = {"columns": columns, "data": data}
        _put(folder, _table_path(record, index), json.dumps(table).encode())

    def _cell(self, folder: Path, record: MediaRecord, cell: object) -> Json:
        """Return the cell of a table: an image as MLflow names one, other media as a path, text as it is.

        The files of media are put into *folder*. Raises as `_put`.
        """
        if not isinstance(cell, MediaItem):
            return cast("Json", cell)
        stem = f"table_images/{_path(record.key)}/{cell.digest[:32]}"
        if cell.kind != "image":
            _put(folder, f"{stem}.{extension_of(cell)}", cell.data)
            return f"{stem}.{extension_of(cell)}"
        whole, small = pictures_of(cell)
        _put(folder, f"{stem}.png", whole)
        _put(folder, f"{stem}.webp", small)
        return {
            "type": "image",
            "filepath": f"{stem}.png",
            "compressed_filepath": f"{stem}.webp",
        }

    def _tag(self, record: MediaRecord) -> None:
        """Set the tags without which MLflow's page does not look for images and tables.

        Raises as `as_bridge_errors`; the record is written again then.
        """
        kinds = {item.kind for item in record.items}
        if "image" in kinds and not self._tagged:
            self._set(_IMAGES_TAG, "True")
            self._tagged = True
        if "table" in kinds:
            self._list_tables(record)

    def _list_tables(self, record: MediaRecord) -> None:
        """Add the tables of *record* to the tag that lists them; raises as `_tag`."""
        # A copy: when the tag cannot be set, the repeated call must find the tables missing again.
        listed = [*self._listed()]
        for index, item in enumerate(record.items):
            entry: Json = {"path": _table_path(record, index), "type": "table"}
            if item.kind == "table" and entry not in listed:
                listed.append(entry)
        # The oldest leave the list first; their artifacts stay.
        while len(json.dumps(listed)) > _MAX_TAG:
            del listed[0]
        if listed != self._tables:
            self._set(_TABLES_TAG, json.dumps(listed))
            self._tables = listed

    def _listed(self) -> list[Json]:
        """Return the tables that the run names, of other programs too, because the tag is replaced as a whole.

        Read once. Raises as `as_bridge_errors`.
        """
        if self._tables is None:
            with as_bridge_errors("reading the run's tables"):
                tag: str = self._connection.client.get_run(self._run_id).data.tags.get(
                    _TABLES_TAG, "[]"
                )
            try:
                tables: object = json.loads(tag)
            except ValueError:
                # Another program wrote the tag: the list begins anew, and the artifacts stay.
                tables = []
            self._tables = (
                cast("list[Json]", tables) if isinstance(tables, list) else []
            )
        return self._tables

    def _set(self, key: str, value: str) -> None:
        with as_bridge_errors(f"setting {key}"):
            self._connection.client.set_tag(self._run_id, key, value)


def pictures_of(item: MediaItem) -> tuple[bytes, bytes]:
    """Return a PNG and a small WebP of an image.

    Of one that pillow cannot read, the image as it is, twice: a browser may be able to show it.
    """
    from PIL import Image as Pillow  # noqa: PLC0415  # slow to import, and most runs have no images

    try:
        with Pillow.open(io.BytesIO(item.data)) as image:
            image.load()
            picture: Any = image
            if image.mode not in {"L", "LA", "RGB", "RGBA"}:
                picture = image.convert("RGBA")
            whole = (
                item.data if item.mime_type == "image/png" else _saved(picture, "PNG")
            )
            picture.thumbnail((_SMALL_SIDE, _SMALL_SIDE))
            return whole, _saved(picture.convert("RGBA"), "WEBP")
    except Exception:  # noqa: BLE001  # a picture that pillow cannot read: browsers look at the bytes, not at the name
        return item.data, item.data


def _saved(picture: Any, form: str) -> bytes:
    file = io.BytesIO()
    picture.save(file, form)
    return file.getvalue()


def _put(folder: Path, path: str, data: bytes) -> None:
    """Write a file below *folder*.

    Raises `OSError`, as on a full disk, and the record is tried again.
    """
    file = folder / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)


def _table_path(record: MediaRecord, index: int) -> str:
    number = f"-{index}" if index else ""
    return f"tables/{_path(record.key)}/{_stem(record)}{number}.json"


def _stem(record: MediaRecord) -> str:
    """Return the name of a record's files: the same at each redelivery, and another for each record."""
    return f"step-{record.step or 0}-{_hash(record.id)[:12]}"


def _lacks_caption(item: MediaItem) -> bool:
    """Return whether the caption of *item* is nowhere to be seen: a page may have it in itself."""
    is_inside = item.kind == "html" and item.caption.encode() in item.data
    return bool(item.caption) and not is_inside


def _path(key: str) -> str:
    """Return *key* as a folder: keys that a file system cannot tell apart differ by a hash."""
    parts = [_ILLEGAL_PATH.sub("_", part) for part in key.split("/")]
    legal = "~".join(parts)[:_MAX_KEY]
    if legal.replace("~", "/") == key and not legal.startswith("."):
        return legal
    return f"{legal.lstrip('.')}-{_hash(key)[:8]}"


def _uuid(record: MediaRecord, index: int) -> str:
    return str(uuid.UUID(_hash(f"{record.id}:{index}")[:32]))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _names_with_plus(client: Any) -> bool:
    """Return whether this MLflow joins the parts of an image's name by ``+``; older ones used ``%``.

    Its source is read, because nothing else shows it. ``False`` when that cannot be read.
    """
    try:
        log_image: Callable[..., None] = client.log_image
        return "+step+" in inspect.getsource(log_image)
    except (OSError, TypeError, AttributeError):
        return False
