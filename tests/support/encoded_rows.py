"""Rows of any shape as the emitter encodes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from otel_bridge.emit.encode.row import RowShape
from otel_bridge.emit.encode.values import Value


def encode_row(values: Mapping[str, Value], *arguments: Any, **keywords: Any) -> bytes:
    """Return a row of *values*, or a part of one, whose shape was not seen before; see `RowShape.encode`."""
    return RowShape(values).encode(values, *arguments, **keywords)
