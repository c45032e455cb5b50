"""uvicorn's HTTP parser with limits: of a head's length and time, and of connections.

httptools (C) where it is installed; else h11, which has limits of its own for the head, and uvicorn's for connections.
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable
from typing import Final, Literal, cast

HEAD_BYTES: Final = 64 << 10
HEAD_S: Final = 30.0
CONNECTIONS: Final = 1024
NO_HTTP: Final = "this is no HTTP/1.1 request: gRPC has a port of its own (4317), and TLS must be wanted by both sides"


def protocol(on_garbage: Callable[[], None]) -> type[asyncio.Protocol] | Literal["h11"]:
    """Return what uvicorn takes as its ``http``.

    Args:
        on_garbage: Called for each connection that sends no HTTP.
    """
    if importlib.util.find_spec("httptools") is None:
        return "h11"
    from otel_bridge_collector.limited_protocol import of_one_server  # noqa: PLC0415  # needs httptools

    return cast("type[asyncio.Protocol]", of_one_server(on_garbage))
