"""``reduce=`` of ``log()`` -> values of the row that choose how its values are merged over ranks.

As values of the row they survive whatever cuts, orders or repeats rows on the way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeAlias, cast

from otel_bridge.errors import any_error_but_signals
from otel_bridge.semconv import REDUCE_PREFIX
from otel_bridge.values.plain import CountKeyedDrop

Reduction: TypeAlias = str | tuple[str, float]
"""Name of a reduction, or ``("mean", weight)``."""
_NAMES = frozenset({"mean", "sum", "min", "max"})


def with_reductions(values: object, reduce: object, drop: CountKeyedDrop) -> object:
    """Return *values* with one more value for each reduction.

    Those that cannot be used are counted as ``bad_reduce``: the row is recorded, and its mean is
    shown. *values* that are not a mapping are returned as they are, and counted as
    ``not_a_mapping`` where they are encoded. What reading a mapping or a key of the program raises
    is raised: then `Run.log` counts the call as ``internal_error``.

    Args:
        values: Values of ``log()``.
        reduce: Reduction by key.
        drop: Callable that counts the reductions left out.
    """
    if not isinstance(values, Mapping) or not isinstance(reduce, Mapping):
        drop("bad_reduce", 1, "")
        return values  # pyright: ignore[reportUnknownVariableType]  # counted where it is encoded
    row: dict[object, object] = dict(cast("Mapping[object, object]", values))
    for key, reduction in cast("Mapping[object, object]", reduce).items():
        try:
            name, weight = _named(reduction)
        except any_error_but_signals():
            # Numbers of any library convert by code of their own.
            drop("bad_reduce", 1, str(key))
            continue
        row[f"{REDUCE_PREFIX}{name}/{key}"] = weight
    return row


def _named(reduction: object) -> tuple[str, float]:
    """Return name and weight.

    Raises `ValueError` when they cannot be used, or what a number's conversion raises.
    """
    name = reduction
    weight = 1.0
    if isinstance(reduction, tuple | list):
        name, given_weight = cast("tuple[object, float]", reduction)
        weight = float(given_weight)
    if name not in _NAMES or not 0 <= weight < math.inf:
        raise ValueError(f"{name}, {weight}")
    return str(name), weight
