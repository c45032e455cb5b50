"""Media as records and as events, for tests of what takes them."""

from __future__ import annotations

import hashlib
import io
import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import orjson
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from PIL import Image as Pillow

from otel_bridge.content.policy import ContentPolicy
from otel_bridge.emit.encode.protobuf import Attribute
from otel_bridge.emit.media.log import MediaLog
from otel_bridge.records import MediaItem, MediaRecord, axis_of
from otel_bridge.testing import samples
from support.otlp.otlp_samples import T0, event


def png(shade: int = 0) -> bytes:
    """A grey picture of two by two pixels."""
    rows = zlib.compress(
        b"".join(b"\0" + bytes([shade, 255 - shade]) for _ in range(2))
    )
    parts = (
        (b"IHDR", struct.pack(">IIBBBBB", 2, 2, 8, 0, 0, 0, 0)),
        (b"IDAT", rows),
        (b"IEND", b""),
    )
    chunks = (
        struct.pack(">I", len(data))
        + name
        + data
        + struct.pack(">I", zlib.crc32(name + data))
        for name, data in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def item(kind: str, mime: str, data: bytes, caption: str = "") -> MediaItem:
    return MediaItem(kind, mime, data, hashlib.sha256(data).hexdigest(), caption)


def image(shade: int = 0, caption: str = "") -> MediaItem:
    return item("image", "image/png", png(shade), caption)


def text(value: str, kind: str = "text", caption: str = "") -> MediaItem:
    mime = {"text": "text/plain", "markdown": "text/markdown", "html": "text/html"}[
        kind
    ]
    return item(kind, mime, value.encode(), caption)


def table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], caption: str = ""
) -> MediaItem:
    return item(
        "table",
        "application/json",
        json.dumps({"columns": columns, "rows": rows}).encode(),
        caption,
    )


def media(
    key: str,
    *items: MediaItem,
    cells: Sequence[MediaItem] = (),
    step: int | None = 3,
    role: str | None = "trainer",
    position: int = 1,
) -> MediaRecord:
    axis = None if step is None else axis_of(role)
    return MediaRecord(
        id=f"media:{role}:{position}",
        role=role,
        key=f"{role}/{key}" if role else key,
        step=step,
        axis=axis,
        time_unix_ns=samples.START_UNIX_NS + position * samples.SECOND_NS,
        items=items,
        cells=cells,
        steps={} if axis is None or step is None else {axis: step},
        position=position,
    )


def listed(
    *items: MediaItem, cells: Sequence[MediaItem] = ()
) -> list[dict[str, object]]:
    """What an event says of its items."""
    return [
        {
            "type": each.kind,
            "mime_type": each.mime_type,
            "size": len(each.data),
            "sha256": each.digest,
            "caption": each.caption,
            **({"cell": True} if number >= len(items) else {}),
        }
        for number, each in enumerate([*items, *cells])
    ]


def media_event(
    seq: int | None,
    key: str,
    *items: MediaItem,
    cells: Sequence[MediaItem] = (),
    **more: object,
) -> LogRecord:
    data = b"".join(each.data for each in (*items, *cells))
    described = {
        "rl_media_key": key,
        "rl_media_items": listed(*items, cells=cells),
        "rl_step": 3,
        **more,
    }
    return event("rl.media", seq, data, T0, **described)


def parts_of(first_seq: int, key: str, *items: MediaItem, size: int) -> list[LogRecord]:
    """The same in parts of *size* bytes."""
    data = b"".join(each.data for each in items)
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    head: Mapping[str, object] = {
        "rl_media_key": key,
        "rl_media_items": listed(*items),
        "rl_step": 3,
    }
    return [
        event(
            "rl.media", first_seq + part, piece, T0 + part,
            rl_media_id="7", rl_media_part=part, rl_media_parts=len(pieces), **({} if part else head),
        )
        for part, piece in enumerate(pieces)
    ]  # fmt: skip


class Logged:
    """What one call gives: events and drops."""

    def __init__(
        self,
        *media: object,
        log: MediaLog | None = None,
        step: int = 1,
        **policy: object,
    ) -> None:
        self.drops: dict[str, int] = {}
        log = log or MediaLog(ContentPolicy(**policy))  # type: ignore[arg-type]
        self.events: list[tuple[Mapping[str, Attribute], bytes]] = []
        log.append([("k", media)], step, None, self._drop, self._put)

    def _put(self, pairs: Mapping[str, Attribute], body: bytes) -> bool:
        self.events.append((pairs, body))
        return True

    def _drop(self, reason: str, number: int, key: str) -> None:
        assert key == "k"
        self.drops[reason] = self.drops.get(reason, 0) + number

    @property
    def data(self) -> bytes:
        return b"".join(body for _, body in self.events)

    @property
    def items(self) -> list[dict[str, Any]]:
        return self.events[0][0]["rl.media.items"]  # type: ignore[return-value]

    @property
    def table(self) -> dict[str, Any]:
        return orjson.loads(self.data[: self.items[0]["size"]])


def pixels_in(data: bytes) -> Any:
    return np.asarray(Pillow.open(io.BytesIO(data)))
