"""Backends that take some signals only, as Phoenix and MLflow take traces only, over HTTP and over gRPC."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
)

_REQUESTS: dict[str, Any] = {
    "metrics": ExportMetricsServiceRequest, "traces": ExportTraceServiceRequest, "logs": ExportLogsServiceRequest,
}  # fmt: skip


class Taken:
    """What a backend was sent.

    Attributes:
        answers: Signal to the HTTP status of its requests; other signals get *otherwise*.
        tries: Signal of each request, also of those that were refused.
        headers: Signal to the headers of its last request.
    """

    def __init__(self, signals: Collection[str], otherwise: int) -> None:
        self.answers = dict.fromkeys(signals, 200)
        self.otherwise = otherwise
        self.tries: list[str] = []
        self.headers: dict[str, Mapping[str, str]] = {}
        self._bodies: list[tuple[str, bytes]] = []

    def take(self, signal: str, body: bytes, headers: Mapping[str, str]) -> int:
        """Return the HTTP status of a request."""
        self.tries.append(signal)
        self.headers[signal] = {name.lower(): value for name, value in headers.items()}
        status = self.answers.get(signal, self.otherwise)
        if status == 200:
            self._bodies.append((signal, body))
        return status

    def spans(self) -> list[str]:
        """Return the names of the spans, in the order of their arrival."""
        requests = [
            _REQUESTS[signal].FromString(body)
            for signal, body in self._bodies
            if signal == "traces"
        ]
        return [
            span.name
            for request in requests
            for part in request.resource_spans
            for scope in part.scope_spans
            for span in scope.spans
        ]

    def values(self) -> list[float]:
        """Return the values of the metrics, in the order of their arrival."""
        requests = [
            _REQUESTS[signal].FromString(body)
            for signal, body in self._bodies
            if signal == "metrics"
        ]
        return [
            point.as_double
            for request in requests
            for part in request.resource_metrics
            for scope in part.scope_metrics
            for metric in scope.metrics
            for point in metric.gauge.data_points
        ]


class HttpBackend(Taken):
    """Takes *signals* at ``/v1/<signal>``; answers others with *otherwise*."""

    def __init__(self, *signals: str, otherwise: int = 404, port: int = 0) -> None:
        super().__init__(signals, otherwise)
        backend = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: object) -> None: ...  # noqa: A002

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                signal = self.path.removeprefix("/v1/")
                self.send_response(backend.take(signal, body, dict(self.headers)))
                self.send_header("Content-Length", "0")
                self.end_headers()

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True
        )
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class GrpcBackend(Taken):
    """Has the services of *signals*; a call of another gets UNIMPLEMENTED."""

    _SERVICES = {  # noqa: RUF012
        "metrics": "opentelemetry.proto.collector.metrics.v1.MetricsService",
        "traces": "opentelemetry.proto.collector.trace.v1.TraceService",
        "logs": "opentelemetry.proto.collector.logs.v1.LogsService",
    }

    def __init__(self, *signals: str) -> None:
        super().__init__(signals, 404)
        handlers = [self._handler(signal) for signal in signals]
        self._server = grpc.server(ThreadPoolExecutor(2), handlers)
        self.url = f"http://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def _handler(self, signal: str) -> grpc.GenericRpcHandler:
        def export(body: bytes, context: grpc.ServicerContext) -> bytes:
            self.take(signal, body, dict(context.invocation_metadata()))
            return b""

        method = grpc.unary_unary_rpc_method_handler(export)
        return grpc.method_handlers_generic_handler(
            self._SERVICES[signal], {"Export": method}
        )

    def close(self) -> None:
        self._server.stop(0).wait()
