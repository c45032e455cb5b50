"""Selects uvicorn's HTTP parser, with limits for the length and time of a head, and for connections.

The parser is httptools (C) if it is installed; else h11, which limits the head itself and uses uvicorn's limit of
connections.
"""

from __future__ import annotations

import asyncio
import importlib.util
import resource
from collections.abc import Callable
from typing import Final, Literal, cast

HEAD_BYTES: Final = 64 << 10
HEAD_S: Final = 30.0
CONNECTIONS: Final = 1024
_FEWEST: Final = 8
NO_HTTP: Final = "this is not an HTTP/1.1 request: gRPC has its own port (4317), and TLS must be set on both sides"


def max_connections() -> int:
    """Return how many connections a server may have: a quarter of the descriptors, `CONNECTIONS` at most."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return CONNECTIONS if soft == resource.RLIM_INFINITY else min(CONNECTIONS, max(soft // 4, _FEWEST))


def protocol(on_garbage: Callable[[], None]) -> type[asyncio.Protocol] | Literal["h11"]:
    """Return the argument ``http`` of uvicorn.

    Args:
        on_garbage: Called for each connection that does not send HTTP.
    """
    if importlib.util.find_spec("httptools") is None:
        return "h11"
    from otel_bridge_collector.http.limited_protocol import of_one_server  # noqa: PLC0415  # needs httptools

    return cast("type[asyncio.Protocol]", of_one_server(on_garbage))
