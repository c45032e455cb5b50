"""The receiver of the standard library: the same answers as the other, over HTTP on loopback."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from otel_bridge.errors import ConfigError
from otel_bridge.journal.folder import run_folders
from otel_bridge.journal.segment import read_segment
from otel_bridge_collector import Receiver, ReceiverSettings
from otel_bridge_collector.http import plain as plain_http
from support.waiting import ANSWER_S

PROTOBUF = {"Content-Type": "application/x-protobuf"}
AS_JSON = {"Content-Type": "application/json; charset=utf-8"}


def request(value: float = 0.5) -> bytes:
    message = ExportMetricsServiceRequest()
    part = message.resource_metrics.add()
    part.resource.attributes.append(KeyValue(key="rl.project", value=AnyValue(string_value="maths")))
    metric = part.scope_metrics.add().metrics.add(name="loss")
    metric.gauge.data_points.add(as_double=value, time_unix_nano=1)
    return message.SerializeToString()


def plain(base: Path, **variables: str) -> Receiver:
    return Receiver(replace(ReceiverSettings.from_environment(variables, base, grpc_port=None), plain=True))


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    made = plain(tmp_path, OTEL_BRIDGE_REQUEST_BYTES="100000")
    yield made
    made.stop()


def connection(receiver: Receiver) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(receiver.http_endpoint.partition("://")[2], timeout=ANSWER_S)


def answer(
    to: http.client.HTTPConnection,
    body: object,
    headers: dict[str, str],
    path: str = "/v1/metrics",
    method: str = "POST",
) -> tuple[int, bytes, http.client.HTTPResponse]:
    to.request(method, path, body, headers)  # type: ignore[arg-type]
    response = to.getresponse()
    return response.status, response.read(), response


def stored(base: Path) -> list[bytes]:
    (folder,) = run_folders(base)
    return [
        frame.payload
        for segment in folder.segments()
        for frame in read_segment(segment.path, 0, limit_bytes=1 << 30, final=False)[1].frames
    ]


def test_requests_of_one_connection_are_stored_before_they_are_answered(tmp_path: Path, receiver: Receiver) -> None:
    client = connection(receiver)

    statuses = [
        answer(client, request(1.0), PROTOBUF)[:2],
        answer(client, gzip.compress(request(2.0)), {**PROTOBUF, "Content-Encoding": "gzip"})[:2],
        answer(client, iter([request(3.0)[:7], request(3.0)[7:]]), PROTOBUF)[:2],  # in chunks
    ]

    assert statuses == [(200, b"")] * 3
    assert stored(tmp_path) == [request(1.0), request(2.0), request(3.0)]


def test_json_is_taken_and_answered_as_json(tmp_path: Path, receiver: Receiver) -> None:
    points = [{"timeUnixNano": "1", "asDouble": 0.5}]
    metrics = [{"name": "loss", "gauge": {"dataPoints": points}}]
    attributes = [{"key": "rl.project", "value": {"stringValue": "maths"}}]
    body = {"resourceMetrics": [{"resource": {"attributes": attributes}, "scopeMetrics": [{"metrics": metrics}]}]}

    status, said, _ = answer(connection(receiver), json.dumps(body), AS_JSON)

    assert (status, said) == (200, b"{}")
    assert stored(tmp_path) == [request(0.5)]


@pytest.mark.parametrize(
    ("body", "headers", "path", "method", "status", "says"),
    [
        (b"\xff", PROTOBUF, "/v1/metrics", "POST", 400, ""),
        (b"{", AS_JSON, "/v1/metrics", "POST", 400, "is not JSON"),
        (b"", PROTOBUF, "/v2", "POST", 404, "/v2 does not exist; send OTLP by POST to /v1/metrics"),
        (None, {}, "/v1/metrics", "GET", 405, "GET /v1/metrics: OTLP goes by POST"),
        (b"x" * 100_001, PROTOBUF, "/v1/metrics", "POST", 413, "request is over 100000 bytes"),
        (iter([b"x" * 100_001]), PROTOBUF, "/v1/metrics", "POST", 413, "request is over 100000 bytes"),
        (b"", {"Content-Type": "text/html"}, "/v1/metrics", "POST", 415, "Content-Type text/html"),
        (b"", {**PROTOBUF, "Origin": "http://evil.example"}, "/v1/metrics", "POST", 403, "requests of web pages"),
    ],
)
def test_what_cannot_be_taken_is_reported_as_by_the_other_receiver(
    receiver: Receiver, body: object, headers: dict[str, str], path: str, method: str, status: int, says: str
) -> None:
    given, said, response = answer(connection(receiver), body, headers, path, method)

    message = said.decode() if headers is AS_JSON else Status.FromString(said).message
    assert (given, says in message) == (status, True), message
    assert response.headers["otel-bridge-version"]


def test_a_token_is_asked_for_where_one_is_set(tmp_path: Path) -> None:
    receiver = plain(tmp_path, OTEL_BRIDGE_TOKEN="t0ken")
    try:
        refused = answer(connection(receiver), request(), PROTOBUF)
        taken = answer(connection(receiver), request(), {**PROTOBUF, "Authorization": "Bearer t0ken"})
    finally:
        receiver.stop()

    assert (refused[0], refused[2].headers["WWW-Authenticate"], taken[0]) == (401, "Bearer", 200)


def test_what_it_cannot_take_now_is_asked_for_again(receiver: Receiver) -> None:
    receiver.refuse("it ends")

    status, said, response = answer(connection(receiver), request(), PROTOBUF)

    assert (status, response.headers["Retry-After"], Status.FromString(said).message) == (503, "1", "it ends")


def test_a_client_that_goes_away_in_the_middle_harms_no_other(tmp_path: Path, receiver: Receiver) -> None:
    host, _, port = receiver.http_endpoint.partition("://")[2].rpartition(":")
    with socket.create_connection((host, int(port))) as half:
        half.sendall(
            b"POST /v1/metrics HTTP/1.1\r\nContent-Length: 100\r\nContent-Type: application/x-protobuf\r\n\r\nx"
        )

    assert answer(connection(receiver), request(), PROTOBUF)[0] == 200
    assert stored(tmp_path) == [request()]


@pytest.mark.parametrize("size", [b"-5", b"0x5", b"", b"five"])
def test_a_chunk_without_a_size_is_refused(receiver: Receiver, size: bytes) -> None:
    client = connection(receiver)
    client.putrequest("POST", "/v1/metrics")
    for name, value in {**PROTOBUF, "Transfer-Encoding": "chunked"}.items():
        client.putheader(name, value)
    client.endheaders(size + b"\r\nabcde\r\n")

    response = client.getresponse()

    assert (response.status, Status.FromString(response.read()).message) == (
        400,
        f"{size!r} where the size of a chunk was expected",
    )


def test_an_open_connection_does_not_hold_up_the_end(tmp_path: Path) -> None:
    receiver = plain(tmp_path)
    client = connection(receiver)
    assert answer(client, request(), PROTOBUF)[0] == 200

    receiver.stop()

    assert answer(client, request(), PROTOBUF)[0] == 503
    assert stored(tmp_path) == [request()]


def test_a_taken_port_is_said(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        chosen = ReceiverSettings.from_environment({}, tmp_path, grpc_port=None, http_port=taken.getsockname()[1])

        with pytest.raises(ConfigError, match=r"HTTP cannot listen on 127\.0\.0\.1:"):
            Receiver(replace(chosen, plain=True))


@pytest.mark.parametrize("length", ["9" * 5_000, "1e3", "-1"])
def test_a_length_that_is_not_a_number_of_bytes_is_refused(receiver: Receiver, length: str) -> None:
    client = connection(receiver)

    status, _, response = answer(client, b"", {**PROTOBUF, "Content-Length": length})

    assert (status, response.getheader("Connection")) == (413 if length.isdecimal() else 400, "close")


def test_of_too_many_connections_the_longest_silent_one_goes_and_no_request_is_cut(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain_http, "_CONNECTIONS", 3)
    address = ("127.0.0.1", int(receiver.http_endpoint.rpartition(":")[2]))
    head = b"POST /v1/metrics HTTP/1.1\r\nContent-Type: application/x-protobuf\r\nContent-Length: 2\r\n\r\n"
    under_way = socket.create_connection(address, timeout=ANSWER_S)
    under_way.sendall(head + b"\x0a")
    until_busy = connection(receiver)
    assert answer(until_busy, request(), PROTOBUF)[0] == 200
    silent = [socket.create_connection(address, timeout=ANSWER_S) for _ in range(8)]

    assert all(one.recv(1) == b"" for one in silent[:6])
    under_way.sendall(b"\x00")

    assert under_way.recv(1 << 16).startswith(b"HTTP/1.1 200 OK")
    for one in (under_way, *silent):
        one.close()
