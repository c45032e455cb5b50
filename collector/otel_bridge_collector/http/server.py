"""Serves OTLP over HTTP (``POST /v1/{metrics,traces,logs}``, protobuf and JSON) and the pages for operators.

It uses starlette and uvicorn, on the event loop of the receiver.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import cast

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from otel_bridge.errors import InvalidRecordError
from otel_bridge.journal.frames import Signal
from otel_bridge.semconv import HEADER_SERVER
from otel_bridge_collector.access import Tls
from otel_bridge_collector.error_table import (
    NO_HTTP,
    MethodError,
    TooLargeError,
    answer_to,
)
from otel_bridge_collector.http.inflate import QUICK_BYTES
from otel_bridge_collector.http.limited_protocol import of_one_server
from otel_bridge_collector.http.otlp import (
    JSON,
    PATHS,
    PROTOBUF,
    QUICK_JSON_BYTES,
    acceptance_body,
    check_type,
    decoded,
    headers_of_refused,
    media_type,
    no_such_path,
    refusal_body,
)
from otel_bridge_collector.ingest import Rejected
from otel_bridge_collector.limits import max_connections
from otel_bridge_collector.server_context import ServerContext

# Longer than the SDKs' usual 60 s between two exports, so that a connection is used again.
_KEEP_ALIVE_S = 75
_BODY_S = 60.0
_DISCARD_BYTES = 64 << 20
_DISCARD_S = 2.0
_SHOWN = 200
"""Most characters of an unknown path that an error shows."""


@dataclass(frozen=True, slots=True)
class OpsEndpoints:
    """Holds the functions that make the pages for operators; called outside the event loop.

    Attributes:
        unready: Returns one line per reason why data cannot be accepted; no line when it can.
        metrics: Returns the service's own metrics, in the text format of Prometheus.
        status: Returns every run, as JSON; ``None`` when this receiver has no such page.
    """

    unready: Callable[[], list[str]]
    metrics: Callable[[], str]
    status: Callable[[], bytes] | None = None


class HttpServer:
    """Listens from construction on, answers between `start` and `stop`. Made and used on the event loop.

    Args:
        host: Address to bind.
        port: The port; 0 for any free port.
        serving: Context that all servers share.
        tls: Files of TLS; ``None`` for plain text.
        pages: Makes ``/readyz``, ``/metrics`` and ``/status``.

    Raises:
        OSError: The address cannot be bound.
    """

    def __init__(
        self,
        host: str,
        port: int,
        serving: ServerContext,
        *,
        tls: Tls | None,
        pages: OpsEndpoints,
    ) -> None:
        self._serving = serving
        self._pages = pages
        # However many clients request a page that takes long, one is made at a time.
        self._making_page = asyncio.Lock()
        self._headers = {HEADER_SERVER: version("otel-bridge")}
        self._socket = _listen(host, port)
        self.port: int = self._socket.getsockname()[1]
        app = Starlette(
            routes=[
                *(Route(path, self._export, methods=["POST"]) for path in PATHS),
                Route("/healthz", self._healthz, methods=["GET"]),
                Route("/readyz", self._readyz, methods=["GET"]),
                Route("/metrics", self._metrics, methods=["GET"]),
            ],
            exception_handlers={HTTPException: self._no_such_page},
        )
        if pages.status is not None:
            app.routes.append(Route("/status", self._status, methods=["GET"]))
        # A redirect behind a proxy may send the token unencrypted.
        app.router.redirect_slashes = False
        config = uvicorn.Config(
            app,
            http=cast("type[asyncio.Protocol]", of_one_server(self._count_garbage)),
            # The receiver has its own loop, which gRPC uses too.
            loop="none",
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            # Python accepts as many connections at once, before the longest silent ones can be
            # closed for them.
            backlog=max_connections(),
            timeout_keep_alive=_KEEP_ALIVE_S,
            server_header=False,
            ssl_certfile=None if tls is None else tls.certificate,
            ssl_keyfile=None if tls is None else tls.key,
        )
        if tls is not None and tls.client_ca is not None:
            config.ssl_ca_certs = str(tls.client_ca)
            config.ssl_cert_reqs = ssl.CERT_REQUIRED
        config.load()
        self._server = uvicorn.Server(config)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to answer."""
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]))

    async def stop(self, grace_s: float) -> None:
        """Accept no new request and wait for running ones, at most *grace_s*; the rest is cancelled.

        Raises what ended the server's task, if an error did.
        """
        self._server.config.timeout_graceful_shutdown = max(int(grace_s), 1)
        self._server.should_exit = True
        if self._task is not None:
            # The event loop ends soon, and with it what uvicorn could not.
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._task, grace_s + 2)
        self._socket.close()

    def _count_garbage(self) -> None:
        error = InvalidRecordError(NO_HTTP)
        self._serving.counters.refuse(answer_to(error), "HTTP", error)

    async def _healthz(self, request: Request) -> Response:
        del request
        return Response("alive\n", headers=self._headers)

    async def _readyz(self, request: Request) -> Response:
        """Answer 200 ``ready``, or 503 with one line per reason; no token is needed."""
        del request
        reasons = await asyncio.to_thread(self._pages.unready)
        text = "\n".join(reasons) or "ready"
        return Response(f"{text}\n", 503 if reasons else 200, headers=self._headers)

    async def _metrics(self, request: Request) -> Response:
        return await self._page(
            request, self._pages.metrics, "text/plain; version=0.0.4"
        )

    async def _status(self, request: Request) -> Response:
        return await self._page(request, self._pages.status or bytes, JSON)

    async def _page(
        self, request: Request, make: Callable[[], str | bytes], media_type: str
    ) -> Response:
        """Answer with a page that only clients that may send can see.

        Others get the refusal of the table as text. Nothing is counted: it is not a request of
        OTLP. An error of *make* is answered with 500.
        """
        try:
            self._serving.access.check(request.headers, is_page=True)
        except Exception as exc:  # noqa: BLE001  # answered by the table
            answer = answer_to(exc)
            return Response(
                f"{answer.message}\n", answer.http_status, headers=self._headers
            )
        async with self._making_page:
            page = await asyncio.to_thread(make)
        return Response(page, media_type=media_type, headers=self._headers)

    async def _no_such_page(self, request: Request, exc: Exception) -> Response:
        """Answer 404, or 405 for a path that exists with another method; both are counted."""
        # Not from `url`, which contains the client's header `Host`.
        path: str = request.scope["path"]
        if isinstance(exc, HTTPException) and exc.status_code == 405:
            allowed = "POST" if path in PATHS else "GET"
            error = MethodError(f"{request.method} {path}: expected {allowed}")
            return self._refusal(request, error, "HTTP", Allow=allowed)
        return self._refusal(request, no_such_path(path[:_SHOWN]), "HTTP")

    async def _export(self, request: Request) -> Response:
        """Store the request of one signal; any error becomes the answer of the table."""
        signal = PATHS[request.scope["path"]]
        try:
            rejected = await self._store(signal, request)
        except Exception as exc:  # noqa: BLE001  # a 500 would be final for clients
            # Before the answer: a client that still sends would see a reset, and not the reason.
            await _discard_body(request)
            return self._refusal(request, exc, "OTLP/HTTP")
        is_json = _is_json(request.headers)
        return Response(
            acceptance_body(signal, rejected, is_json=is_json),
            media_type=JSON if is_json else PROTOBUF,
            headers=self._headers,
        )

    def _refusal(
        self, request: Request, error: Exception, protocol: str, **headers: str
    ) -> Response:
        """Count a refusal, and return its answer, in the form (JSON or protobuf) of the request."""
        answer = answer_to(error)
        self._serving.counters.refuse(answer, protocol, error)
        is_json = _is_json(request.headers)
        return Response(
            refusal_body(answer, is_json=is_json),
            answer.http_status,
            media_type=JSON if is_json else PROTOBUF,
            headers={**self._headers, **headers_of_refused(answer), **headers},
        )

    async def _store(self, signal: Signal, request: Request) -> Rejected | None:
        """Store the body of a request; return its rejected part. Raises as `Ingest.accept` does.

        Also the errors of access, limits, media type and encoding. What the head shows is refused
        before the body is read.
        """
        serving = self._serving
        headers = request.headers
        # First of all: bodies are what takes memory, so that none is read beyond the limit.
        serving.limits.enter()
        try:
            # A client without a token leaves before anything awaits, so that it cannot use up the
            # limit.
            token = serving.access.check(headers)
            check_type(media_type(headers.get("content-type", "")))
            # Everything that the head shows is checked before the body is read. httptools has refused a
            # length that is not a number.
            announced_bytes = int(headers.get("content-length", 0))
            if announced_bytes > serving.request_bytes:
                raise TooLargeError(
                    f"request of {announced_bytes} bytes, at most {serving.request_bytes}; send smaller batches"
                )
            body = await self._body(request)
            serving.heap.note(len(body))
            serving.limits.charge(len(body))
            return await serving.accept(
                signal, await self._decoded(signal, body, headers), token
            )
        finally:
            serving.limits.leave()

    async def _body(self, request: Request) -> bytes:
        """Return the body.

        Raises:
            TooLargeError: It is over the limit; the rest is not read here.
            InvalidRecordError: It did not come within `_BODY_S`, or the client left.
        """
        try:
            return await asyncio.wait_for(
                _body_of(request, self._serving.request_bytes), _BODY_S
            )
        except asyncio.TimeoutError as exc:
            raise InvalidRecordError(
                f"the body did not come within {_BODY_S:.0f} s"
            ) from exc
        except ClientDisconnect as exc:
            raise InvalidRecordError(
                "the client closed the connection before the end of its request"
            ) from exc

    async def _decoded(self, signal: Signal, body: bytes, headers: Headers) -> bytes:
        """Return the body as protobuf; raises as `otlp.decoded` does.

        Small bodies on the event loop, since a thread costs more than they do; a large one in a
        thread, so that other requests are answered meanwhile.
        """
        is_json = _is_json(headers)
        encoding = headers.get("content-encoding", "").strip().lower()
        decode = partial(decoded, signal, body, encoding, is_json=is_json)
        limit_bytes = self._serving.request_bytes
        try:
            quick_bytes = QUICK_JSON_BYTES if is_json else QUICK_BYTES
            return decode(limit_bytes=min(quick_bytes, limit_bytes))
        except TooLargeError:
            # Only the limit for the event loop: a thread decodes it with the real one.
            return await asyncio.get_running_loop().run_in_executor(
                self._serving.decoding, partial(decode, limit_bytes=limit_bytes)
            )


async def _body_of(request: Request, limit_bytes: int) -> bytes:
    """Return the whole body.

    Raise `TooLargeError` beyond *limit_bytes*, without reading the rest.
    """
    parts: list[bytes] = []
    size_bytes = 0
    async for part in request.stream():
        size_bytes += len(part)
        if size_bytes > limit_bytes:
            raise TooLargeError(
                f"request is over {limit_bytes} bytes; send smaller batches"
            )
        parts.append(part)
    return b"".join(parts)


async def _discard_body(request: Request) -> None:
    """Read the rest of a refused body, because a client that still sends does not read the answer.

    At most `_DISCARD_BYTES`, for `_BODY_S`, and no longer than the client pauses for `_DISCARD_S`.
    Raises nothing.
    """
    remaining_bytes = _DISCARD_BYTES
    # Once answered, a connection gives way to others. A client that sends byte by byte, without a
    # token too, would keep it from that.
    until_s = time.monotonic() + _BODY_S
    stream = request.stream()
    # RuntimeError: it was read whole. A client that stops sending, or leaves, needs no patience.
    with contextlib.suppress(asyncio.TimeoutError, ClientDisconnect, RuntimeError):
        while remaining_bytes > 0 and time.monotonic() < until_s:
            part = await asyncio.wait_for(anext(stream, b""), _DISCARD_S)
            if not part:
                return
            remaining_bytes -= len(part)


def _is_json(headers: Headers) -> bool:
    return media_type(headers.get("content-type", "")) == JSON


def _listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; raises `OSError` when the address cannot be bound."""
    family = socket.AF_INET
    if ":" in host:
        family = socket.AF_INET6
    # Named as TCP, since asyncio turns Nagle's algorithm off only for such sockets: uvicorn writes
    # head and body apart, and the body would wait 40 ms for the client's delayed ACK.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        # A restarted service gets its port at once, although old connections linger.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(128)
    except OSError:
        listener.close()
        raise
    return listener
