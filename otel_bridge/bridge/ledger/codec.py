"""Converts records and state values to bytes for the ledger and back.

orjson writes what it can write exactly. It would turn NaN and infinities into null, and it refuses
integers beyond 64 bits and lone surrogates. Such values go through the standard library's JSON,
marked by the first byte. Pure: no I/O.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import fields
from operator import attrgetter
from typing import Any, cast

import orjson

from otel_bridge.errors import InvalidRecordError, LedgerDamagedError
from otel_bridge.records import (
    TOKENS_ID,
    Alert,
    Config,
    Distribution,
    End,
    Evaluation,
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
from otel_bridge.translation.packing import packed, unpacked

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
_LENGTH = struct.Struct("<I")

_TYPES: Mapping[int, type[Record]] = {
    ROW: Row,
    ROLLOUT: RolloutRecord,
    EVALUATION: Evaluation,
    CONFIG: Config,
    END: End,
    OTHER: PlainTrace,
    ALERT: Alert,
    SUMMARY: Summary,
    MEDIA: MediaRecord,
    TOKEN_VIEW: MediaRecord,
}
KINDS = tuple(_TYPES)
_KINDS = {record_type: kind for kind, record_type in _TYPES.items()} | {
    MediaRecord: MEDIA
}
_VALUES_AT = 5
"""Index of a row's values among its fields."""
_STATUS_AT = 1
_PARTS_AT = {ROLLOUT: 8, OTHER: 5, MEDIA: 8, TOKEN_VIEW: 8}
"""Kind to the index of its list of spans or media, whose bytes are stored behind the other fields."""


def _reader(record_type: type, *left_out: str) -> Callable[[Any], tuple[Any, ...]]:
    """Return what reads the fields of *record_type*, in the order of its constructor."""
    names = [field.name for field in fields(record_type) if field.name not in left_out]
    return attrgetter(*names)


# The order of the fields of a record is its format in the ledger.
_FIELDS = {record_type: _reader(record_type, "position") for record_type in _KINDS}
_FIELDS[MediaRecord] = _reader(MediaRecord, "position", "items", "cells")
_SPAN_FIELDS = _reader(Span)


def encode_value(value: object) -> bytes:
    """Encode one state value: JSON-able, non-finite floats included, or bytes.

    Raises `TypeError` for any other; translation makes none.
    """
    if isinstance(value, bytes):
        return _BYTES + value
    return _dump(value)


def decode_value(data: bytes) -> object:
    """Decode bytes that `encode_value` returned.

    Raises:
        LedgerDamagedError: *data* holds anything else. Unlike a record, it cannot be left out.
    """
    if data[:1] == _BYTES:
        return data[1:]
    try:
        return _load(data)
    except InvalidRecordError as exc:
        raise LedgerDamagedError(f"a value of the ledger's state: {exc}") from exc


def encode(record: Record) -> tuple[int, bytes]:
    """Return the kind of *record* and its bytes, which leave out its position.

    Spans and media hold bytes, which JSON has no form for: they follow it. Raises `TypeError` for a
    value that is not JSON-able; translation makes none.
    """
    kind = _KINDS[type(record)]
    values = list(_FIELDS[type(record)](record))
    if isinstance(record, (RolloutRecord, PlainTrace)):
        values[_PARTS_AT[kind]] = [[*_SPAN_FIELDS(span)] for span in record.spans]
    if isinstance(record, MediaRecord):
        # A kind of its own, so that an exporter of metrics alone does not read it.
        if record.id.startswith(TOKENS_ID):
            kind = TOKEN_VIEW
        media = [
            [item.kind, item.mime_type, item.digest, item.caption, item.data]
            for item in (*record.items, *record.cells)
        ]
        values += [len(record.items), media]
    if kind in _PARTS_AT:
        return kind, _encode_parts(values, values[_PARTS_AT[kind]])
    return kind, _dump(values)


def decode(kind: int, data: bytes, position: Position) -> Record:
    """Return the record that `encode` turned into *kind* and *data*, with *position*.

    Raises:
        InvalidRecordError: *data* holds anything else. Its reader sets this one record aside, as a
            dead letter of each exporter.
    """
    record_type: Callable[..., Record] = _TYPES.get(kind, End)
    try:
        values = _decode_parts(data, kind) if kind in _PARTS_AT else _load(data)
        # Only the standard library's form can hold distributions, which have the mark in their text.
        if kind == ROW and b"$d" in data:
            values[_VALUES_AT] = {
                key: _value(value) for key, value in values[_VALUES_AT].items()
            }
        elif kind == END:
            values[_STATUS_AT] = Status(values[_STATUS_AT])
        return record_type(*values, position=position)
    except (ValueError, TypeError, LookupError, struct.error) as exc:
        # Damaged bytes may fail anywhere above; the caller sets this one record aside.
        raise InvalidRecordError(
            f"record {position} of kind {kind} in the ledger ({len(data)} bytes) cannot be decoded: {exc}"
        ) from exc


def _value(value: Any) -> Value:
    if not isinstance(value, dict):
        return cast("Value", value)
    return unpacked(Distribution, cast("dict[str, list[Any]]", value)[_DISTRIBUTION])


def _encode_parts(values: list[Any], parts: list[list[Any]]) -> bytes:
    """Return *values* as JSON, followed by the bytes that are the last entry of each of their *parts*."""
    contents: list[bytes] = []
    for part in parts:
        contents.append(part[-1])
        part[-1] = len(part[-1])
    head = _dump(values)
    return b"".join((_LENGTH.pack(len(head)), head, *contents))


def _decode_parts(data: bytes, kind: int) -> list[Any]:
    """Return the fields of a record whose spans or media `_encode_parts` stored.

    Raises:
        ValueError: The sizes do not add up, so the bytes are damaged; `decode` makes an
            `InvalidRecordError` of it.
    """
    (length,) = _LENGTH.unpack_from(data)
    start = _LENGTH.size + length
    values: list[Any] = _load(data[_LENGTH.size : start])
    parts: list[list[Any]] = values[_PARTS_AT[kind]]
    for part in parts:
        end = start + part[-1]
        part[-1] = data[start:end]
        start = end
    # Sizes that do not add up are damage: a cut picture would be shown as a whole one.
    if start != len(data):
        raise ValueError(f"parts of {start} bytes")
    if kind in {ROLLOUT, OTHER}:
        values[_PARTS_AT[kind]] = [Span(*part) for part in parts]
        return values
    *names, steps, item_count, _ = values
    media = [
        MediaItem(media_kind, mime_type, content, digest, caption)
        for media_kind, mime_type, digest, caption, content in parts
    ]
    return [*names, media[:item_count], media[item_count:], steps]


def _dump(value: object) -> bytes:
    """Return *value* as JSON, by orjson where that is exact, else by the standard library, with a mark in front.

    Raises `TypeError` for a value that is not JSON-able.
    """
    if _is_exact(value):
        try:
            return orjson.dumps(value, default=_plain)
        except TypeError:
            # Integers beyond 64 bits and lone surrogates: `json` writes them.
            pass
    return _STDLIB + json.dumps(value, default=_plain, separators=(",", ":")).encode()


def _plain(value: object) -> object:
    """Return a mapping as a dict, and a distribution as one with a mark.

    Raises `TypeError` for others.
    """
    if isinstance(value, Distribution):
        return {_DISTRIBUTION: packed(value)}
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
    """Return the value of JSON text; raises `InvalidRecordError` for anything else."""
    try:
        if data[:1] == _STDLIB:
            return json.loads(data[1:])
        return orjson.loads(data)
    except ValueError as exc:
        raise InvalidRecordError(
            f"{len(data)} bytes in the ledger are not JSON: {exc}"
        ) from exc
