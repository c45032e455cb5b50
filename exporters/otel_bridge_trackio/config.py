"""The configs of a run's roles -> Trackio's one flat config of a run. Pure.

Trackio replaces the whole config at once. Entries that another bridge has written for the same run
are kept, as in the other trackers. Such a bridge serves roles on another machine, or the job's
earlier folder.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Final, TypeAlias

from otel_bridge.records import Json, Scalar
from otel_bridge_trackio.payload import Payload, encodable

_Path: TypeAlias = "tuple[str | None, ...]"
"""A role and the keys below it."""
# Two keys of one run whose hashes agree too get a longer text to hash, so few digits are enough.
_HASH_DIGITS: Final = 8
_SUMMARY: Final = "summary"
_NO_SUMMARY: Final[Mapping[str, Scalar]] = {}


def config_payload(
    configs: Mapping[str | None, Mapping[str, Json]], summary: Mapping[str, Scalar] = _NO_SUMMARY
) -> Payload:
    """Return all configs as one flat config, ``<role>/<key>``, with *summary* as ``summary/<key>``.

    A hash distinguishes keys that become equal.
    """
    entries_by_name: dict[str, list[tuple[_Path, Json]]] = {}
    # Sorted: the same key must win its plain name at every call, or a restart would swap two names.
    for role in sorted(configs, key=lambda name: name or ""):
        for path, value in _leaves(configs[role], (role,)):
            entries_by_name.setdefault(_name(path), []).append((path, value))
    for key, value in summary.items():
        entries_by_name.setdefault(_name((_SUMMARY, key)), []).append(((_SUMMARY, key), value))
    flat: Payload = {name: entries[0][1] for name, entries in entries_by_name.items()}
    for name, entries in entries_by_name.items():
        for path, value in entries[1:]:
            # Only now that all plain names are in: a hashed name must not take that of another key.
            flat[_other_name(name, path, flat)] = value
    # A config that cannot be stored would also prevent its row from being stored.
    return {key: _storable(value) for key, value in encodable(flat).items()}


def beside(stored: Payload, ours: Payload, *, group: str | None, created: str) -> Payload:
    """Return *ours* with the entries of *stored* that *ours* lacks, and with the fields that Trackio expects."""
    parents = {*_above(ours)}
    stored_entries = {
        key: value for key, value in stored.items()
        # When a map became a number, or a number a map, its old entries are not kept.
        if key not in parents and ours.keys().isdisjoint(_above([key]))
    }  # fmt: skip
    trackio_fields: Payload = {
        "_Group": group or stored.get("_Group"),
        # The first creation stays: a resumed run was not created again.
        "_Created": stored.get("_Created") or created,
        "_Username": stored.get("_Username"),
    }
    # Trackio's own fields last, because no key of a config may replace them.
    return {**stored_entries, **ours, **trackio_fields}


def _above(keys: Iterable[str]) -> Iterable[str]:
    for key in keys:
        parts = key.split("/")
        yield from ("/".join(parts[:count]) for count in range(1, len(parts)))


def _storable(value: Json) -> Json:
    """Return *value* with integers of more than 64 bits as text."""
    # orjson, with which Trackio writes configs, raises for integers outside of this range.
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
        return str(value)
    if isinstance(value, list):
        return [_storable(item) for item in value]
    if isinstance(value, dict):
        return {key: _storable(item) for key, item in value.items()}
    return value


def _leaves(config: Mapping[str, Json], above: _Path) -> Iterator[tuple[_Path, Json]]:
    for key, value in config.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, (*above, key))
        else:
            yield (*above, key), value


def _name(path: _Path) -> str:
    role, *keys = path
    name = "/".join([role, *map(str, keys)] if role else map(str, keys))
    # Such keys are Trackio's own fields; its Run raises for them, bulk_log would replace the field.
    return f"config{name}" if name.startswith("_") else name


def _other_name(name: str, path: _Path, used_names: Container[str]) -> str:
    """Return another name for the entry at *path*, because *name* is taken.

    The same at each call.
    """
    text = json.dumps(path)
    other_name = name
    while other_name in used_names:
        digits = hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()[:_HASH_DIGITS]
        other_name = f"{name}-{digits}"
        text = f"{text} "
    return other_name
