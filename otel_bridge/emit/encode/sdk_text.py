"""Records of an OpenTelemetry SDK -> the same records without half surrogate pairs, which no protobuf parser accepts.

The SDK's encoders raise on such a name, and leave such an attribute out with a line in the log. Pure.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TypeVar, cast

# By name: importing `opentelemetry.sdk._logs` starts threads (its class body detects resources; SDK 1.45.2), and fails
# in a thread that outlives the main thread.
_TEXT_FIELDS: Mapping[str, tuple[str, ...]] = {
    "ReadableSpan": (
        "_name",
        "_attributes",
        "_events",
        "_links",
        "_status",
        "_resource",
        "_instrumentation_scope",
    ),
    "Event": ("_name", "_attributes"),
    "Link": ("_attributes",),
    "Status": ("_description",),
    "Resource": ("_attributes",),
    "InstrumentationScope": ("_name", "_version", "_attributes"),
    "ReadableLogRecord": ("log_record", "resource", "instrumentation_scope"),
    "LogRecord": ("body", "severity_text", "attributes", "event_name"),
    "MetricsData": ("resource_metrics",),
    "ResourceMetrics": ("resource", "scope_metrics"),
    "ScopeMetrics": ("scope", "metrics"),
    "Metric": ("name", "description", "unit", "data"),
    "Gauge": ("data_points",),
    "Sum": ("data_points",),
    "Histogram": ("data_points",),
    "ExponentialHistogram": ("data_points",),
    "NumberDataPoint": ("attributes",),
    "HistogramDataPoint": ("attributes",),
    "ExponentialHistogramDataPoint": ("attributes",),
}
"""Class of the SDK for a record, or for a part of one, to its fields that hold texts or such parts."""
T = TypeVar("T")


def well_formed(record: T) -> T:
    """Return *record* with a question mark for each lone surrogate; *record* itself, unchanged, when it has none."""
    return cast("T", _value(record))


def _value(value: object) -> object:
    if isinstance(value, str):
        return value if value.isascii() else _text(value)
    if value is None or isinstance(value, (bool, int, float, bytes)):
        return value
    kind: type = type(value)
    if kind.__module__.startswith("opentelemetry."):
        fields = _TEXT_FIELDS.get(kind.__name__)
    else:
        fields = None
    if fields is not None:
        return _record(value, fields)
    if isinstance(value, Mapping):
        entries = cast("Mapping[object, object]", value)
        changed = {_value(key): _value(item) for key, item in entries.items()}
        same = all(changed.get(key) is item for key, item in entries.items())
        return entries if same else changed
    if isinstance(value, Sequence):
        items = cast("Sequence[object]", value)
        copies = [_value(item) for item in items]
        same = all(new is old for new, old in zip(copies, items, strict=True))
        return items if same else copies
    return value


def _text(value: str) -> str:
    """Return *value* itself when it is well-formed, so that an unchanged record is recognised by identity."""
    text = value.encode("utf-8", "replace").decode()
    return value if text == value else text


def _record(record: object, fields: Sequence[str]) -> object:
    """Return *record*, or a copy of it with those of *fields* replaced that hold lone surrogates."""
    changes: dict[str, object] = {}
    for name in fields:
        value = getattr(record, name, None)
        changed = _value(value)
        if changed is not value:
            changes[name] = changed
    if not changes:
        return record
    changed_record = copy.copy(record)
    for name, value in changes.items():
        # The records are frozen, and their fields have no setters.
        object.__setattr__(changed_record, name, value)
    return changed_record
