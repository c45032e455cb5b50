"""Sends requests of 1,000 points: ``python -m benchmarks.collector.ingest_load grpc|http ADDRESS COUNT IN_FLIGHT``."""

from __future__ import annotations

import http.client
import sys
import threading
import time

import grpc
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)

from otel_bridge import semconv
from otel_bridge.records import Json
from support.conformance import messages

POINTS = 1_000
KEYS = 10
_METHOD = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
_BODIES = 50
_T0 = 1_800_000_000_000_000_000


def body(number: int) -> bytes:
    """Return a request of 100 rows of 10 keys, 2 attributes a point, as a third-party producer sends them."""
    request = ExportMetricsServiceRequest()
    who: dict[str, Json] = {
        semconv.PROJECT: "bench",
        semconv.RUN_NAME: "ingest",
        semconv.SERVICE_NAME: "trainer",
    }
    part = request.resource_metrics.add(resource=messages.resource(who))
    scope = part.scope_metrics.add()
    for key in range(KEYS):
        gauge = scope.metrics.add(name=f"actor/metric_{key}").gauge
        for row in range(POINTS // KEYS):
            step = number * POINTS // KEYS + row
            said = messages.pairs({semconv.STEP: step, semconv.ROLE: "trainer"})
            gauge.data_points.add(
                as_double=step / 7, time_unix_nano=_T0 + step, attributes=said
            )
    return request.SerializeToString()


def main(kind: str, address: str, requests: int, in_flight: int) -> None:
    """Send them; print the seconds that it took."""
    bodies = [body(number) for number in range(_BODIES)]
    left, lock = iter(range(requests)), threading.Lock()

    def numbers() -> int | None:
        with lock:
            return next(left, None)

    def over_grpc() -> None:
        export = channel.unary_unary(_METHOD)
        while (number := numbers()) is not None:
            export(bodies[number % _BODIES], timeout=60)

    def over_http() -> None:
        connection = http.client.HTTPConnection(address, timeout=60)
        while (number := numbers()) is not None:
            headers = {"Content-Type": "application/x-protobuf"}
            connection.request("POST", "/v1/metrics", bodies[number % _BODIES], headers)
            answer = connection.getresponse()
            answer.read()
            if answer.status != 200:
                raise RuntimeError(f"HTTP {answer.status}")

    channel = grpc.insecure_channel(address)
    threads = [
        threading.Thread(target=over_grpc if kind == "grpc" else over_http)
        for _ in range(in_flight)
    ]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(time.perf_counter() - began)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
