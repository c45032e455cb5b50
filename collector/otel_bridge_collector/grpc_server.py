"""OTLP over gRPC: three unary methods that hand raw bytes on.

Messages are neither parsed nor built by gRPC: the bytes go to `Ingest`, and the empty response is constant.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from typing import Final

import grpc

from otel_bridge.journal.frames import Signal
from otel_bridge.semconv import HEADER_SERVER
from otel_bridge_collector.answers import Answer, answer_to, retry_info
from otel_bridge_collector.tokens import check

_log = logging.getLogger(__name__)

Accept = Callable[[Signal, bytes], None]

_METHODS: Final = {
    "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export": Signal.METRICS,
    "/opentelemetry.proto.collector.trace.v1.TraceService/Export": Signal.TRACES,
    "/opentelemetry.proto.collector.logs.v1.LogsService/Export": Signal.LOGS,
}
_THREADS: Final = 8
_STREAMS: Final = 64
"""Requests under way on one connection; a client holds further ones back by itself (HTTP/2), which loses none."""


class GrpcServer:
    """Listens from construction on.

    Args:
        address: ``host:port``; port 0: any that is free.
        accept: Stores a request, raises as `Ingest.accept` does.
        tokens: Bearer tokens, one of which a client must send; none: everybody may.
        request_bytes: Largest message.

    Raises:
        RuntimeError: The address cannot be bound.
    """

    def __init__(self, address: str, accept: Accept, *, tokens: Sequence[str], request_bytes: int) -> None:
        self._server: grpc.Server = grpc.server(  # pyright: ignore[reportUnknownMemberType]  # stubs leave handlers open
            ThreadPoolExecutor(_THREADS, thread_name_prefix="otlp-grpc"),
            handlers=[_Handler(accept, tokens)],
            options=[
                ("grpc.max_receive_message_length", request_bytes),
                ("grpc.max_concurrent_streams", _STREAMS),
                ("grpc.so_reuseport", 0),  # two receivers on one port would each get half
            ],
        )
        self.port: int = self._server.add_insecure_port(address)
        self._server.start()

    def stop(self, grace_s: float) -> None:
        """Take no new request and wait for those under way, at most *grace_s*."""
        self._server.stop(grace_s).wait()


class _Handler(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # no generic at run time  # pyright: ignore[reportMissingTypeArgument]
    def __init__(self, accept: Accept, tokens: Sequence[str]) -> None:
        self._accept, self._tokens = accept, tokens
        self._headers = ((HEADER_SERVER, version("otel-bridge")),)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        signal = _METHODS.get(handler_call_details.method)
        if signal is None:
            return None

        def export(body: bytes, context: grpc.ServicerContext) -> bytes:
            return self._export(signal, body, context)

        return grpc.unary_unary_rpc_method_handler(export)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]  # stubs

    def _export(self, signal: Signal, body: bytes, context: grpc.ServicerContext) -> bytes:
        context.send_initial_metadata(self._headers)
        try:
            metadata = {key: str(value) for key, value in context.invocation_metadata() if key == "authorization"}
            check(self._tokens, metadata.get("authorization"))
            self._accept(signal, body)
        except Exception as exc:  # noqa: BLE001  # what leaves here becomes UNKNOWN, which clients take for final
            answer = answer_to(exc)
            _log.log(logging.WARNING if answer.retry else logging.INFO, "OTLP/gRPC request refused: %s", exc)
            _refuse(context, answer)
        return b""


def _refuse(context: grpc.ServicerContext, answer: Answer) -> None:
    details = [("grpc-status-details-bin", answer.status().SerializeToString())]
    if answer.retry:
        details.append(("google.rpc.retryinfo-bin", retry_info().SerializeToString()))
    context.set_trailing_metadata(tuple(details))
    code = next(code for code in grpc.StatusCode if code.value[0] == answer.grpc_code)
    context.abort(code, answer.message)
