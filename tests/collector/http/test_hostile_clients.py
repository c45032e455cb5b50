"""Clients without a token, with bodies made to hurt, or of web pages: the service stays small, quick and closed."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import grpc
import psutil
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)

from otel_bridge.errors import InvalidRecordError
from otel_bridge_collector import Receiver, ReceiverSettings, grpc_server
from otel_bridge_collector.error_table import TooLargeError
from otel_bridge_collector.export_request import check_well_formed
from otel_bridge_collector.http import server
from support.bridge.bridge_doubles import until
from support.collector.service_process import Service, service
from support.trainers.command_runs import environment
from support.waiting import ANSWER_S, HANG_S

EXPORT = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
MIB = 1 << 20


def rss_mib(served: Service) -> float:
    return psutil.Process(served.process.pid).memory_info().rss / MIB


def peak_while(served: Service, work: threading.Thread) -> float:
    peak = rss_mib(served)
    work.start()
    while work.is_alive():
        peak = max(peak, rss_mib(served))
        work.join(0.02)
    return peak


def nested(*numbers: int, inside: bytes) -> bytes:
    """Bytes of messages one in the other, by their field numbers, outermost first."""
    for number in reversed(numbers):
        length, head = len(inside), bytearray([number << 3 | 2])
        while length > 127:
            head.append(length & 127 | 128)
            length >>= 7
        inside = bytes(head) + bytes([length]) + inside
    return inside


# 4 million empty points of one gauge: 8 MB as sent.
EMPTY_POINTS = nested(1, 2, 2, 5, inside=b"\x0a\x00" * 4_000_000)


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Service]:
    with service(tmp_path, environment(tmp_path, OTEL_BRIDGE_TOKEN="right")) as served:
        yield served


@pytest.mark.slow
def test_over_grpc_a_client_without_a_token_is_refused_with_its_body_unread(
    guarded: Service,
) -> None:
    before = rss_mib(guarded)
    codes: list[grpc.StatusCode] = []

    def send() -> None:
        body, options = (
            bytes(60 * MIB),
            [
                ("grpc.max_send_message_length", 64 * MIB),
                ("grpc.use_local_subchannel_pool", 1),
            ],
        )
        for _ in range(8):
            with grpc.insecure_channel(
                guarded.grpc.partition("://")[2], options=options
            ) as channel:
                try:
                    channel.unary_unary(EXPORT)(body, timeout=ANSWER_S)
                except grpc.RpcError as exc:
                    codes.append(exc.code())  # type: ignore[attr-defined]

    peak = peak_while(guarded, threading.Thread(target=send))

    assert codes == [grpc.StatusCode.UNAUTHENTICATED] * 8
    assert peak - before < 60  # one body alone is 60 MiB


def test_over_grpc_a_message_that_does_not_come_ends_the_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_server, "BODY_S", 0.1)
    receiver = Receiver(ReceiverSettings.from_environment({}, tmp_path))
    never = threading.Event()

    def nothing() -> Iterator[bytes]:
        never.wait(20)
        yield b""

    with grpc.insecure_channel(receiver.grpc_endpoint.partition("://")[2]) as channel:
        with pytest.raises(grpc.RpcError) as refused:
            channel.stream_unary(EXPORT)(nothing(), timeout=ANSWER_S)
        never.set()
    receiver.stop()

    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT  # type: ignore[attr-defined]
    assert "did not come within" in refused.value.details()  # type: ignore[attr-defined]


def test_over_http_a_refused_client_is_answered_although_it_sends_byte_by_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_BODY_S", 0.1)
    receiver = Receiver(
        ReceiverSettings.from_environment({"OTEL_BRIDGE_TOKEN": "right"}, tmp_path)
    )
    address = urlsplit(receiver.http_endpoint)
    answer = b""
    with socket.create_connection((address.hostname, address.port)) as client:
        client.sendall(
            b"POST /v1/metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n"
        )
        client.settimeout(0.02)
        deadline_s = time.monotonic() + HANG_S
        while not answer and time.monotonic() < deadline_s:
            client.sendall(b"x")
            with contextlib.suppress(TimeoutError):
                answer = client.recv(64)
    receiver.stop()

    assert answer.startswith(b"HTTP/1.1 401 ")


def test_over_grpc_a_call_without_a_message_is_refused(tmp_path: Path) -> None:
    receiver = Receiver(ReceiverSettings.from_environment({}, tmp_path))

    address = receiver.grpc_endpoint.partition("://")[2]
    with (
        grpc.insecure_channel(address) as channel,
        pytest.raises(grpc.RpcError) as refused,
    ):
        channel.stream_unary(EXPORT)(iter(()), timeout=ANSWER_S)
    receiver.stop()

    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT  # type: ignore[attr-defined]


def test_over_grpc_the_log_of_a_message_that_grpc_refused_names_the_limit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    env = {"OTEL_BRIDGE_REQUEST_BYTES": "1000"}
    receiver = Receiver(ReceiverSettings.from_environment(env, tmp_path))

    address = receiver.grpc_endpoint.partition("://")[2]
    with (
        grpc.insecure_channel(address) as channel,
        pytest.raises(grpc.RpcError) as refused,
    ):
        channel.unary_unary(EXPORT)(bytes(1001), timeout=ANSWER_S)
    until(lambda: receiver.counters.refused)
    receiver.stop()

    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED  # type: ignore[attr-defined]
    assert "over 1000 bytes" in caplog.text


@pytest.mark.slow
def test_memory_of_large_requests_is_given_back(tmp_path: Path) -> None:
    with service(tmp_path, environment(tmp_path)) as served:
        before = rss_mib(served)
        body, options = (
            nested(9, inside=bytes(60 * MIB)),
            [("grpc.max_send_message_length", 64 * MIB)],
        )
        with grpc.insecure_channel(
            served.grpc.partition("://")[2], options=options
        ) as channel:
            calls = [
                channel.unary_unary(EXPORT).future(body, timeout=ANSWER_S)
                for _ in range(4)
            ]
            for call in calls:
                call.result()
        deadline = time.monotonic() + HANG_S
        while rss_mib(served) - before > 100 and time.monotonic() < deadline:
            time.sleep(0.1)

        assert rss_mib(served) - before < 100


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        "application/json",
        pytest.param("application/x-protobuf", marks=pytest.mark.long),
    ],
)
def test_a_small_body_that_becomes_millions_of_empty_messages_holds_nothing_up(
    tmp_path: Path, kind: str
) -> None:
    points = (
        b'{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"gauge":{"dataPoints":['
    )
    as_json = points + b"{}," * 3_000_000 + b"{}]}}]}]}]}"
    body = gzip.compress(as_json if kind == "application/json" else EMPTY_POINTS)
    with service(tmp_path, environment(tmp_path)) as served:
        before, statuses, waits = rss_mib(served), [], []

        def send() -> None:
            for _ in range(3):
                statuses.append(
                    posted(
                        served, body, {"Content-Type": kind, "Content-Encoding": "gzip"}
                    )
                )

        sending = threading.Thread(target=send)
        sending.start()
        peak = before
        while sending.is_alive():
            asked = time.monotonic()
            assert got(served, "/healthz", {}) == 200
            waits.append(time.monotonic() - asked)
            peak = max(peak, rss_mib(served))

    assert statuses == [413] * 3
    assert peak - before < 250
    assert len(waits) > 3  # others were answered while these were looked at


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:4318"},
        {"Host": "127.0.0.1.evil.example"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "http://evil.example"},
    ],
)
@pytest.mark.parametrize("page", ["/status", "/metrics"])
def test_a_web_page_reads_nothing_of_a_service_without_a_token(
    open_service: Service, page: str, headers: dict[str, str]
) -> None:
    assert got(open_service, page, headers) == 403


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "localhost:4318",
        "127.0.0.1",
        "[::1]:4318",
        "10.0.0.7:4318",
        "a.localhost",
    ],
)
def test_a_person_reads_it_by_address_or_localhost(
    open_service: Service, host: str
) -> None:
    assert (
        got(open_service, "/metrics", {"Host": host, "Sec-Fetch-Site": "none"}) == 200
    )


def test_a_web_page_writes_nothing_to_a_service_without_a_token(
    open_service: Service,
) -> None:
    headers = {"Content-Type": "application/x-protobuf", "Sec-Fetch-Site": "cross-site"}

    assert posted(open_service, b"", headers) == 403


@pytest.mark.parametrize("length", ["9" * 5_000, "٣", "1e3"])
def test_a_length_that_is_not_a_number_of_bytes_is_refused(
    open_service: Service, length: str
) -> None:
    headers = {
        "Content-Type": "application/x-protobuf",
        "Content-Length": length.encode("utf-8").decode("latin-1"),
    }

    assert posted(open_service, b"", headers) in {400, 413}


@pytest.fixture(scope="module")
def open_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("open")
    with service(folder, environment(folder)) as served:
        yield served


@pytest.mark.parametrize("size", [10, 300_000, 3_000_000])
def test_a_request_of_any_size_is_checked(size: int) -> None:
    message = ExportMetricsServiceRequest()
    points = (
        message.resource_metrics.add()
        .scope_metrics.add()
        .metrics.add(name="loss")
        .gauge.data_points
    )
    while len(points) * 12 < size:
        points.add(as_double=0.5, time_unix_nano=1)
    body = message.SerializeToString()

    check_well_formed(ExportMetricsServiceRequest, body)

    with pytest.raises(InvalidRecordError):
        check_well_formed(ExportMetricsServiceRequest, body[:-1])


def test_a_large_request_with_bad_bytes_far_inside_is_refused() -> None:
    bad = b"\x0a\x03\x1a\x7f\x00"  # a point whose own field ends behind it
    body = nested(1, 2, 2, 5, inside=b"\x0a\x00" * 600_000 + bad)

    with pytest.raises(InvalidRecordError):
        check_well_formed(ExportMetricsServiceRequest, body)


def test_more_points_than_anybody_sends_are_refused_unparsed() -> None:
    with pytest.raises(TooLargeError, match="more than 1000000 points"):
        check_well_formed(ExportMetricsServiceRequest, EMPTY_POINTS)


def test_messages_that_nest_without_end_are_refused() -> None:
    body = bytes(2 * MIB)
    for _ in range(
        200
    ):  # a log body in a list in a log body: AnyValue.array_value.values
        body = nested(5, 1, inside=body)
    whole = nested(1, 1, 1, inside=nested(2, inside=body))

    with pytest.raises(InvalidRecordError):
        check_well_formed(ExportMetricsServiceRequest, whole)


def posted(served: Service, body: bytes, headers: dict[str, str]) -> int:
    return answered(served, "POST", "/v1/metrics", body, headers)


def got(served: Service, page: str, headers: dict[str, str]) -> int:
    return answered(served, "GET", page, None, headers)


def answered(
    served: Service, method: str, path: str, body: bytes | None, headers: dict[str, str]
) -> int:
    connection = http.client.HTTPConnection(
        urlsplit(served.http).netloc, timeout=ANSWER_S
    )
    try:
        connection.request(method, path, body, headers)
        return connection.getresponse().status
    finally:
        connection.close()
