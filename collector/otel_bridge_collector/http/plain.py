"""Serves OTLP over HTTP with the standard library alone, for a launcher without the extra ``collector``.

Each connection has a thread, as in `http.server`, and there are at most 64. Requests are stored on the receiver's event
loop. It is for programs of this machine: a loopback address, no TLS, no pages.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import socketserver
import string
import threading
from collections import OrderedDict
from http.server import BaseHTTPRequestHandler
from importlib.metadata import version
from typing import Any, Final, cast

from otel_bridge.errors import InvalidRecordError
from otel_bridge.journal.frames import Signal
from otel_bridge.semconv import HEADER_SERVER
from otel_bridge_collector.access import BrowserHeaders
from otel_bridge_collector.error_table import MethodError, TooLargeError, UnavailableError, answer_to
from otel_bridge_collector.http.otlp import (
    JSON,
    PATHS,
    PROTOBUF,
    acceptance_body,
    check_type,
    decoded,
    headers_of_refused,
    media_type,
    no_such_path,
    refusal_body,
)
from otel_bridge_collector.ingest import Rejected
from otel_bridge_collector.server_context import ServerContext

_SILENCE_S: Final = 75.0
_DISCARD_BYTES: Final = 64 << 20
_CHUNK_LINE: Final = 1024
_STEP_BYTES: Final = 1 << 20
_LOOK_S: Final = 0.05
_CONNECTIONS: Final = 64
"""Most concurrent connections, each with a thread: more than the processes of one machine open."""
_LENGTH_DIGITS: Final = 18
_SHOWN: Final = 40
"""Characters of a header that an error shows."""


class PlainHttpServer:
    """Listens from construction on, answers between `start` and `stop`. Made and used on the event loop.

    Args:
        host: A loopback address, IPv4.
        port: The port; 0 for any free port.
        serving: Context that all servers share.

    Raises:
        OSError: The address cannot be bound.
    """

    def __init__(self, host: str, port: int, serving: ServerContext) -> None:
        self._limits = serving.limits
        self._server = _Server((host, port), serving)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_LOOK_S,), name="otlp-http", daemon=True
        )

    async def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    async def stop(self, grace_s: float) -> None:
        """Accept no new request and wait for running ones, at most *grace_s*."""
        self._server.stopped = True
        await asyncio.to_thread(self._server.shutdown)
        self._server.server_close()
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + grace_s
        while self._limits.under_way and loop.time() < deadline_s:
            await asyncio.sleep(_LOOK_S)


class _Store:
    """Checks and stores requests for the threads of connections; the event loop does the work."""

    def __init__(self, serving: ServerContext) -> None:
        self._serving = serving
        self._loop = asyncio.get_running_loop()

    def check(self, authorization: str | None, browser: BrowserHeaders) -> None:
        """Raise as `Access.check` does."""
        self._serving.access.check(authorization, browser)

    def put(self, signal: Signal, body: bytes, *, sent_bytes: int) -> Rejected | None:
        """Store one request, which was *sent_bytes* long as sent; raise the same errors as `Ingest.accept`."""
        return asyncio.run_coroutine_threadsafe(self._put(signal, body, sent_bytes), self._loop).result()

    def refuse(self, error: BaseException) -> None:
        """Count a refusal, unless the event loop has ended."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._serving.counters.refuse, answer_to(error), "OTLP/HTTP", error)

    async def _put(self, signal: Signal, body: bytes, sent_bytes: int) -> Rejected | None:
        limits = self._serving.limits
        limits.enter()
        try:
            limits.charge(sent_bytes)
            return await self._serving.accept(signal, body)
        finally:
            limits.leave()


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], serving: ServerContext) -> None:
        self.store, self.request_bytes = _Store(serving), serving.request_bytes
        self.headers = {HEADER_SERVER: version("otel-bridge")}
        self.stopped = False
        self._silent: OrderedDict[socket.socket, None] = OrderedDict()
        self._open = 0
        self._guard = threading.Lock()
        super().__init__(address, _Connection)

    def process_request(self, request: socket.socket | tuple[bytes, socket.socket], client_address: Any) -> None:
        """Give the connection a thread; when there are too many, close the longest silent connection."""
        connection = cast("socket.socket", request)  # of a stream server
        with self._guard:
            self._open += 1
            self._silent[connection] = None
            longest_silent = self._silent.popitem(last=False)[0] if self._open > _CONNECTIONS else None
        if longest_silent is not None:
            with contextlib.suppress(OSError):
                longest_silent.shutdown(socket.SHUT_RDWR)  # its thread reads the end, and closes it
        super().process_request(request, client_address)

    def close_request(self, request: socket.socket | tuple[bytes, socket.socket]) -> None:
        """Close a connection that has ended."""
        with self._guard:
            self._open -= 1
            self._silent.pop(cast("socket.socket", request), None)
        super().close_request(request)

    def mark_busy(self, connection: socket.socket) -> None:
        """Mark a connection as busy, so that it is not closed for a new one."""
        with self._guard:
            self._silent.pop(connection, None)

    def mark_silent(self, connection: socket.socket) -> None:
        """Mark a connection as silent, after its request was answered."""
        with self._guard:
            self._silent[connection] = None

    def handle_error(self, request: object, client_address: object) -> None:
        """Log nothing, because clients may disconnect during a request."""


class _Connection(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _SILENCE_S
    disable_nagle_algorithm = True
    wbufsize = -1  # an answer leaves in one piece

    def do_POST(self) -> None:
        """Store an export request, or answer with the error."""
        is_json = media_type(self.headers.get("Content-Type", "")) == JSON
        self._owner.mark_busy(self.connection)
        try:
            signal = PATHS.get(self.path)
            if signal is None:
                raise no_such_path(self.path)
            rejected = self._stored(signal, is_json=is_json)
        except Exception as exc:  # noqa: BLE001  # a 500 would be final for clients
            self._refuse(exc, is_json=is_json)
            return
        self._answer(200, acceptance_body(signal, rejected, is_json=is_json), is_json=is_json, more={})
        self._owner.mark_silent(self.connection)

    def do_GET(self) -> None:
        """Refuse every other method, because there are no pages."""
        known = self.path in PATHS
        self._refuse(MethodError(f"GET {self.path}: OTLP goes by POST") if known else no_such_path(self.path))

    do_PUT = do_DELETE = do_HEAD = do_OPTIONS = do_GET  # noqa: N815  # names of http.server

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # http.server's name
        """Log nothing, because requests are counted."""

    @property
    def _owner(self) -> _Server:
        return cast("_Server", self.server)

    def _stored(self, signal: Signal, *, is_json: bool) -> Rejected | None:
        store, limit_bytes = self._owner.store, self._owner.request_bytes
        browser = BrowserHeaders(self.headers.get("Origin"), self.headers.get("Sec-Fetch-Site"))
        store.check(self.headers.get("Authorization"), browser)
        check_type(media_type(self.headers.get("Content-Type", "")))
        sent = self._body(limit_bytes)
        encoding = self.headers.get("Content-Encoding", "").strip().lower()
        body = decoded(signal, sent, encoding, is_json=is_json, limit_bytes=limit_bytes)
        if self._owner.stopped:
            raise UnavailableError("the receiver is shutting down; send it again")
        return store.put(signal, body, sent_bytes=len(sent))

    def _body(self, limit_bytes: int) -> bytes:
        if self.headers.get("Transfer-Encoding", "").strip().lower() == "chunked":
            return self._chunks(limit_bytes)
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdecimal()):
            seen = length[:_SHOWN] or "missing"
            raise InvalidRecordError(f"Content-Length {seen}: expected the number of bytes that follow")
        if len(length) > _LENGTH_DIGITS:
            raise TooLargeError(f"request is over {limit_bytes} bytes; send smaller batches")
        if int(length) > limit_bytes:
            self._discard(int(length))
            raise TooLargeError(f"request is over {limit_bytes} bytes; send smaller batches")
        return self._exactly(int(length))

    def _chunks(self, limit_bytes: int) -> bytes:
        """Read a body that comes in chunks (RFC 9112, 7.1)."""
        parts: list[bytes] = []
        room = limit_bytes
        while (size := self._chunk_bytes()) and room > -_DISCARD_BYTES:
            room -= size
            if room < 0:
                self._discard(size)
            else:
                parts.append(self._exactly(size))
            self.rfile.readline(_CHUNK_LINE)
        if room < 0:
            raise TooLargeError(f"request is over {limit_bytes} bytes; send smaller batches")
        while self.rfile.readline(_CHUNK_LINE).strip():  # trailers
            pass
        return b"".join(parts)

    def _chunk_bytes(self) -> int:
        line = self.rfile.readline(_CHUNK_LINE).partition(b";")[0].strip()
        if not line or line.strip(string.hexdigits.encode()):
            raise InvalidRecordError(f"{line[:20]!r} where the size of a chunk was expected")
        return int(line, 16)

    def _exactly(self, size: int) -> bytes:
        body = self.rfile.read(size)
        if len(body) < size:
            raise InvalidRecordError("the client closed the connection before the end of its request")
        return body

    def _discard(self, size: int) -> None:
        """Read a refused body, because a client that still sends does not read the answer."""
        left = min(size, _DISCARD_BYTES)
        while left > 0 and (part := self.rfile.read(min(left, _STEP_BYTES))):
            left -= len(part)

    def _refuse(self, error: Exception, *, is_json: bool = False) -> None:
        answer = answer_to(error)
        self._owner.store.refuse(error)
        self.close_connection = True  # the position in the body is unknown
        more = {"Connection": "close", **headers_of_refused(answer)}
        self._answer(answer.http_status, refusal_body(answer, is_json=is_json), is_json=is_json, more=more)

    def _answer(self, status: int, body: bytes, *, is_json: bool, more: dict[str, str]) -> None:
        self.send_response_only(status)
        shown = {"Content-Type": JSON if is_json else PROTOBUF, "Content-Length": str(len(body))}
        for name, value in {**shown, **self._owner.headers, **more}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        self.wfile.flush()
