"""The configs of a run's roles -> Trackio's one flat config of a run. Pure.

Trackio stores a config whole. What another bridge has written of the same run (its roles live on another machine, or
the job began in another folder) stays beside ours, as in the other trackers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from otel_bridge.records import Json
from otel_bridge_trackio.payload import Payload, encodable


def config_payload(configs: Mapping[str | None, Mapping[str, Json]]) -> Payload:
    """Return all configs as one flat config, ``<role>/<key>``."""
    flat: Payload = {}
    for role in sorted(configs, key=lambda name: name or ""):
        _flatten(configs[role], f"{role}/" if role else "", flat)
    # A config that cannot be stored would cost the row that it goes with.
    return {key: _storable(value) for key, value in encodable(flat).items()}


def beside(held: Payload, ours: Payload, *, group: str | None, created: str) -> Payload:
    """Return *ours* with what is *held* and not ours, and with the fields that Trackio expects."""
    above = {*_above(ours)}
    kept = {
        key: value for key, value in held.items()
        # A map that is a number now, or the other way round, leaves nothing behind.
        if key not in above and ours.keys().isdisjoint(_above([key]))
    }  # fmt: skip
    own: Payload = {
        "_Group": group or held.get("_Group"),
        "_Created": held.get("_Created") or created,
        "_Username": held.get("_Username"),
    }
    return {**kept, **ours, **own}


def _above(keys: Iterable[str]) -> Iterable[str]:
    for key in keys:
        parts = key.split("/")
        yield from ("/".join(parts[:count]) for count in range(1, len(parts)))


def _storable(value: Json) -> Json:
    """Return *value* with integers that no 64 bits hold as text."""
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
        return str(value)
    if isinstance(value, list):
        return [_storable(item) for item in value]
    return {key: _storable(item) for key, item in value.items()} if isinstance(value, dict) else value


def _flatten(config: Mapping[str, Json], prefix: str, flat: Payload) -> None:
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and value:
            _flatten(value, f"{name}/", flat)
        else:
            flat[f"config{name}" if name.startswith("_") else name] = value
