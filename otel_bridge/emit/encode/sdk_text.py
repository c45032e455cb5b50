"""Records of an OpenTelemetry SDK -> the same records without half surrogate pairs, which no protobuf parser accepts.

The SDK's encoders raise on such a name, and leave such an attribute out with a line in the log.
Pure.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TypeVar, cast

_TEXT_FIELDS = frozenset({
    "_attributes", "_description", "_events", "_instrumentation_scope", "_links", "_name", "_resource", "_status",
    "_version", "attributes", "body", "data", "data_points", "description", "event_name", "instrumentation_scope",
    "log_record", "metrics", "name", "resource", "resource_metrics", "scope", "scope_metrics", "severity_text", "unit",
})  # fmt: skip
"""Fields of the SDK's records, and of their parts, that hold texts or such parts."""
T = TypeVar("T")


def well_formed(record: T) -> T:
    """Return *record* with a question mark for each lone surrogate.

    *record* itself when it has none. Without this the SDK would leave the attribute out with a line
    in the log, which no count shows, or raise.
    """
    return cast("T", _value(record))


def _value(value: object) -> object:
    """Return *value*, itself when nothing in it changes.

    Objects that are not the SDK's are not looked into.
    """
    if isinstance(value, str):
        return value if value.isascii() else _text(value)
    if value is None or isinstance(value, (bool, int, float, bytes)):
        return value
    if isinstance(value, Mapping):
        return _mapping(cast("Mapping[object, object]", value))
    if isinstance(value, Sequence):
        return _sequence(cast("Sequence[object]", value))
    # By name: importing `opentelemetry.sdk._logs` starts threads (its class body detects resources;
    # SDK 1.45.2), and fails in a thread that outlives the main thread.
    if type(value).__module__.startswith("opentelemetry."):
        return _record(value)
    return value


def _mapping(entries: Mapping[object, object]) -> Mapping[object, object]:
    keys = list(entries)
    values = list(entries.values())
    changed_keys = _sequence(keys)
    changed_values = _sequence(values)
    if changed_keys is keys and changed_values is values:
        return entries
    return dict(zip(changed_keys, changed_values, strict=True))


def _sequence(items: Sequence[object]) -> Sequence[object]:
    copies = [_value(item) for item in items]
    is_same = all(new is old for new, old in zip(copies, items, strict=True))
    return items if is_same else copies


def _text(value: str) -> str:
    """Return *value* itself when it is well-formed, so that an unchanged record is recognised by identity."""
    text = value.encode("utf-8", "replace").decode()
    return value if text == value else text


def _record(record: object) -> object:
    """Return *record*, or a copy of it with those of its fields replaced that hold lone surrogates.

    Only fields in which texts can be: others lead to processors, locks and back to the record.
    """
    changes: dict[str, object] = {}
    # Properties of the same names only show fields, and have no setters.
    fields = {*getattr(record, "__dict__", ()), *getattr(type(record), "__slots__", ())}
    for name in _TEXT_FIELDS & fields:
        value = getattr(record, name)
        changed = _value(value)
        if changed is not value:
            changes[name] = changed
    if not changes:
        return record
    changed_record = copy.copy(record)
    for name, value in changes.items():
        # The records are frozen.
        object.__setattr__(changed_record, name, value)
    return changed_record
