"""A run's config -> values to send: plain and bounded, without secrets, cycles or memory addresses."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import cast

from otel_bridge.emit.encode.protobuf import Attribute
from otel_bridge.errors import any_error_but_signals
from otel_bridge.records import Json
from otel_bridge.text.secret_patterns import redact_and_cut, scrubbed
from otel_bridge.values.plain import (
    Losses,
    PlainReader,
    ReadingRules,
    count_nothing,
    mapping_of,
)

MAX_TEXT_CHARS = 10_000
_RULES = ReadingRules(
    number=lambda number: number,
    entries=10_000,
    depth=16,
    array_numbers=100,
    text_chars=MAX_TEXT_CHARS,
    total_chars=1 << 20,
)


def config_of(
    config: object, drop: Callable[[str, int, str], None]
) -> dict[str, Attribute]:
    """Return *config* as nested plain values; empty when it has no fields.

    That is counted as ``config_not_a_mapping``.

    What `mapping_of` or ``len()`` of the program's own objects raises is raised: `Run.log_config`
    counts it as ``internal_error``.

    Args:
        config: A mapping, dataclass, attrs class, namespace, or an object with ``to_dict()`` or
            ``model_dump()``.
        drop: Called with the reason, the number and the first key when *config* cannot be recorded
            in full.
    """
    mapping = mapping_of(config)
    if mapping is None:
        drop("config_not_a_mapping", 1, type(config).__name__)
        return {}
    losses = Losses()
    cleaned = PlainReader(_RULES, redacted, losses.add).read_mapping(mapping, config)
    losses.report(drop)
    # The reader has checked every text; a secret name covers everything below it.
    return cast("dict[str, Attribute]", scrubbed(cast("Json", cleaned)))


def redacted(text: str) -> str:
    """Return the part of a text that a config or summary shows, without secrets."""
    return redact_and_cut(text, MAX_TEXT_CHARS)


def config_snapshot(config: object) -> dict[str, Attribute]:
    """Return *config* as it would be recorded, and count nothing; empty when it cannot be read."""
    try:
        return config_of(config, count_nothing)
    except any_error_but_signals():  # code of the user's own objects
        return {}


def replaced_entries(
    config: Mapping[str, Attribute], later: Mapping[str, Attribute]
) -> list[str]:
    """Return the keys of *config* for which *later* has another value.

    A new key replaces nothing.
    """
    keys: list[str] = []
    for key, value in later.items():
        if key in config and _text_of_entry(config[key]) != _text_of_entry(value):
            keys.append(key)
    return keys


def _text_of_entry(value: Attribute) -> str:
    """Return a text that is equal for equal values; a NaN equals no NaN otherwise."""
    return json.dumps(value, sort_keys=True, default=repr)
