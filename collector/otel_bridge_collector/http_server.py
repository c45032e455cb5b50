"""OTLP over HTTP: ``POST /v1/{metrics,traces,logs}``, protobuf, on starlette and uvicorn in a thread."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Final

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from otel_bridge.journal.frames import Signal
from otel_bridge.semconv import HEADER_SERVER
from otel_bridge_collector.answers import RETRY_S, TooLargeError, UnsupportedError, answer_to
from otel_bridge_collector.inflate import inflated
from otel_bridge_collector.tokens import check

_log = logging.getLogger(__name__)

Accept = Callable[[Signal, bytes], None]

_PATHS: Final = {"/v1/metrics": Signal.METRICS, "/v1/traces": Signal.TRACES, "/v1/logs": Signal.LOGS}
_PROTOBUF: Final = "application/x-protobuf"
_CONCURRENCY: Final = 128
_START_S: Final = 10.0


class HttpServer:
    """Listens from construction on, in a thread of its own.

    Args:
        host: Address to bind.
        port: 0: any that is free.
        accept: Stores a request, raises as `Ingest.accept` does.
        tokens: Bearer tokens, one of which a client must send; none: everybody may.
        request_bytes: Largest body, inflated too.

    Raises:
        OSError: The address cannot be bound.
    """

    def __init__(self, host: str, port: int, accept: Accept, *, tokens: Sequence[str], request_bytes: int) -> None:
        self._accept, self._tokens, self._request_bytes = accept, tokens, request_bytes
        self._headers = {HEADER_SERVER: version("otel-bridge")}
        self._socket = _listen(host, port)
        self.port: int = self._socket.getsockname()[1]
        app = Starlette(routes=[Route(path, self._export, methods=["POST"]) for path in _PATHS])
        config = uvicorn.Config(
            app, log_config=None, access_log=False, lifespan="off", limit_concurrency=_CONCURRENCY, server_header=False
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._serve, name="otlp-http", daemon=True)
        self._thread.start()

    def stop(self, grace_s: float) -> None:
        """Take no new request and wait for those under way, at most *grace_s*."""
        self._server.config.timeout_graceful_shutdown = max(int(grace_s), 1)
        self._server.should_exit = True
        self._thread.join(grace_s + _START_S)
        self._socket.close()

    def _serve(self) -> None:
        asyncio.run(self._server.serve(sockets=[self._socket]))

    async def _export(self, request: Request) -> Response:
        try:
            check(self._tokens, request.headers.get("authorization"))
            _check_type(request.headers.get("content-type", ""))
            body = await self._body(request)
            encoding = request.headers.get("content-encoding", "").strip().lower()
            await run_in_threadpool(self._store, _PATHS[request.url.path], body, encoding)
        except Exception as exc:  # noqa: BLE001  # a 500 would be final for clients
            answer = answer_to(exc)
            _log.log(logging.WARNING if answer.retry else logging.INFO, "OTLP/HTTP request refused: %s", exc)
            headers = {**self._headers, "Retry-After": str(RETRY_S)} if answer.retry else self._headers
            body = answer.status().SerializeToString()
            return Response(body, answer.http_status, media_type=_PROTOBUF, headers=headers)
        return Response(b"", 200, media_type=_PROTOBUF, headers=self._headers)

    async def _body(self, request: Request) -> bytes:
        parts: list[bytes] = []
        size = 0
        async for part in request.stream():
            size += len(part)
            if size > self._request_bytes:
                raise TooLargeError(f"request is over {self._request_bytes} bytes; send smaller batches")
            parts.append(part)
        return b"".join(parts)

    def _store(self, signal: Signal, body: bytes, encoding: str) -> None:
        self._accept(signal, inflated(body, encoding, self._request_bytes))


def _check_type(content_type: str) -> None:
    kind = content_type.partition(";")[0].strip().lower()
    if kind != _PROTOBUF:
        raise UnsupportedError(
            f"Content-Type {kind or 'missing'}; this receiver reads {_PROTOBUF}: "
            "set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf"
        )


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(128)
    except OSError:
        listener.close()
        raise
    return listener
