"""What ``doctor`` looks at beyond settings."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from otel_bridge.cli.doctor import checks
from otel_bridge.cli.doctor.checks import (
    Findings,
    abilities,
    masked,
    tokens,
    tracker,
)
from otel_bridge.errors import BlockedError
from otel_bridge.exporter import ExporterSettings
from support.bridge.recording_tracker import RecorderSettings, RecordingTracker
from support.trainers.command_runs import environment, otel_bridge, started


def raised(error: Exception) -> Callable[[ExporterSettings], Sequence[str]]:
    def probe(settings: ExporterSettings) -> Sequence[str]:
        raise error

    return probe


def test_what_the_installed_tracker_lacks_is_shown_and_what_makes_it_useless_is_wrong() -> (
    None
):
    tracker = replace(RecordingTracker().exporter, requires=("tracker",))

    def found(
        probe: Callable[[ExporterSettings], Sequence[str]],
    ) -> tuple[list[str], list[str]]:
        findings = Findings()
        abilities(
            findings, "recorder", replace(tracker, probe=probe), RecorderSettings()
        )
        return findings.lines, findings.wrong

    assert found(lambda settings: ("Tracker 1 shows spans as text",)) == (
        ["recorder: Tracker 1 shows spans as text"],
        [],
    )
    assert found(
        raised(BlockedError("Tracker 1 has no write", help="pip install 'tracker>=2'"))
    ) == (
        [],
        ["recorder: Tracker 1 has no write; pip install 'tracker>=2'"],
    )
    assert found(raised(ImportError("No module named 'x'"))) == (
        [],
        [
            "recorder: tracker cannot be imported: No module named 'x'; pip install --upgrade tracker"
        ],
    )


def test_no_secret_is_shown_and_a_short_token_is_wrong() -> None:
    findings = Findings()

    tokens(findings, {"OTEL_BRIDGE_TOKEN": "0123456789abcdef0123,short"})

    assert findings.lines == [
        "token of OTEL_BRIDGE_TOKEN: …0123, 20 characters",
        "token of OTEL_BRIDGE_TOKEN: 5 characters",
    ]
    assert findings.wrong == [
        "a token of OTEL_BRIDGE_TOKEN has 5 characters, fewer than 16; make a longer one: openssl rand -hex 24"
    ]
    assert masked("hunter2") == "7 characters"


def test_a_malformed_address_is_wrong_and_ends_no_check() -> None:
    findings = Findings()

    tracker(findings, "mlflow", {"MLFLOW_TRACKING_URI": "http://[bad"}, {})

    (line,) = findings.wrong
    assert line.startswith("mlflow: http://[bad does not answer (Invalid IPv6 URL); ")


def test_an_address_that_nobody_answers_at_is_said_without_its_password() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = (
            f"http://user:secret@127.0.0.1:{taken.getsockname()[1]}/api?key=secret"
        )

        findings = Findings()
        tracker(
            findings,
            "mlflow",
            {"MLFLOW_TRACKING_URI": address},
            {"MLFLOW_TRACKING_TOKEN": "x" * 30},
        )

    (line,) = findings.wrong
    assert findings.lines == [
        "mlflow: MLFLOW_TRACKING_TOKEN is set (…xxxx, 30 characters)"
    ]
    assert re.fullmatch(
        r"mlflow: http://127.0.0.1:\d+/api does not answer \(.*\); records wait .*",
        line,
    )


def test_behind_a_proxy_the_proxy_is_asked_and_not_a_name_that_only_it_knows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    destination = {"MLFLOW_TRACKING_URI": "http://tracker.invalid"}
    for name in ("http_proxy", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)

    with socket.create_server(("127.0.0.1", 0)) as proxy:
        where = f"127.0.0.1:{proxy.getsockname()[1]}"
        monkeypatch.setenv("HTTP_PROXY", f"http://me:hunter2@{where}")
        # The clock is not judged here: this proxy answers nothing.
        monkeypatch.setattr(checks, "_skew_s", lambda _url: 0.0)
        there = Findings()
        tracker(there, "mlflow", destination, {})
    gone = Findings()
    tracker(gone, "mlflow", destination, {})

    assert (there.lines, there.wrong) == (
        [
            f"mlflow: http://tracker.invalid is reached by the proxy {where}, which answers"
        ],
        [],
    )
    (line,) = gone.wrong
    assert line.startswith(
        f"mlflow: http://tracker.invalid does not answer by the proxy {where} ("
    )
    assert "hunter2" not in line


def test_doctor_asks_the_endpoint_that_is_chosen_and_exits_by_what_it_finds(
    tmp_path: Path,
) -> None:
    env = environment(tmp_path)
    with started(
        ["otel-bridge", "serve", "--grpc", "off", "--http", "127.0.0.1:0"],
        cwd=tmp_path,
        env=env,
    ) as service:
        assert service.stderr is not None
        url = re.findall(r"http://[^\s;]+", service.stderr.readline())[-1]
        chosen = {
            **env,
            "OTEL_EXPORTER_OTLP_ENDPOINT": url,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        }

        there = otel_bridge("doctor", cwd=tmp_path, env=chosen)

    gone = otel_bridge("doctor", cwd=tmp_path, env=chosen)
    assert (there.returncode, f"otlp: {url}/v1/metrics answers" in there.stdout) == (
        0,
        True,
    ), there.stdout[-500:]
    assert (
        gone.returncode,
        f"✗ otlp: {url}/v1/metrics does not answer" in gone.stdout,
    ) == (
        1,
        True,
    )
