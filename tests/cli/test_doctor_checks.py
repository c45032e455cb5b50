"""What ``doctor`` looks at beyond settings."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest
from command_runs import environment, otel_bridge, started

from otel_bridge.cli.doctor_checks import masked, tokens, tracker, versions, within


@pytest.mark.parametrize(
    ("version", "inside"), [("0.28.0", True), ("0.31.4", True), ("0.32", False), ("0.27.9", False), ("0.31.0rc1", True)]
)
def test_a_version_is_compared_with_a_range(version: str, inside: bool) -> None:
    assert within(version, ">=0.28,<0.32") is inside


def test_the_installed_trackers_are_those_that_are_tested() -> None:
    assert versions(("wandb", "mlflow", "trackio", "file")).wrong == []


def test_no_secret_is_shown_and_a_short_token_is_wrong() -> None:
    found = tokens({"OTEL_BRIDGE_TOKEN": "0123456789abcdef0123,short"})

    assert found.shown == ["token: …0123, 20 characters", "token: 5 characters"]
    assert found.wrong == [
        "a token of OTEL_BRIDGE_TOKEN has 5 characters, at least 16 are hard to guess: openssl rand -hex 24"
    ]
    assert masked("hunter2") == "7 characters"


def test_an_address_that_nobody_answers_at_is_said_without_its_password() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"http://user:secret@127.0.0.1:{taken.getsockname()[1]}/api?key=secret"

        found = tracker("mlflow", {"MLFLOW_TRACKING_URI": address}, {"MLFLOW_TRACKING_TOKEN": "x" * 30})

    (line,) = found.wrong
    assert found.shown == ["mlflow: MLFLOW_TRACKING_TOKEN is set (…xxxx, 30 characters)"]
    assert re.fullmatch(r"mlflow: http://127.0.0.1:\d+/api does not answer \(.*\); what is emitted waits .*", line)


def test_doctor_asks_the_endpoint_that_is_chosen_and_exits_by_what_it_finds(tmp_path: Path) -> None:
    env = environment(tmp_path)
    with started(["otel-bridge", "serve", "--grpc", "off", "--http", "127.0.0.1:0"], cwd=tmp_path, env=env) as service:
        assert service.stderr is not None
        url = re.findall(r"http://[^\s;]+", service.stderr.readline())[-1]
        chosen = {**env, "OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}

        there = otel_bridge("doctor", cwd=tmp_path, env=chosen)

    gone = otel_bridge("doctor", cwd=tmp_path, env=chosen)
    assert (there.returncode, f"otlp: {url}/v1/metrics answers" in there.stdout) == (0, True), there.stdout[-500:]
    assert (gone.returncode, f"✗ otlp: {url}/v1/metrics does not answer" in gone.stdout) == (1, True)
    assert re.search(r"^port 4317: ", gone.stdout, re.MULTILINE)
