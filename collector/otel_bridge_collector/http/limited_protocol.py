"""Limits the connections of one HTTP server.

uvicorn (0.30 to 0.52) has no setting for the size and time of a request's head with httptools, and
refuses the new connection where this closes the longest silent one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from otel_bridge_collector import limits
from otel_bridge_collector.error_table import NO_HTTP

_log = logging.getLogger("otel_bridge_collector.http")
# uvicorn warns of each malformed request; the receiver counts such requests instead.
_log.setLevel(logging.ERROR)


def of_one_server(on_garbage: Callable[[], None]) -> type[HttpToolsProtocol]:
    """Return the class of one server's connections, which are counted together.

    A new class for each server: uvicorn makes the connections itself, so that only their class can
    carry what they share.
    """
    return type(
        "LimitedProtocol",
        (_LimitedProtocol,),
        {"silent": OrderedDict(), "on_garbage": staticmethod(on_garbage)},
    )


class _LimitedProtocol(HttpToolsProtocol):
    """Closes a connection whose head is too long or too late, and the longest silent one when there are too many.

    Attributes:
        silent: A server's connections without a running request, the longest silent one first.
        on_garbage: Called for each connection that does not send HTTP.
    """

    silent: ClassVar[OrderedDict[_LimitedProtocol, None]]
    on_garbage: Callable[[], None]

    if TYPE_CHECKING:
        transport: asyncio.Transport
        loop: asyncio.AbstractEventLoop

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self.logger = _log
        self._head_bytes = 0
        self._in_head = True
        self._too_late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count a new connection as silent, and close the longest silent one if there are too many."""
        super().connection_made(transport)
        self._limit_head()
        self.silent[self] = None
        if len(self.connections) > limits.max_connections():
            # Not the new connection: a client that opens connections and sends nothing must not
            # shut others out.
            self.silent.popitem(last=False)[0].transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection, and the timer of its head."""
        self.silent.pop(self, None)
        if self._too_late is not None:
            self._too_late.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take data, and close the connection when its head is too long."""
        super().data_received(data)
        if self._in_head:
            # Counted here, because uvicorn has no limit for it with httptools.
            self._head_bytes += len(data)
            if self._head_bytes > limits.HEAD_BYTES:
                self.transport.close()

    def send_400_response(self, msg: str) -> None:
        del msg
        self.on_garbage()
        super().send_400_response(NO_HTTP)

    def on_message_begin(self) -> None:
        # Of the first request the time runs since the connection was made.
        if not self._in_head:
            self._limit_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """End the limits of the head: from here on the server limits the body."""
        self._in_head = False
        if self._too_late is not None:
            self._too_late.cancel()
        self.silent.pop(self, None)
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        # A client may have sent its next request already: it is not silent.
        if not self.pipeline and not self.transport.is_closing():
            self.silent[self] = None
        super().on_response_complete()

    def _limit_head(self) -> None:
        """Limit the bytes and the time of the head that begins."""
        self._in_head = True
        self._head_bytes = 0
        self._too_late = self.loop.call_later(limits.HEAD_S, self.transport.close)
