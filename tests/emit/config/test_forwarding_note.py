from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from otel_bridge.exporter import SIGNALS
from otel_bridge.otlp import destination
from support.trainers.emit_samples import run_in


@pytest.fixture
def no_grpc(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *more: None if name == "grpc" else real(name, *more),
    )


@pytest.mark.usefixtures("no_grpc")
def test_http_to_the_port_of_grpc_is_said_with_what_helps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://head:4317", "OTEL_BRIDGE_QUIET": "0"}

    with run_in(tmp_path, env):
        line = capsys.readouterr().err

    assert (
        "otel-bridge:   otlp goes by HTTP, since grpcio is not installed, but port 4317 is gRPC's: "
        "pip install 'otel-bridge[collector]', or name the port of HTTP, 4318"
    ) in line


@pytest.mark.usefixtures("no_grpc")
@pytest.mark.parametrize(
    "env",
    [
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://head:4318"},
        {
            "OTEL_EXPORTER_OTLP_ENDPOINT": "http://head:4317",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        },
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://head:port"},
        {
            "OTEL_EXPORTER_OTLP_ENDPOINT": "http://head",
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://head:4317",
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
        },
        {},
    ],
)
def test_nothing_is_said_of_another_port_or_a_protocol_that_was_chosen(
    env: dict[str, str],
) -> None:
    assert destination.note(SIGNALS, env) == ""


def test_nothing_is_said_where_grpc_is_installed() -> None:
    assert (
        destination.note(SIGNALS, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://head:4317"})
        == ""
    )
