"""Entries -> the JSON that Trackio's server and its inbox accept. Pure.

Source: ``LogEntry`` in trackio/typehints.py, ``metric_record`` in trackio/fragments.py,
``serialize_values`` in trackio/utils.py: non-finite numbers are the strings ``NaN``, ``Infinity``
and ``-Infinity``.
"""

from __future__ import annotations

import orjson

from otel_bridge.errors import PermanentError
from otel_bridge.otlp.json_text import number_or_name, with_leaves
from otel_bridge.records import Json
from otel_bridge_trackio.payload import Payload, encodable
from otel_bridge_trackio.sink import StoreEntry

_STEP_MIN = -(1 << 63)
_STEP_MAX = (1 << 63) - 1


def encoded(entry: StoreEntry, fields: Payload) -> bytes:
    """Return *entry* with *fields* (project, run, …) as JSON.

    Raises:
        PermanentError: Trackio cannot store it: a step or number that does not fit into 64 bits.
    """
    if not _STEP_MIN <= entry.step <= _STEP_MAX:
        # One such entry stops Trackio's importer forever (import_inbox_dir in
        # trackio/fragments.py).
        raise PermanentError(
            f"step {entry.step} of {entry.log_id} does not fit into 64 bits",
            position=entry.position,
        )
    record: Payload = {
        **fields,
        "metrics": entry.metrics,
        "step": entry.step,
        "log_id": entry.log_id,
    }
    try:
        return _dumped(record)
    except TypeError:
        pass
    try:
        return _dumped(encodable(record))  # a text has a lone surrogate
    except (TypeError, ValueError, RecursionError) as exc:
        raise PermanentError(
            f"Trackio cannot store {entry.log_id}: {exc}", position=entry.position
        ) from exc


def _dumped(record: Payload) -> bytes:
    data = orjson.dumps(record)
    # orjson writes null for non-finite numbers; only then is the record searched for them.
    if b"null" in data:
        return orjson.dumps(with_leaves(record, _named_number))
    return data


def _named_number(value: Json) -> Json:
    """Return a number by the name that Trackio gives it, if it is not finite; anything else unchanged."""
    if isinstance(value, float):
        return number_or_name(value)
    return value
