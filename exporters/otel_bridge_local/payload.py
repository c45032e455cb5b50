"""Records -> plain JSON values, for people and programs that read them without a tracker. Pure.

Non-finite numbers become the strings ``NaN``, ``Infinity`` and ``-Infinity``, because strict JSON
has no such numbers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeAlias, cast

import orjson

from otel_bridge.media_files import file_name
from otel_bridge.otlp.json_text import number_or_name, utf8_leaf, with_leaves
from otel_bridge.records import (
    Alert,
    Distribution,
    Evaluation,
    Json,
    MediaItem,
    MediaRecord,
    PlainTrace,
    RolloutRecord,
    Row,
    Span,
)

Payload: TypeAlias = dict[str, Json]
Written: TypeAlias = Alert | Row | RolloutRecord | PlainTrace | Evaluation | MediaRecord
"""Records that are lines of their own, with their positions."""
_KINDS: dict[type[Written], str] = {
    Alert: "alert",
    Row: "row",
    RolloutRecord: "rollout",
    PlainTrace: "trace",
    Evaluation: "evaluation",
    MediaRecord: "media",
}
_LEFT_OUT = frozenset({"steps", "remarks", "otlp"})
"""Fields without a reader here: last steps of other axes, what `metadata` holds too, encoded bytes."""


def record_payload(record: Written) -> Payload:
    """Return the payload of *record*: its kind and its fields; of media, the names of their files.

    Raises:
        TypeError: A value of a row is not a number, which makes the row a dead letter.
    """
    payload: Payload = {"kind": _KINDS[type(record)], **_fields(record)}
    if isinstance(record, Row):
        values: Payload = {}
        for key, value in record.values.items():
            if isinstance(value, Distribution):
                values[key] = plain(value)
            else:
                values[key] = number_or_name(value)
        payload["values"] = values
    return payload


def _fields(record: Any) -> Payload:
    """Return the fields of a dataclass."""
    payload: Payload = {}
    for field in dataclasses.fields(record):
        if field.name not in _LEFT_OUT:
            payload[field.name] = plain(getattr(record, field.name))
    return payload


def plain(value: object) -> Json:
    """Return *value* as JSON, with its non-finite numbers as strings, at any depth.

    A value of another type is returned as it is: `json_line` then raises for it.
    """
    if isinstance(value, float):
        return number_or_name(value)
    if isinstance(value, Mapping):
        mapping = cast("Mapping[str, object]", value)
        return {key: plain(item) for key, item in mapping.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in cast("list[object]", value)]
    if isinstance(value, MediaItem):
        return {
            "type": value.kind,
            "mime_type": value.mime_type,
            "size": len(value.data),
            "caption": value.caption,
            "file": f"media/{file_name(value)}",
        }
    if isinstance(value, (Distribution, Span)):
        return _fields(value)
    return cast("Json", value)


def json_line(payload: Payload) -> bytes:
    """Return *payload* as one line of JSON.

    A lone surrogate, which UTF-8 cannot hold, becomes ``?``.

    Raises:
        TypeError: A value is not JSON.
    """
    try:
        return orjson.dumps(payload) + b"\n"
    except TypeError:
        # orjson refuses a text with a lone surrogate; a value that is not JSON raises again below.
        return orjson.dumps(with_leaves(payload, utf8_leaf)) + b"\n"
