"""Arguments of ``run.summary()`` -> flat keys with numbers, texts and bools, without secrets.

Nothing raises but a mapping's own ``len()``: `Run.summary` then counts the call as
``internal_error``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from otel_bridge.emit.config.hyperparameters import MAX_TEXT_CHARS, redacted
from otel_bridge.emit.encode.values import MAX_KEY_CHARS
from otel_bridge.records import Json, Scalar
from otel_bridge.text.secret_patterns import scrubbed
from otel_bridge.values.plain import (
    CountKeyedDrop,
    Losses,
    PlainReader,
    ReadingRules,
)

_RULES = ReadingRules(
    number=lambda number: number, entries=10_000, text_chars=MAX_TEXT_CHARS
)


def summary_of(values: object, drop: CountKeyedDrop) -> dict[str, Scalar]:
    """Return the entries of *values* by flat key.

    Whatever is not a number, text or bool is left out and counted: ``not_a_mapping``,
    ``summary_value``, ``long_key``, and what `PlainReader` counts. Of equal keys the last counts.

    Args:
        values: Entries by key; nested mappings are flattened with ``/``.
        drop: Callable with a reason, a number and the first key.
    """
    if not isinstance(values, Mapping):
        drop("not_a_mapping", 1, type(values).__name__)
        return {}
    losses = Losses()
    mapping = cast("Mapping[object, object]", values)
    plain = PlainReader(_RULES, redacted, losses.add).read_mapping(mapping, mapping)
    # Before it is flat: a name of a secret covers everything below it.
    without_secrets = cast("dict[str, Json]", scrubbed(cast("Json", plain)))
    flat: dict[str, Scalar] = {}
    _flatten_into(flat, "", without_secrets, losses)
    losses.report(drop)
    # The joined key may be a name as well: ``api/key``.
    return cast("dict[str, Scalar]", scrubbed(cast("Json", flat)))


def _flatten_into(
    flat: dict[str, Scalar], prefix: str, values: Mapping[str, Json], losses: Losses
) -> None:
    """Add plain *values* to *flat* by their joined keys.

    A list and ``None`` are counted as ``summary_value``. A joined key may come twice: of ``{"a/b":
    1, "a": {"b": 2}}``.
    """
    for name, value in values.items():
        key = prefix + name
        if isinstance(value, dict):
            _flatten_into(flat, f"{key}/", value, losses)
        elif value is None or isinstance(value, list):
            losses.add("summary_value", 1, key)
        elif len(key) > MAX_KEY_CHARS:
            losses.add("long_key", 1, key)
        else:
            if key in flat:
                losses.add("same_key", 1, key)
            flat[key] = value
