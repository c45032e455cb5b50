"""Rows -> arguments of ``run.log``: one flat dict per row.

``_timestamp`` is the row's own time in Unix seconds, which wandb sends unchanged. ``_step`` is left
to wandb, which drops any step below its last one (core/internal/stream/handler.go). A row that
raises `PermanentError` becomes a dead letter, and the rows after it follow. Pure, except for the
histogram class of the caller.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sized
from typing import TypeAlias, cast

from otel_bridge.otlp.json_text import sound_leaf, with_leaves
from otel_bridge.records import Distribution, Json, Row
from otel_bridge_wandb.errors import refused

Histogram: TypeAlias = Callable[[list[int], list[float]], object]
"""Returns the ``wandb.Histogram`` of counts, shape (n,), and edges, shape (n + 1,)."""

MAX_LINE_BYTES = (10 << 20) - (100 << 10) - 4096
"""wandb skips a longer line with a warning (``updatehistory.go``), less room for what it adds
itself."""
# Histogram.MAX_LENGTH of wandb (0.31), which raises for more.
MAX_BINS = 512
_RESERVED = frozenset({"_step", "_runtime", "_timestamp", "_wandb"})
_INT_LIMIT = 1 << 63
_NUMBER_BYTES = 32
"""Bytes that no number takes more of as JSON, with its separators."""


def payload_of(row: Row, histogram: Histogram) -> dict[str, object] | None:
    """Return the line of *row*, ``None`` when it has no value: an empty line would use a number.

    A key that is the axis, or one of wandb's own, is renamed by `shown_key`.

    Raises:
        PermanentError: W&B does not accept a value, a key is empty, or the line is over its limit.
    """
    if not row.values:
        return None
    line: dict[str, object] = {}
    axis = row.axis
    bins = 0
    for key, value in row.values.items():
        # Hot path: most values are floats, which need no further test. Not even for NaN and
        # infinities: W&B takes them in rows, though not in a config.
        if type(value) is float:
            line[key] = value
            continue
        line[key] = _other(key, value, row, histogram)
        if isinstance(value, Distribution):
            bins += len(value.counts)
    # Hot path: one test for a row, because renaming makes a second dict.
    if axis in line or not _RESERVED.isdisjoint(line) or "" in line:
        line = _renamed(line, row)
    if axis is not None and row.step is not None:
        line[axis] = row.step
    # wandb sends it as it is given; _runtime and _step it overwrites (0.28 to 0.31).
    line["_timestamp"] = row.time_unix_ns / 1e9
    _require_size(line, bins, row.position)
    return line


def _require_size(line: Mapping[str, object], bins: int, position: int) -> None:
    """Check that W&B would not skip *line*, whose histograms have *bins* in all.

    It skips a longer line with a warning, and goes on. The exact size is computed only for a line
    that may be too long, because that encodes every key.

    Raises:
        PermanentError: The line is over W&B's limit.
    """
    # A character is at most six bytes of JSON, and a bin is two numbers.
    upper_bytes = sum(map(len, line)) * 6 + (len(line) + 2 * bins) * _NUMBER_BYTES
    if upper_bytes > MAX_LINE_BYTES and _exact_bytes(line) > MAX_LINE_BYTES:
        raise refused(
            f"its {len(line)} values are more than {MAX_LINE_BYTES} bytes, W&B's limit of a row",
            position,
        )


def shown_key(key: str, axis: str | None) -> str:
    """Return the key under which W&B shows *key*: its own, unless that is the axis or one of wandb's own names."""
    if key == axis or key in _RESERVED:
        return f"{key}_value"
    return key


def bins_of(distribution: Distribution) -> tuple[list[int], list[float]]:
    """Return counts and edges for ``wandb.Histogram``: at most `MAX_BINS`, neighbours added up if there are more.

    wandb raises for more bins, and the row would be lost.
    """
    counts, edges = distribution.closed_bins()
    stride = -(-len(counts) // MAX_BINS)
    if stride > 1:
        last = edges[-1]
        starts = range(0, len(counts), stride)
        counts = [sum(counts[start : start + stride]) for start in starts]
        edges = [*edges[:-1:stride], last]
    return counts, edges


def _other(key: str, value: object, row: Row, histogram: Histogram) -> object:
    """Return the value of a line for anything but a plain float.

    A bool becomes 0 or 1, and an integer beyond 64 bits a double.

    Raises:
        PermanentError: It is an integer beyond a double, or neither a number nor a distribution.
    """
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int):
        if -_INT_LIMIT <= value < _INT_LIMIT:
            return value
        try:
            return float(value)
        except OverflowError:
            raise refused(
                f"{key[:80]!r} is an integer beyond a double", row.position
            ) from None
    if isinstance(value, float):
        # A subclass, such as a float of NumPy: wandb would encode it by its own rules.
        return float(value)
    if isinstance(value, Distribution):
        return histogram(*bins_of(value))
    raise refused(
        f"{key[:80]!r} is a {type(value).__name__}, expected a number or a distribution",
        row.position,
    )


def _renamed(line: Mapping[str, object], row: Row) -> dict[str, object]:
    """Return *line* with the keys that W&B would overwrite renamed.

    Raises:
        PermanentError: A key is empty.
    """
    if "" in line:
        raise refused("a key is empty", row.position)
    shown_line: dict[str, object] = {}
    for key, value in line.items():
        shown_line[shown_key(key, row.axis)] = value
    return shown_line


def _exact_bytes(line: Mapping[str, object]) -> int:
    """Return an upper bound of the JSON of *line*, near to it: 26 bytes for a number, keys as they are escaped."""
    total = 2
    for key, value in line.items():
        bins = cast("Sized | None", getattr(value, "histogram", None))
        # The names of a histogram's parts take less than two numbers.
        numbers = 1 if bins is None else 2 * len(bins) + 3
        key_json = json.dumps(key, ensure_ascii=False)
        total += len(key_json.encode("utf-8", "replace")) + 2 + numbers * 26
    return total


def beside_roles(
    configs: Mapping[str, dict[str, object]], role: str
) -> dict[str, object]:
    """Return the entries that W&B is to show when the config of *role*, empty without one, has changed.

    W&B's config is one map, in which the configs of roles are entries too. So a top entry with the
    name of a role gives way, also one that was sent before the role came.
    """
    top = configs.get("", {})
    entries: dict[str, object] = {}
    if role:
        entries[role] = configs[role]
    for key, value in top.items():
        # With a role, of all others only the entry that gives way to it changes.
        if not role or key == role:
            entries[_beside(key, top, configs)] = value
    return entries


def _beside(key: str, top: Mapping[str, object], configs: Mapping[str, object]) -> str:
    """Return the name of an entry at the top: longer by ``_value`` until neither a role nor an entry has it."""
    name = key
    while (name and name in configs) or (name != key and name in top):
        name += "_value"
    return name


def clean(value: Json) -> Json:
    """Return *value* as JSON that every server parses: no NaN tokens, no lone surrogates, no endless integers."""
    return with_leaves(value, _cleaned)


def _cleaned(value: Json) -> Json:
    """Return NaN and infinities as text; anything else as `sound_leaf` does."""
    # wandb would send NaN as a bare token, which is not JSON.
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return sound_leaf(value)
