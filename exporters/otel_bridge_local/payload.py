"""Records -> plain JSON values, for people and programs that read them without a tracker. Pure.

Non-finite numbers become the strings ``NaN``, ``Infinity`` and ``-Infinity``, because strict JSON has no such numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import orjson

from otel_bridge.media_files import file_name
from otel_bridge.otlp.json_text import number_or_name
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
    Value,
)

Payload: TypeAlias = dict[str, Json]


def row_payload(row: Row) -> Payload:
    """Return the payload of *row*."""
    return {
        "kind": "row",
        "position": row.position,
        "id": row.id,
        "role": row.role,
        "step": row.step,
        "axis": row.axis,
        "time_unix_ns": row.time_unix_ns,
        "attempt": row.attempt,
        "values": {key: _value(value) for key, value in row.values.items()},
    }


def rollout_payload(rollout: RolloutRecord) -> Payload:
    """Return the payload of *rollout*, with its conversation and its spans."""
    return {
        "kind": "rollout",
        "position": rollout.position,
        "id": rollout.id,
        "key": rollout.key,
        "role": rollout.role,
        "step": rollout.step,
        "start_unix_ns": rollout.start_unix_ns,
        "end_unix_ns": rollout.end_unix_ns,
        "split": rollout.split,
        "group": rollout.group,
        "sample": rollout.sample,
        "trajectory_id": rollout.trajectory_id,
        "prompt_index": rollout.prompt_index,
        "batch_index": rollout.batch_index,
        "reward": _finite(rollout.reward),
        "rewards": {name: _finite(value) for name, value in rollout.rewards.items()},
        "advantage": _finite(rollout.advantage),
        "finish_reason": rollout.finish_reason,
        "policy_version": rollout.policy_version,
        "dataset": rollout.dataset,
        "dataset_index": rollout.dataset_index,
        "tools": plain({**rollout.tools}),
        "metadata": plain({**rollout.metadata}),
        "error": rollout.error,
        "incomplete": rollout.incomplete,
        "clipped_bytes": rollout.clipped_bytes,
        "messages": plain([*rollout.messages]),
        "spans": [_span(span) for span in rollout.spans],
    }


def trace_payload(trace: PlainTrace) -> Payload:
    """Return the payload of *trace*, which is not a rollout, with its spans."""
    return {
        "kind": "trace",
        "position": trace.position,
        "id": trace.id,
        "role": trace.role,
        "name": trace.name,
        "start_unix_ns": trace.start_unix_ns,
        "end_unix_ns": trace.end_unix_ns,
        "rollout_key": trace.rollout_key,
        "step": trace.step,
        "spans": [_span(span) for span in trace.spans],
    }


def media_payload(record: MediaRecord) -> Payload:
    """Return the payload of *record*, which names the files of its items."""
    return {
        "kind": "media",
        "position": record.position,
        "id": record.id,
        "key": record.key,
        "role": record.role,
        "step": record.step,
        "axis": record.axis,
        "time_unix_ns": record.time_unix_ns,
        "items": [_item(item) for item in record.items],
        "cells": [_item(item) for item in record.cells],
    }


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
    return {
        "kind": "evaluation",
        "position": evaluation.position,
        "id": evaluation.id,
        "rollout_id": evaluation.rollout_id,
        "name": evaluation.name,
        "value": _finite(evaluation.value),
        "label": evaluation.label,
        "explanation": evaluation.explanation,
        "role": evaluation.role,
        "step": evaluation.step,
        "time_unix_ns": evaluation.time_unix_ns,
    }


def config_payload(role: str | None, config: Mapping[str, Json]) -> Payload:
    """Return the payload of the whole config of *role*."""
    return {"kind": "config", "role": role, "config": plain({**config})}


def alert_payload(alert: Alert) -> Payload:
    """Return the payload of an alert."""
    return {
        "kind": "alert",
        "position": alert.position,
        "id": alert.id,
        "role": alert.role,
        "title": alert.title,
        "text": alert.text,
        "level": alert.level,
        "step": alert.step,
        "time_unix_ns": alert.time_unix_ns,
    }


def summary_payload(role: str | None, values: Mapping[str, Scalar]) -> Payload:
    """Return the payload of last values of keys."""
    return {"kind": "summary", "role": role, "summary": plain({**values})}


def end_payload(status: Status) -> Payload:
    """Return the payload of the end of the run."""
    return {"kind": "end", "status": status.value}


def plain(value: Json) -> Json:
    """Return *value* with its non-finite numbers as strings, at any depth."""
    if isinstance(value, float):
        return _finite(value)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value


def _span(span: Span) -> Payload:
    return {
        "id": span.id,
        "parent_id": span.parent_id,
        "name": span.name,
        "kind": span.kind,
        "start_unix_ns": span.start_unix_ns,
        "end_unix_ns": span.end_unix_ns,
        "model": span.model,
        "input_tokens": span.input_tokens,
        "output_tokens": span.output_tokens,
        "error": span.error,
        "input": plain(span.input),
        "output": plain(span.output),
        "attributes": plain({**span.attributes}),
    }


def _value(value: Value) -> Json:
    if not isinstance(value, Distribution):
        return _finite(value)
    return {
        "count": value.count,
        "sum": _finite(value.sum),
        "min": _finite(value.min),
        "max": _finite(value.max),
        "edges": [_finite(edge) for edge in value.edges],
        "counts": [*value.counts],
    }


def _finite(value: float | None) -> Json:
    return None if value is None else number_or_name(value)


def json_line(payload: Payload) -> bytes:
    """Return *payload* as one line of JSON; a lone surrogate, which UTF-8 cannot hold, becomes ``?``.

    Raises:
        TypeError: A value is not JSON.
    """
    try:
        return orjson.dumps(payload) + b"\n"
    except TypeError:
        return orjson.dumps(_encodable(payload)) + b"\n"


def _encodable(value: Json) -> Json:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list):
        return [_encodable(item) for item in value]
    if isinstance(value, dict):
        return {
            key.encode("utf-8", "replace").decode(): _encodable(item) for key, item in value.items()
        }
    return value
