"""Converts records and state values to bytes for the ledger and back.

orjson writes what it can write exactly. It would turn NaN and infinities into null, and it refuses
integers beyond 64 bits and lone surrogates. Such values go through the standard library's JSON,
marked by the first byte. Pure: no I/O.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Mapping
from typing import Any, cast

import orjson

from otel_bridge.errors import InvalidRecordError
from otel_bridge.records import (
    TOKENS_ID,
    Alert,
    Config,
    Distribution,
    End,
    Evaluation,
    Json,
    MediaItem,
    MediaRecord,
    PlainTrace,
    Position,
    Record,
    RolloutRecord,
    Row,
    Span,
    Status,
    Summary,
    Value,
)
from otel_bridge.translation.decode.histograms import (
    packed_distribution,
    unpacked_distribution,
)

ROW = 0
ROLLOUT = 1
EVALUATION = 2
CONFIG = 3
END = 4
OTHER = 5
ALERT = 6
SUMMARY = 7
MEDIA = 8
TOKEN_VIEW = 9
"""A medium that shows the messages of a rollout: it goes where rollouts go."""

_STDLIB = b"J"
_BYTES = b"B"
_DISTRIBUTION = "$d"
_ALERT_FIELDS = ("id", "role", "title", "text", "level", "step", "time_unix_ns")
_LENGTH = struct.Struct("<I")


def encode_value(value: object) -> bytes:
    """Encode one state value: JSON-able, non-finite floats included, or bytes."""
    if isinstance(value, bytes):
        return _BYTES + value
    return _dump(value)


def decode_value(data: bytes) -> object:
    """Decode bytes that `encode_value` returned.

    Raises:
           InvalidRecordError: *data* holds anything else.
    """
    if data[:1] == _BYTES:
        return data[1:]
    return _load(data)


def encode(record: Record) -> tuple[int, bytes]:  # noqa: PLR0911  # one for each kind
    """Return the kind of *record* and its bytes, which leave out its position."""
    # isinstance in the order of frequency: rows are the hot path.
    if isinstance(record, Row):
        return ROW, _encode_row(record)
    if isinstance(record, RolloutRecord):
        return ROLLOUT, _encode_rollout(record)
    if isinstance(record, Evaluation):
        return EVALUATION, _dump(_evaluation_fields(record))
    if isinstance(record, PlainTrace):
        return OTHER, _encode_other(record)
    if isinstance(record, MediaRecord):
        # A kind of its own, so that an exporter of metrics alone does not read it.
        kind = MEDIA
        if record.id.startswith(TOKENS_ID):
            kind = TOKEN_VIEW
        return kind, _encode_media(record)
    if isinstance(record, Config):
        return CONFIG, _dump(
            [record.id, record.role, record.config, record.time_unix_ns]
        )
    if isinstance(record, Summary):
        return SUMMARY, _dump(
            [record.id, record.role, record.values, record.time_unix_ns]
        )
    if isinstance(record, Alert):
        return ALERT, _dump([getattr(record, name) for name in _ALERT_FIELDS])
    return END, _dump([record.id, record.status.value, record.time_unix_ns])


def decode(kind: int, data: bytes, position: Position) -> Record:  # noqa: PLR0911  # one for each kind
    """Return the record that `encode` turned into *kind* and *data*, with *position*.

    Raises:
        InvalidRecordError: *data* holds anything else.
    """
    try:
        if kind == ROW:
            return _decode_row(data, position)
        if kind == ROLLOUT:
            return _decode_rollout(data, position)
        if kind == OTHER:
            return _decode_other(data, position)
        if kind in {MEDIA, TOKEN_VIEW}:
            return _decode_media(data, position)
        if kind == EVALUATION:
            evaluations: list[Any] = [*_load(data), position]
            return Evaluation(*evaluations)
        if kind in {CONFIG, SUMMARY}:
            name, role, entries, time_unix_ns = cast("list[Any]", _load(data))
            record_type: type[Config | Summary] = Summary
            if kind == CONFIG:
                record_type = Config
            return record_type(name, role, entries, time_unix_ns, position)
        if kind == ALERT:
            alert: list[Any] = [*_load(data), position]
            return Alert(*alert)
        name, status, time_unix_ns = cast("list[Any]", _load(data))
        return End(name, Status(status), time_unix_ns, position)
    except (ValueError, TypeError, LookupError, struct.error) as exc:
        # Damaged bytes may fail anywhere above; the caller sets this one record aside.
        raise InvalidRecordError(
            f"record {position} of kind {kind} in the ledger ({len(data)} bytes) cannot be decoded: {exc}"
        ) from exc


def _encode_row(row: Row) -> bytes:
    try:
        # One sum instead of a check of each value: NaN and infinities remain in the sum. An
        # overflow only costs the slower way, as does a `Distribution`, which cannot be added.
        total = sum(cast("Iterable[float]", row.values.values()))
        if total - total == 0:
            # The usual row: orjson writes finite numbers exactly; NaN would become null.
            return orjson.dumps(_row_fields(row, row.values))
    except (TypeError, OverflowError):
        pass
    return _dump(
        _row_fields(
            row, {key: _plain_value(value) for key, value in row.values.items()}
        )
    )


def _row_fields(row: Row, values: object) -> tuple[object, ...]:
    return (
        row.id, row.role, row.step, row.axis, row.time_unix_ns, values, row.steps, row.attempt,
    )  # fmt: skip


def _plain_value(value: Value) -> Json:
    if isinstance(value, Distribution):
        return {_DISTRIBUTION: packed_distribution(value)}
    return value


def _decode_row(data: bytes, position: Position) -> Row:
    name, role, step, axis, time_unix_ns, values, steps, attempt = _load(data)
    # Only the standard library's form and the mixed form can hold distributions; both have the
    # marker in their text.
    if b"$d" in data:
        values = {key: _value(value) for key, value in values.items()}
    return Row(name, role, step, axis, time_unix_ns, values, steps, attempt, position)


def _value(value: Any) -> Value:
    if not isinstance(value, dict):
        return cast("Value", value)
    return unpacked_distribution(cast("dict[str, list[Any]]", value)[_DISTRIBUTION])


def _evaluation_fields(value: Evaluation) -> list[object]:
    return [
        value.id, value.rollout_id, value.rollout_key, value.name, value.value, value.label, value.explanation,
        value.role, value.step, value.axis, value.time_unix_ns,
    ]  # fmt: skip


def _encode_rollout(rollout: RolloutRecord) -> bytes:
    spans = _span_fields(rollout.spans)
    fields = [
        rollout.id, rollout.role, rollout.key, rollout.step, rollout.axis, rollout.start_unix_ns, rollout.end_unix_ns,
        list(rollout.messages), spans, rollout.split, rollout.group, rollout.sample, rollout.trajectory_id,
        rollout.prompt_index, rollout.batch_index, rollout.reward, rollout.rewards, rollout.advantage,
        rollout.finish_reason, rollout.policy_version, rollout.dataset, rollout.dataset_index, rollout.tools,
        rollout.metadata, rollout.error, rollout.incomplete, rollout.clipped_bytes, rollout.steps, rollout.remarks,
    ]  # fmt: skip
    return _with_otlp(fields, rollout.spans)


def _encode_other(trace: PlainTrace) -> bytes:
    fields = [
        trace.id, trace.role, trace.name, trace.start_unix_ns, trace.end_unix_ns, _span_fields(trace.spans),
        trace.rollout_key, trace.step,
    ]  # fmt: skip
    return _with_otlp(fields, trace.spans)


def _span_fields(spans: Iterable[Span]) -> list[list[object]]:
    return [
        [
            span.id, span.parent_id, span.name, span.kind, span.start_unix_ns, span.end_unix_ns, span.attributes,
            span.input, span.output, span.model, span.input_tokens, span.output_tokens, span.error, len(span.otlp),
        ]
        for span in spans
    ]  # fmt: skip


def _with_otlp(fields: object, spans: Iterable[Span]) -> bytes:
    head = _dump(fields)
    return b"".join((_LENGTH.pack(len(head)), head, *(span.otlp for span in spans)))


def _without_otlp(data: bytes, spans_at: int) -> list[Any]:
    """Return the fields that were given to `_with_otlp`, with complete spans."""
    (length,) = _LENGTH.unpack_from(data)
    fields: list[Any] = _load(data[4 : 4 + length])
    spans: list[Span] = []
    start = 4 + length
    for *span, size in fields[spans_at]:
        parts: list[Any] = [*span, data[start : start + size]]
        spans.append(Span(*parts))
        start += size
    fields[spans_at] = spans
    return fields


def _decode_other(data: bytes, position: Position) -> PlainTrace:
    fields: list[Any] = [*_without_otlp(data, 5), position]
    return PlainTrace(*fields)


def _decode_rollout(data: bytes, position: Position) -> RolloutRecord:
    fields: list[Any] = [*_without_otlp(data, 8), position]
    return RolloutRecord(*fields)


def _encode_media(record: MediaRecord) -> bytes:
    media = [*record.items, *record.cells]
    fields = [
        record.id, record.role, record.key, record.step, record.axis, record.time_unix_ns, record.steps,
        len(record.items), [[item.kind, item.mime_type, item.digest, item.caption, len(item.data)] for item in media],
    ]  # fmt: skip
    head = _dump(fields)
    return b"".join((_LENGTH.pack(len(head)), head, *(item.data for item in media)))


def _decode_media(data: bytes, position: Position) -> MediaRecord:
    (length,) = _LENGTH.unpack_from(data)
    fields: list[Any] = _load(data[4 : 4 + length])
    name, role, key, step, axis, time_unix_ns, steps, item_count, listed = fields
    media: list[MediaItem] = []
    start = 4 + length
    for kind, mime_type, digest, caption, size in listed:
        media.append(
            MediaItem(kind, mime_type, data[start : start + size], digest, caption)
        )
        start += size
    # Sizes that do not add up are damage: a cut picture would be shown as a whole one.
    if start != len(data):
        raise ValueError(f"media of {start} bytes")
    return MediaRecord(
        name,
        role,
        key,
        step,
        axis,
        time_unix_ns,
        media[:item_count],
        media[item_count:],
        steps,
        position,
    )


def _dump(value: object) -> bytes:
    if _is_exact(value):
        try:
            return orjson.dumps(value, default=_mapping)
        except TypeError:
            # Integers beyond 64 bits and lone surrogates: `json` writes them.
            pass
    return _STDLIB + json.dumps(value, default=_mapping, separators=(",", ":")).encode()


def _mapping(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(cast("Mapping[str, object]", value))
    raise TypeError(f"{type(value).__name__} is not JSON-able")


def _is_exact(value: object) -> bool:
    """Return whether orjson writes *value* exactly.

    Values that orjson refuses need no check here.
    """
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(_is_exact, cast("dict[str, object]", value).values()))
    if isinstance(value, (list, tuple)):
        return all(map(_is_exact, cast("list[object]", value)))
    return value is None or isinstance(value, (str, int))


def _load(data: bytes) -> Any:
    try:
        if data[:1] == _STDLIB:
            return json.loads(data[1:])
        return orjson.loads(data)
    except ValueError as exc:
        raise InvalidRecordError(
            f"{len(data)} bytes in the ledger are not JSON: {exc}"
        ) from exc
