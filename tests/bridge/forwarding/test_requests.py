"""Requests, endpoints and answers of the exporter otlp."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)

from otel_bridge.bridge.forwarding.client import Client, client_for
from otel_bridge.bridge.forwarding.requests import REQUEST_BYTES, bodies, parts_of
from otel_bridge.errors import BlockedError, ConfigError, PermanentError, RetryableError
from otel_bridge.journal.frames import Frame, Signal
from otel_bridge.otlp.destination import endpoint_for
from otel_bridge_collector import Receiver, ReceiverSettings
from support.bridge.forwarded_metrics import RESOURCE, scope, values_of


def frame(
    payload: bytes, signal: Signal = Signal.METRICS, *, whole: bool = False
) -> Frame:
    return Frame(signal, whole, payload, 1, 0, 0)


def test_requests_stay_under_the_limit_and_hold_everything_in_order() -> None:
    frames = [frame(scope(*range(n * 20_000, (n + 1) * 20_000))) for n in range(20)]

    joined = list(bodies(part for one in frames for part in parts_of(one, RESOURCE)))

    assert [signal for signal, _ in joined] == [Signal.METRICS] * len(joined)
    assert max(sum(map(len, datas)) for _, datas in joined) <= REQUEST_BYTES
    assert values_of([b"".join(datas) for _, datas in joined]) == [
        float(n) for n in range(400_000)
    ]


def test_a_frame_over_the_limit_is_cut_between_its_metrics() -> None:
    large = frame(scope(*range(300_000)))

    parts = parts_of(large, RESOURCE)

    assert len(parts) > 1
    assert max(len(part.data) for part in parts) <= REQUEST_BYTES
    assert values_of([part.data for part in parts]) == [
        float(n) for n in range(300_000)
    ]


def test_every_request_carries_the_resource_of_its_segment() -> None:
    ((_, datas),) = bodies(parts_of(frame(scope(1.0)), RESOURCE))

    (part,) = ExportMetricsServiceRequest.FromString(b"".join(datas)).resource_metrics
    assert part.resource.SerializeToString() == RESOURCE


def test_an_https_endpoint_stays_encrypted_whatever_insecure_says() -> None:
    env = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "https://all:4317",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
        "OTEL_EXPORTER_OTLP_INSECURE": "true",
    }

    assert endpoint_for("metrics", env).secure


def test_the_variables_of_a_signal_go_before_those_of_all() -> None:
    env = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "https://all:4318/base/",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_EXPORTER_OTLP_HEADERS": "a=1,authorization=Bearer%20x",
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://traces:9/own",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "3",
    }

    metrics, traces = endpoint_for("metrics", env), endpoint_for("traces", env)

    assert (metrics.url, metrics.secure, metrics.timeout_s) == (
        "https://all:4318/base/v1/metrics",
        True,
        3.0,
    )
    assert metrics.headers == {"a": "1", "authorization": "Bearer x"}
    assert (traces.url, traces.secure) == ("http://traces:9/own", False)
    assert endpoint_for("logs", {}).url == "http://localhost:4317"
    with pytest.raises(ConfigError, match="OTEL_EXPORTER_OTLP_PROTOCOL"):
        endpoint_for("metrics", {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"})
    with pytest.raises(ConfigError, match="OTEL_EXPORTER_OTLP_TIMEOUT"):
        endpoint_for("metrics", {"OTEL_EXPORTER_OTLP_TIMEOUT": "soon"})


@contextmanager
def answering(status: int, heads: list[bytes]) -> Iterator[Client]:
    """Give a client whose server answers one request with *status*, and adds its head to *heads*."""
    listener = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        peer, _ = listener.accept()
        heads.append(peer.recv(65536))
        peer.sendall(
            f"HTTP/1.1 {status} X\r\nContent-Length: 0\r\nRetry-After: 7\r\n\r\n".encode()
        )
        peer.close()

    threading.Thread(target=answer, daemon=True).start()
    env = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{listener.getsockname()[1]}",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
    }
    client = client_for(endpoint_for("metrics", env))
    try:
        yield client
    finally:
        client.close()
        listener.close()


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, PermanentError),
        (401, BlockedError),
        (404, BlockedError),
        (413, PermanentError),
        (503, RetryableError),
    ],
)
def test_an_answer_is_final_blocked_or_to_be_tried_again(
    status: int, error: type[Exception]
) -> None:
    with answering(status, []) as client, pytest.raises(error) as caught:
        client.send(b"", "9f2c")

    if isinstance(caught.value, RetryableError):
        assert caught.value.retry_after_s == 7.0


@pytest.mark.parametrize("status", [200, 202, 204])
def test_any_success_means_that_the_request_was_taken(status: int) -> None:
    with answering(status, []) as client:
        assert client.send(b"", "9f2c").rejected == 0


@pytest.mark.parametrize(
    ("run_id", "sent"),
    [
        ("ppo-1.0_a", "ppo-1.0_a"),
        ("50%/a b", "50%/a%20b"),
        ("训练\n", "%E8%AE%AD%E7%BB%83%0A"),
    ],
)
def test_the_header_of_the_run_is_visible_ascii_whatever_a_third_party_producer_named(
    run_id: str, sent: str
) -> None:
    heads: list[bytes] = []
    with answering(200, heads) as client:
        client.send(b"", run_id)

    assert f"\r\nrl-run-id: {sent}\r\n".encode() in heads[0]


def test_over_grpc_too_any_run_id_can_be_sent(tmp_path: Path) -> None:
    there = Receiver(ReceiverSettings.from_environment({}, tmp_path, http_port=None))
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": there.grpc_endpoint}
    client = client_for(endpoint_for("metrics", env))

    assert client.send(b"", "训练\n").from_bridge

    client.close()
    there.stop()


@pytest.mark.parametrize("space", [" ", "%20"])
def test_a_header_may_hold_a_raw_space_or_an_escaped_one(space: str) -> None:
    env = {"OTEL_EXPORTER_OTLP_HEADERS": f"authorization=Bearer{space}t0ken,x-team=rl"}

    assert endpoint_for("traces", env).headers == {
        "authorization": "Bearer t0ken",
        "x-team": "rl",
    }
