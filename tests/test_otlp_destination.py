"""Settings of ``otlp`` that can never work are an error of ``init()``; others are not read."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_bridge.errors import ConfigError
from otel_bridge.exporter import SIGNALS
from otel_bridge.otlp import destination
from support.trainers.emit_samples import run_in

_BASE = {
    "OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318",
    "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
}
_SECRET = "hunter2hunter"
_NEVER = [
    ("PROTOCOL", "http/json", "'http/json': expected grpc or http/protobuf"),
    ("TIMEOUT", "10s", "'10s': expected a number of seconds"),
    (
        "ENDPOINT",
        "ftp://head:4318",
        "'ftp://head:4318': expected http://host:port or https://host:port",
    ),
    (
        "ENDPOINT",
        "http://head:99999",
        "'http://head:99999': Port out of range 0-65535; expected http://host:port",
    ),
    ("ENDPOINT", "http://head:0", "expected http://host:port"),
    ("ENDPOINT", "http://head:", "expected http://host:port"),
    ("ENDPOINT", "unix:/run/otlp.sock", "expected http://host:port"),
    ("ENDPOINT", "http://[::1:4318", "expected http://host:port"),
    ("ENDPOINT", "http://he ad:4318", "expected http://host:port"),
    ("ENDPOINT", "http://he\nad:4318", "expected http://host:port"),
    ("ENDPOINT", f"http://me:{_SECRET}@:4318", "expected http://host:port"),
    (
        "HEADERS",
        f"authorization={_SECRET}%0Ax",
        "the value of authorization has a line break",
    ),
    (
        "HEADERS",
        f"authorization={_SECRET}\u00e9",
        "the value of authorization has a line break.* or a non-ASCII",
    ),
    ("HEADERS", f"x-team=rl,{_SECRET}", "entry 2 is not a header; expected name=value"),
    ("HEADERS", f"two words={_SECRET}", "entry 1 is not a header"),
    (
        "CERTIFICATE",
        "/nowhere/ca.pem",
        "'/nowhere/ca.pem': No such file or directory; expected a PEM file",
    ),
    ("CLIENT_CERTIFICATE", "/nowhere/own.pem", "'/nowhere/own.pem': No such file"),
    ("CLIENT_KEY", "/nowhere/key.pem", "'/nowhere/key.pem': No such file"),
    ("COMPRESSION", "zstd", "'zstd': expected gzip or none"),
]


@pytest.mark.parametrize("of_signal", ["", "TRACES_"])
@pytest.mark.parametrize(("name", "value", "said"), _NEVER)
def test_a_setting_that_can_never_work_ends_init_with_its_variable_and_what_is_expected(
    tmp_path: Path, name: str, value: str, said: str, of_signal: str
) -> None:
    variable = f"OTEL_EXPORTER_OTLP_{of_signal}{name}"

    with (
        pytest.raises(ConfigError, match=said) as raised,
        run_in(tmp_path, {**_BASE, variable: value}),
    ):
        pass

    assert str(raised.value).startswith(variable)
    assert _SECRET not in str(raised.value)


def test_a_file_without_certificates_ends_init_too(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("not a certificate")

    with (
        pytest.raises(ConfigError, match=r"CERTIFICATE.*expected PEM files"),
        run_in(tmp_path, {**_BASE, "OTEL_EXPORTER_OTLP_CERTIFICATE": str(file)}),
    ):
        pass


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
@pytest.mark.parametrize("name", ["CLIENT_CERTIFICATE", "CLIENT_KEY"])
def test_a_client_certificate_without_its_key_ends_init(
    tmp_path: Path, name: str, protocol: str
) -> None:
    file = tmp_path / "own.pem"
    file.write_text("its content is not read")
    env = {
        **_BASE,
        "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
        f"OTEL_EXPORTER_OTLP_{name}": str(file),
    }

    with (
        pytest.raises(
            ConfigError, match=r"CLIENT_CERTIFICATE and .*CLIENT_KEY.*only one of both"
        ),
        run_in(tmp_path, env),
    ):
        pass


def test_a_token_that_no_header_can_hold_ends_init_without_showing_it(
    tmp_path: Path,
) -> None:
    token = f"{_SECRET}\u00e9"

    with (
        pytest.raises(
            ConfigError, match=r"OTEL_BRIDGE_TOKEN=.*expected printable ASCII"
        ) as raised,
        run_in(tmp_path, {**_BASE, "OTEL_BRIDGE_TOKEN": token}),
    ):
        pass

    assert _SECRET not in str(raised.value)


def test_the_settings_of_a_signal_that_is_not_sent_are_not_read(tmp_path: Path) -> None:
    env = {
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://localhost:6006/v1/traces",
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
        "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "http/json",
    }

    with run_in(tmp_path, env):
        pass

    assert destination.addresses(env) == {"traces": "http://localhost:6006/v1/traces"}


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://head:4318", "http://head:4318/v1/logs"),
        ("head:4318/", "http://head:4318/v1/logs"),
        ("HTTPS://[::1]:4318/base//", "https://[::1]:4318/base/v1/logs"),
        ("http://head/base/?team=rl", "http://head/base/v1/logs?team=rl"),
    ],
)
def test_the_path_of_a_signal_follows_that_of_the_endpoint_of_all(
    endpoint: str, url: str
) -> None:
    env = {**_BASE, "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}

    assert destination.endpoint_for("logs", env).url == url


def test_init_names_signals_of_otlp_without_an_endpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env = {
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://localhost:6006/v1/traces",
        "OTEL_BRIDGE_QUIET": "0",
    }

    with run_in(tmp_path, env, exporters="otlp"):
        line = capsys.readouterr().err

    assert (
        "otel-bridge:   otlp sends traces only: set OTEL_EXPORTER_OTLP_ENDPOINT, or "
        "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT, for metrics and logs"
    ) in line


@pytest.mark.parametrize(
    ("names", "signals"),
    [
        ((), SIGNALS),
        (("ENDPOINT",), SIGNALS),
        (("LOGS_ENDPOINT", "TRACES_ENDPOINT"), ("traces", "logs")),
    ],
)
def test_without_an_endpoint_all_signals_go_to_the_default_and_with_some_only_those(
    names: tuple[str, ...], signals: tuple[str, ...]
) -> None:
    env = {f"OTEL_EXPORTER_OTLP_{name}": "http://localhost:4318" for name in names}

    assert destination.signals_sent(env) == signals


def test_a_setting_of_otlp_is_not_read_where_another_exporter_is_chosen(
    tmp_path: Path,
) -> None:
    with run_in(
        tmp_path,
        {**_BASE, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"},
        exporters="file",
    ):
        pass
