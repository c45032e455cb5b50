"""OTLP over HTTP with the standard library alone: the receiver of a launcher that has no extra ``collector``.

A thread a connection, as `http.server` has it; what comes is stored on the receiver's event loop. For programs of this
machine: a loopback address, no TLS, no pages.
"""

from __future__ import annotations

import asyncio
import contextlib
import socketserver
import string
import threading
from http.server import BaseHTTPRequestHandler
from importlib.metadata import version
from typing import Final, cast

from otel_bridge.errors import InvalidRecordError
from otel_bridge.journal.frames import Signal
from otel_bridge.semconv import HEADER_SERVER
from otel_bridge_collector.answers import MethodError, TooLargeError, UnavailableError, answer_to
from otel_bridge_collector.ingest import Rejected
from otel_bridge_collector.otlp_http import (
    JSON,
    PATHS,
    PROTOBUF,
    check_type,
    decoded,
    headers_of_refused,
    media_type,
    no_such_path,
    said_of_refused,
    said_of_taken,
)
from otel_bridge_collector.serving import Serving

_SILENCE_S: Final = 75.0
_DISCARD_BYTES: Final = 64 << 20
_CHUNK_LINE: Final = 1024
_STEP_BYTES: Final = 1 << 20
_LOOK_S: Final = 0.05


class PlainHttpServer:
    """Listens from construction on, answers between `start` and `stop`. Made and used on the event loop.

    Args:
        host: A loopback address, IPv4.
        port: 0: any that is free.
        serving: What it works with.

    Raises:
        OSError: The address cannot be bound.
    """

    def __init__(self, host: str, port: int, serving: Serving) -> None:
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
        """Take no new request and wait for those under way, at most *grace_s*."""
        self._server.stopped = True
        await asyncio.to_thread(self._server.shutdown)
        self._server.server_close()
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + grace_s
        while self._limits.under_way and loop.time() < deadline_s:
            await asyncio.sleep(_LOOK_S)


class _Store:
    """Checks and stores requests: called by the threads of connections, done on the event loop."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._loop = asyncio.get_running_loop()

    def check(self, authorization: str | None, origin: str | None) -> None:
        """Raise as `Access.check` does."""
        self._serving.access.check(authorization, origin)

    def put(self, signal: Signal, body: bytes, *, sent_bytes: int) -> Rejected | None:
        """Store one request, *sent_bytes* long on the way; it is safe when this returns. Raises as `Ingest.accept`."""
        return asyncio.run_coroutine_threadsafe(self._put(signal, body, sent_bytes), self._loop).result()

    def refuse(self, error: BaseException) -> None:
        """Count a refusal; nobody counts after the end."""
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

    def __init__(self, address: tuple[str, int], serving: Serving) -> None:
        self.store, self.request_bytes = _Store(serving), serving.request_bytes
        self.headers = {HEADER_SERVER: version("otel-bridge")}
        self.stopped = False
        super().__init__(address, _Connection)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away in the middle of something is no news."""


class _Connection(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _SILENCE_S
    disable_nagle_algorithm = True
    wbufsize = -1  # an answer leaves in one piece

    def do_POST(self) -> None:
        """Store an export request, or say why not."""
        is_json = media_type(self.headers.get("Content-Type", "")) == JSON
        try:
            signal = PATHS.get(self.path)
            if signal is None:
                raise no_such_path(self.path)
            rejected = self._stored(signal, is_json=is_json)
        except Exception as exc:  # noqa: BLE001  # a 500 would be final for clients
            self._refuse(exc, is_json=is_json)
            return
        self._answer(200, said_of_taken(signal, rejected, is_json=is_json), is_json=is_json, more={})

    def do_GET(self) -> None:
        """There is nothing to see."""
        known = self.path in PATHS
        self._refuse(MethodError(f"GET {self.path}: OTLP goes by POST") if known else no_such_path(self.path))

    do_PUT = do_DELETE = do_HEAD = do_OPTIONS = do_GET  # noqa: N815  # names of http.server

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # http.server's name
        """Requests are counted, not listed."""

    @property
    def _owner(self) -> _Server:
        return cast("_Server", self.server)

    def _stored(self, signal: Signal, *, is_json: bool) -> Rejected | None:
        store, limit_bytes = self._owner.store, self._owner.request_bytes
        store.check(self.headers.get("Authorization"), self.headers.get("Origin"))
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
        if not length.isdecimal():
            raise InvalidRecordError(f"Content-Length {length or 'missing'}: expected the number of bytes that follow")
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
        """Read a refused body: a client that still sends does not look for the answer."""
        left = min(size, _DISCARD_BYTES)
        while left > 0 and (part := self.rfile.read(min(left, _STEP_BYTES))):
            left -= len(part)

    def _refuse(self, error: Exception, *, is_json: bool = False) -> None:
        answer = answer_to(error)
        self._owner.store.refuse(error)
        self.close_connection = True  # how much of the body is read is not known
        more = {"Connection": "close", **headers_of_refused(answer)}
        self._answer(answer.http_status, said_of_refused(answer, is_json=is_json), is_json=is_json, more=more)

    def _answer(self, status: int, body: bytes, *, is_json: bool, more: dict[str, str]) -> None:
        self.send_response_only(status)
        shown = {"Content-Type": JSON if is_json else PROTOBUF, "Content-Length": str(len(body))}
        for name, value in {**shown, **self._owner.headers, **more}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        self.wfile.flush()
