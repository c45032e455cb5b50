"""Rows of any shape as the emitter encodes them."""

from __future__ import annotations

from collections.abc import Mapping

from otel_bridge.emit.encode.row import RowShape
from otel_bridge.emit.encode.values import Value


def encode_row(
    values: Mapping[str, Value],
    time_unix_ns: int,
    step: int,
    role: str | None,
    seq: int | None,
    *,
    earlier_values: int = 0,
    own_ns: int = 0,
) -> bytes:
    """Return a row of *values*, or a part of one, whose shape was not seen before; see `RowShape.encode`."""
    return RowShape(values).encode(
        values,
        time_unix_ns,
        step,
        role,
        seq,
        earlier_values=earlier_values,
        own_ns=own_ns,
    )
