"""Serves OTLP over gRPC: three unary methods that pass raw bytes to `Ingest`, on the event loop.

gRPC neither parses, decompresses nor builds messages, and the empty response is constant. The
methods are served as streams of one message. gRPC would read the message of a unary method into
memory before the metadata can be checked. As a stream, a client without a token is refused before
its message is read.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from importlib.metadata import version
from typing import cast

import grpc
import grpc.aio

from otel_bridge.errors import InvalidRecordError
from otel_bridge.journal.frames import Signal
from otel_bridge.semconv import HEADER_SERVER
from otel_bridge_collector.access import Tls
from otel_bridge_collector.error_table import TooLargeError, answer_to
from otel_bridge_collector.export_request import partial_success
from otel_bridge_collector.http.inflate import QUICK_BYTES, inflated_message
from otel_bridge_collector.ingest import Rejected
from otel_bridge_collector.limits import max_connections
from otel_bridge_collector.server_context import ServerContext

_METHODS = {
    "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export": Signal.METRICS,
    "/opentelemetry.proto.collector.trace.v1.TraceService/Export": Signal.TRACES,
    "/opentelemetry.proto.collector.logs.v1.LogsService/Export": Signal.LOGS,
}
_STREAMS = 64
"""Most concurrent requests of one connection. A client with more delays some itself, and is refused
others (UNAVAILABLE), which it sends again: gRPC (1.85) counts a request until its handler is gone.
That protection stays on: without it, requests that are reset at once take the memory of 100,000."""
# By default gRPC closes connections of clients that ping more often than every five minutes.
_PING_MS = 5_000
_HEAD_BYTES = 64 << 10
BODY_S = 60.0
"""Seconds that a client has to send its message after its metadata."""
_HANDSHAKE_MS = 10_000
_IDLE_MS = 120_000
"""Time without a request after which a connection is closed; clients open another one
themselves."""
_SILENCE_MS = 60_000
"""Time after which a silent client is pinged; its connection is closed when it does not answer."""
_PROBE_S = 0.5
_CODES = {code.value[0]: code for code in grpc.StatusCode}


class GrpcServer:
    """Listens between `start` and `stop`. Made and used on the event loop.

    Args:
        address: ``host:port``; port 0 for any free port.
        serving: Context that all servers share.
        tls: Files of TLS; ``None`` for plain text.

    Raises:
        RuntimeError: The address cannot be bound.
    """

    def __init__(
        self, address: str, serving: ServerContext, *, tls: Tls | None
    ) -> None:
        self._server = grpc.aio.server(  # pyright: ignore[reportUnknownMemberType]  # stubs leave handlers open
            options=[
                ("grpc.max_receive_message_length", serving.request_bytes),
                ("grpc.max_concurrent_streams", _STREAMS),
                ("grpc.max_metadata_size", _HEAD_BYTES),
                (
                    "grpc.so_reuseport",
                    0,
                ),  # two receivers on one port would each get half
                # Inflated here, bounded whatever the version of gRPC.
                ("grpc.per_message_decompression", 0),
                ("grpc.http2.min_recv_ping_interval_without_data_ms", _PING_MS),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.keepalive_time_ms", _SILENCE_MS),
                ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
                ("grpc.max_connection_idle_ms", _IDLE_MS),
                ("grpc.max_allowed_incoming_connections", max_connections()),
            ]
        )
        self._server.add_generic_rpc_handlers((_GrpcHandler(serving),))  # pyright: ignore[reportUnknownMemberType]  # stubs
        self._host = address.rpartition(":")[0].strip("[]")
        if tls is None:
            self.port = self._server.add_insecure_port(address)
        else:
            self.port = self._server.add_secure_port(address, _credentials(tls))

    async def start(self) -> None:
        """Begin to answer."""
        await self._server.start()

    def refusal(self) -> str:
        """Return why a new client is turned away: all connections are taken; empty when they are not.

        Blocks for at most `_PROBE_S`, so not for the event loop.
        """
        if not self._is_full():
            return ""
        idle_s = _IDLE_MS // 1000
        return f"all {max_connections():,} connections of gRPC are taken; silent ones are closed after {idle_s} s"

    def _is_full(self) -> bool:
        """Return whether a new connection is closed at once.

        Found by making one. No answer within `_PROBE_S` means that it is not: with TLS the server
        waits for the client's first message.
        """
        # gRPC does not count its connections for others (1.76), but it closes those above the limit
        # at once. Below the limit it sends its settings, or waits for the client's part of TLS.
        try:
            with socket.create_connection((self._host, self.port), _PROBE_S) as probe:
                return probe.recv(1) == b""
        except TimeoutError:
            return False
        except OSError:
            return True

    async def stop(self, grace_s: float) -> None:
        """Accept no new request and wait for running ones, at most *grace_s*.

        The rest is cancelled.
        """
        await self._server.stop(grace_s)


class _GrpcHandler(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # no generic at run time  # pyright: ignore[reportMissingTypeArgument]
    def __init__(self, serving: ServerContext) -> None:
        self._serving = serving
        self._trailers = ((HEADER_SERVER, version("otel-bridge")),)
        self._methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {}
        for path, signal in _METHODS.items():
            self._methods[path] = self._method(signal)

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        """Return the handler of a method; for ``None`` gRPC itself answers UNIMPLEMENTED."""
        return self._methods.get(handler_call_details.method)

    def _method(self, signal: Signal) -> grpc.RpcMethodHandler[bytes, bytes]:
        """Return the handler of one signal's requests, which serves a stream of one message."""

        async def export(
            _messages: object, context: grpc.aio.ServicerContext[bytes, bytes]
        ) -> bytes:
            return await self._export(signal, context)

        return grpc.stream_unary_rpc_method_handler(export)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]  # stubs

    async def _export(
        self, signal: Signal, context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> bytes:
        """Store the request of one signal, or end the call with the status of the error.

        An error that left here would become UNKNOWN, which is final for clients: their data would
        be lost.
        """
        try:
            rejected = await self._store(signal, context)
        except Exception as exc:  # an error that leaves here becomes UNKNOWN, which is final for clients
            answer = answer_to(exc)
            self._serving.counters.refuse(answer, "OTLP/gRPC", exc)
            await context.abort(
                _CODES[answer.grpc_code],
                answer.message,
                (*self._trailers, *answer.trailers()),
            )
            raise  # for the type checker: refusing ends the call
        # Sent with the status, not before the response: one operation less for each request.
        context.set_trailing_metadata(self._trailers)
        if rejected is None:
            return b""
        response = partial_success(signal, rejected.items, rejected.reason)
        return response.SerializeToString()

    async def _store(
        self, signal: Signal, context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> Rejected | None:
        """Store the one message of a call; return its rejected part. Raises as `Ingest.accept` does.

        Also `UnauthenticatedError`, `ForbiddenError` and `ThrottledError`, the first two before the
        message is read.
        """
        serving = self._serving
        sent = cast("Iterable[tuple[str, str]]", context.invocation_metadata() or ())
        token = serving.access.check(dict(sent))
        # After the token, so that clients without one cannot use up the limit.
        serving.limits.enter()
        try:
            body = await self._message(context)
            serving.heap.note(len(body))
            serving.limits.charge(len(body))
            return await serving.accept(signal, await self._inflated(body), token)
        finally:
            serving.limits.leave()

    async def _message(self, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        """Read the one message of a call.

        Raises:
            InvalidRecordError: It did not come in time, the client sent none, or gRPC refused it.
        """
        try:
            # `grpc.aio.EOF` where the client sent no message.
            message = cast(
                "bytes | object", await asyncio.wait_for(context.read(), BODY_S)
            )
        except asyncio.TimeoutError as exc:
            raise InvalidRecordError(
                f"the message did not come within {BODY_S:.0f} s"
            ) from exc
        if not isinstance(message, bytes):
            # gRPC has answered the client itself, and does not say here that it has.
            raise InvalidRecordError(
                "no message came: the client sent none, or gRPC refused it "
                f"(over {self._serving.request_bytes} bytes, or neither gzip nor deflate)"
            )
        return message

    async def _inflated(self, body: bytes) -> bytes:
        """Return the message as it was before compression; raises as `inflated_message` does.

        A large one is inflated in a thread, so that other requests are answered meanwhile.
        """
        limit_bytes = self._serving.request_bytes
        try:
            return inflated_message(body, min(QUICK_BYTES, limit_bytes))
        except TooLargeError:
            # Only the limit for the event loop: a thread inflates it with the real one.
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(
                self._serving.decoding, inflated_message, body, limit_bytes
            )


def _credentials(tls: Tls) -> grpc.ServerCredentials:
    """Return the server's TLS; clients need a certificate if there is a CA for them.

    The files were read before, by `Tls.check`; raises `OSError` if one is gone since.
    """
    ca = None
    if tls.client_ca is not None:
        ca = tls.client_ca.read_bytes()
    pair = (tls.key.read_bytes(), tls.certificate.read_bytes())
    return grpc.ssl_server_credentials(
        [pair], root_certificates=ca, require_client_auth=ca is not None
    )
