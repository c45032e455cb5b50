"""Records -> plain JSON values, for people and programs that read them without a tracker. Pure.

Non-finite numbers become the strings ``NaN``, ``Infinity`` and ``-Infinity``, because strict JSON
has no such numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias, cast

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
    Scalar,
    Span,
    Status,
)

Payload: TypeAlias = dict[str, Json]


def row_payload(row: Row) -> Payload:
    """Return the payload of *row*."""
    names = ("position", "id", "role", "step", "axis", "time_unix_ns", "attempt")
    values: dict[str, Json] = {}
    for key, value in row.values.items():
        if isinstance(value, Distribution):
            values[key] = plain(value)
        else:
            # Raises for what is not a number, which makes the row a dead letter.
            values[key] = number_or_name(value)
    return {"kind": "row", **_fields(row, names), "values": values}


_ROLLOUT_FIELDS = (
    "position", "id", "key", "role", "step", "start_unix_ns", "end_unix_ns", "split", "group", "sample",
    "trajectory_id", "prompt_index", "batch_index", "reward", "rewards", "advantage", "finish_reason", "policy_version",
    "dataset", "dataset_index", "tools", "metadata", "error", "incomplete", "clipped_bytes", "messages",
)  # fmt: skip


def rollout_payload(rollout: RolloutRecord) -> Payload:
    """Return the payload of *rollout*, with its conversation and its spans."""
    spans: list[Json] = [_span(span) for span in rollout.spans]
    return {"kind": "rollout", **_fields(rollout, _ROLLOUT_FIELDS), "spans": spans}


def trace_payload(trace: PlainTrace) -> Payload:
    """Return the payload of *trace*, which is not a rollout, with its spans."""
    names = (
        "position",
        "id",
        "role",
        "name",
        "start_unix_ns",
        "end_unix_ns",
        "rollout_key",
        "step",
    )
    spans: list[Json] = [_span(span) for span in trace.spans]
    return {"kind": "trace", **_fields(trace, names), "spans": spans}


def media_payload(record: MediaRecord) -> Payload:
    """Return the payload of *record*, which names the files of its items."""
    names = ("position", "id", "key", "role", "step", "axis", "time_unix_ns")
    items: list[Json] = [_item(item) for item in record.items]
    cells: list[Json] = [_item(item) for item in record.cells]
    return {"kind": "media", **_fields(record, names), "items": items, "cells": cells}


def _item(item: MediaItem) -> Payload:
    return {
        "type": item.kind,
        "mime_type": item.mime_type,
        "size": len(item.data),
        "caption": item.caption,
        "file": f"media/{file_name(item)}",
    }


def evaluation_payload(evaluation: Evaluation) -> Payload:
    """Return the payload of the evaluation *evaluation*."""
    names = (
        "position", "id", "rollout_id", "name", "value", "label", "explanation", "role", "step", "time_unix_ns",
    )  # fmt: skip
    return {"kind": "evaluation", **_fields(evaluation, names)}


def config_payload(role: str | None, config: Mapping[str, Json]) -> Payload:
    """Return the payload of the whole config of *role*."""
    return {"kind": "config", "role": role, "config": plain(config)}


def alert_payload(alert: Alert) -> Payload:
    """Return the payload of an alert."""
    names = ("position", "id", "role", "title", "text", "level", "step", "time_unix_ns")
    return {"kind": "alert", **_fields(alert, names)}


def summary_payload(role: str | None, values: Mapping[str, Scalar]) -> Payload:
    """Return the payload of last values of keys."""
    return {"kind": "summary", "role": role, "summary": plain(values)}


def end_payload(status: Status) -> Payload:
    """Return the payload of the end of the run."""
    return {"kind": "end", "status": status.value}


def _fields(record: object, names: Iterable[str]) -> Payload:
    """Return the fields *names* of a record."""
    return {name: plain(getattr(record, name)) for name in names}


def _span(span: Span) -> Payload:
    names = (
        "id", "parent_id", "name", "kind", "start_unix_ns", "end_unix_ns", "model", "input_tokens", "output_tokens",
        "error", "input", "output", "attributes",
    )  # fmt: skip
    return _fields(span, names)


def plain(value: object) -> Json:
    """Return *value* as JSON, with its non-finite numbers as strings, at any depth."""
    if isinstance(value, float):
        return number_or_name(value)
    if isinstance(value, Mapping):
        mapping = cast("Mapping[str, object]", value)
        return {key: plain(item) for key, item in mapping.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in cast("list[object]", value)]
    if isinstance(value, Distribution):
        return _fields(value, ("count", "sum", "min", "max", "edges", "counts"))
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
