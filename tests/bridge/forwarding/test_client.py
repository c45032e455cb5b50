"""The client of one signal: whom it trusts, and what its errors show."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import certifi
import pytest
import trustme
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceResponse,
)

from otel_bridge.bridge.forwarding.client import Reply, client_for
from otel_bridge.errors import BlockedError, RetryableError
from otel_bridge.otlp.destination import Endpoint, endpoint_for
from support.engines.served import answer, served


def accept(handler: BaseHTTPRequestHandler) -> None:
    """Accept a request."""
    handler.rfile.read(int(handler.headers["Content-Length"]))
    answer(handler, b"", **{"Content-Length": "0"})


@contextmanager
def tls_server(authority: trustme.CA) -> Iterator[str]:
    """Run a server that accepts everything; yield its address."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with served(accept, context) as address:
        yield f"https://{address}"


@pytest.mark.parametrize("variable", ["REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"])
def test_the_certificate_of_otlp_counts_beside_the_bundle_of_other_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    authority = trustme.CA()
    ca_file = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(ca_file)
    monkeypatch.setenv(variable, certifi.where())

    with tls_server(authority) as url:
        env = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": url,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_EXPORTER_OTLP_CERTIFICATE": str(ca_file),
        }
        client = client_for(endpoint_for("traces", env))
        reply = client.send(b"", "run")
        client.close()

    assert reply.rejected == 0


@pytest.mark.parametrize("address", ["http://127.0.0.1:1", "https://no.invalid"])
def test_an_error_shows_its_cause_and_no_secret_of_the_address(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    env = {
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{address}/v1/traces?key=hunter2&code=hunter2",
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
    }
    client = client_for(endpoint_for("traces", env))

    with pytest.raises(RetryableError) as raised:
        client.send(b"", "run")
    client.close()

    assert "hunter2" not in str(raised.value)
    assert str(raised.value).startswith(f"{address}/v1/traces cannot be reached: ")
    assert "refused" in str(raised.value) or "resolve" in str(raised.value)


def test_a_key_that_is_empty_while_it_is_replaced_blocks_grpc_and_ends_no_process(
    tmp_path: Path,
) -> None:
    certificate = tmp_path / "own.pem"
    certificate.write_text("a certificate")
    key = tmp_path / "key.pem"
    key.touch()
    endpoint = Endpoint(
        "traces",
        "grpc",
        "https://127.0.0.1:1",
        {},
        secure=True,
        client_certificate=str(certificate),
        client_key=str(key),
    )

    with pytest.raises(BlockedError, match=r"key\.pem is empty"):
        client_for(endpoint)


def test_a_port_of_http_that_is_called_by_grpc_is_named_with_the_setting() -> None:
    with served(accept) as address:
        env = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{address}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
        }
        client = client_for(endpoint_for("traces", env))
        with pytest.raises(RetryableError, match="PROTOCOL=http/protobuf"):
            client.send(b"", "run")
        client.close()


def test_the_reason_of_a_partial_success_is_one_short_line_without_secrets() -> None:
    response = ExportMetricsServiceResponse()
    response.partial_success.rejected_data_points = -2
    response.partial_success.error_message = (
        f"bad\x1b[31m\nforged line api_key=hunter2hunter2 {'x' * 3000}"
    )

    reply = Reply(response.SerializeToString(), {})

    assert reply.rejected == 0
    assert len(reply.message) == 200
    assert reply.message.isprintable()
    assert "hunter2" not in reply.message
