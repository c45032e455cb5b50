"""OTLP over gRPC: three unary methods that hand raw bytes on, on the event loop.

Messages are neither parsed, inflated nor built by gRPC: the bytes go to `Ingest`, and the empty response is constant.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Final, cast

import grpc
import grpc.aio

from otel_bridge.journal.frames import Signal
from otel_bridge.semconv import HEADER_SERVER
from otel_bridge_collector.access import Tls
from otel_bridge_collector.answers import answer_to
from otel_bridge_collector.inflate import inflated_message
from otel_bridge_collector.ingest import Rejected
from otel_bridge_collector.items import partial_success
from otel_bridge_collector.serving import Serving

_METHODS: Final = {
    "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export": Signal.METRICS,
    "/opentelemetry.proto.collector.trace.v1.TraceService/Export": Signal.TRACES,
    "/opentelemetry.proto.collector.logs.v1.LogsService/Export": Signal.LOGS,
}
_STREAMS: Final = 64
"""Requests under way on one connection; a client holds further ones back by itself (HTTP/2), which loses none."""
_PING_MS: Final = 5_000
_HEAD_BYTES: Final = 64 << 10
LARGE_BYTES: Final = 1 << 20
"""Compressed requests above this are inflated beside the event loop."""
_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}


class GrpcServer:
    """Listens between `start` and `stop`. Made and used on the event loop.

    Args:
        address: ``host:port``; port 0: any that is free.
        serving: What it works with.
        tls: Files of TLS; ``None``: plain text.

    Raises:
        RuntimeError: The address cannot be bound.
    """

    def __init__(self, address: str, serving: Serving, *, tls: Tls | None) -> None:
        self._server = grpc.aio.server(  # pyright: ignore[reportUnknownMemberType]  # stubs leave handlers open
            options=[
                ("grpc.max_receive_message_length", serving.request_bytes),
                ("grpc.max_concurrent_streams", _STREAMS),
                ("grpc.max_metadata_size", _HEAD_BYTES),
                ("grpc.so_reuseport", 0),  # two receivers on one port would each get half
                ("grpc.per_message_decompression", 0),  # inflated here, bounded whatever the version of gRPC
                ("grpc.http2.min_recv_ping_interval_without_data_ms", _PING_MS),
                ("grpc.keepalive_permit_without_calls", 1),
            ]
        )
        self._server.add_generic_rpc_handlers((_Handler(serving),))  # pyright: ignore[reportUnknownMemberType]  # stubs
        if tls is None:
            self.port = self._server.add_insecure_port(address)
        else:
            self.port = self._server.add_secure_port(address, _credentials(tls))

    async def start(self) -> None:
        """Begin to answer."""
        await self._server.start()

    async def stop(self, grace_s: float) -> None:
        """Take no new request and wait for those under way, at most *grace_s*."""
        await self._server.stop(grace_s)


class _Handler(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # no generic at run time  # pyright: ignore[reportMissingTypeArgument]
    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._trailers = ((HEADER_SERVER, version("otel-bridge")),)
        self._methods = {path: self._method(signal) for path, signal in _METHODS.items()}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        return self._methods.get(handler_call_details.method)

    def _method(self, signal: Signal) -> grpc.RpcMethodHandler[bytes, bytes]:
        async def export(body: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
            return await self._export(signal, body, context)

        return grpc.unary_unary_rpc_method_handler(export)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]  # stubs

    async def _export(self, signal: Signal, body: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        try:
            rejected = await self._store(signal, body, context)
        except Exception as exc:  # what leaves here becomes UNKNOWN, which clients take for final
            answer = answer_to(exc)
            self._serving.counters.refuse(answer, "OTLP/gRPC", exc)
            await context.abort(_CODES[answer.grpc_code], answer.message, (*self._trailers, *answer.trailers()))
            raise  # for the type checker: refusing ends the call
        # With the status, not before the response: an operation less for each request.
        context.set_trailing_metadata(self._trailers)
        return b"" if rejected is None else partial_success(signal, rejected.items, rejected.reason)

    async def _store(
        self, signal: Signal, body: bytes, context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> Rejected | None:
        serving = self._serving
        serving.limits.enter()
        try:
            if not serving.access.open:
                sent = cast("Iterable[tuple[str, str | bytes]]", context.invocation_metadata() or ())
                serving.access.check(next((str(value) for key, value in sent if key == "authorization"), None))
            serving.limits.charge(len(body))
            if len(body) > LARGE_BYTES:
                body = await asyncio.to_thread(inflated_message, body, serving.request_bytes)
            else:
                body = inflated_message(body, serving.request_bytes)
            return await serving.accept(signal, body)
        finally:
            serving.limits.leave()


def _credentials(tls: Tls) -> grpc.ServerCredentials:
    ca = None if tls.client_ca is None else _bytes(tls.client_ca)
    pair = (_bytes(tls.key), _bytes(tls.certificate))
    return grpc.ssl_server_credentials([pair], root_certificates=ca, require_client_auth=ca is not None)


def _bytes(path: Path) -> bytes:
    return path.read_bytes()
