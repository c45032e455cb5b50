"""uvicorn's HTTP parser with limits: how long a head may be, and how long it may take to come.

httptools (C) where it is installed; else h11, which has a limit of its own for the head.
"""

from __future__ import annotations

import asyncio
import importlib.util
from typing import TYPE_CHECKING, Any, Final, Literal, cast

HEAD_BYTES: Final = 64 << 10
HEAD_S: Final = 30.0


def protocol() -> type[asyncio.Protocol] | Literal["h11"]:
    """Return what uvicorn takes as its ``http``."""
    return _with_limits() if importlib.util.find_spec("httptools") is not None else "h11"


def _with_limits() -> type[asyncio.Protocol]:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol  # noqa: PLC0415  # needs httptools

    class LimitedProtocol(HttpToolsProtocol):
        """Closes a connection whose head is too long or does not come."""

        if TYPE_CHECKING:
            transport: asyncio.Transport
            loop: asyncio.AbstractEventLoop

        def __init__(self, *args: Any, **keywords: Any) -> None:
            super().__init__(*args, **keywords)
            self._head_bytes = 0
            self._in_head = True

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.loop.call_later(HEAD_S, self._too_slow)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self._in_head:
                self._head_bytes += len(data)
                if self._head_bytes > HEAD_BYTES:
                    self.transport.close()

        def on_message_begin(self) -> None:
            self._in_head, self._head_bytes = True, 0
            super().on_message_begin()

        def on_headers_complete(self) -> None:
            self._in_head = False
            super().on_headers_complete()

        def _too_slow(self) -> None:
            # Later requests of the connection: uvicorn closes one that is idle.
            if self._in_head:
                self.transport.close()

    return cast("type[asyncio.Protocol]", LimitedProtocol)
