"""The client of one signal: whom it trusts, and what its errors show."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_bridge.bridge.forwarding.client import client_for
from otel_bridge.errors import BlockedError
from otel_bridge.otlp.destination import Endpoint


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
