"""What `otlp` says of an endpoint that fails names no user, password or query of its address."""

from __future__ import annotations

import socket

import pytest

from otel_bridge.bridge.forwarding.client import client_for
from otel_bridge.errors import ExporterError
from otel_bridge.otlp.destination import endpoint_for

SECRET = "hunter2hunter"


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_an_endpoint_that_cannot_be_reached_is_named_without_its_password(
    protocol: str,
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://me:{SECRET}@127.0.0.1:{port}/base",
        "OTEL_EXPORTER_OTLP_PROTOCOL": protocol, "OTEL_EXPORTER_OTLP_TIMEOUT": "1",
        "OTEL_EXPORTER_OTLP_HEADERS": f"authorization=Bearer%20{SECRET}",
    }  # fmt: skip
    client = client_for(endpoint_for("metrics", env))

    with pytest.raises(ExporterError) as failed:
        client.send(b"", "run")

    client.close()
    assert SECRET not in str(failed.value)
    assert f"127.0.0.1:{port}" in str(failed.value)
