"""What the receiver answers: signals, JSON, partial success, limits, TLS, pages."""

from __future__ import annotations

import http.client
import json
import ssl
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError

import grpc
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otel_bridge.errors import (
    ConfigError,
    InvalidRecordError,
    JournalError,
    JournalFullError,
)
from otel_bridge.journal.folder import RunFolder, run_folders
from otel_bridge.journal.frames import Signal
from otel_bridge.journal.segment import read_segment
from otel_bridge.records import run_id_of
from otel_bridge_collector import Receiver, ReceiverSettings
from otel_bridge_collector.error_table import (
    ThrottledError,
    TooLargeError,
    UnauthenticatedError,
    answer_to,
)
from otel_bridge_collector.limits import LimitSettings, ReceiverLimits
from support.otlp.journal_samples import python
from support.waiting import ANSWER_S

EXPORT = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"


def who(run: str) -> Resource:
    texts = {"rl.project": "maths", "rl.run.name": run}
    return Resource(
        attributes=[
            KeyValue(key=key, value=AnyValue(string_value=text))
            for key, text in texts.items()
        ]
    )


def metrics(*runs: str) -> bytes:
    message = ExportMetricsServiceRequest()
    for run in runs:
        part = message.resource_metrics.add(resource=who(run))
        gauge = part.scope_metrics.add().metrics.add(name="loss").gauge
        gauge.data_points.add(as_double=0.5)
        gauge.data_points.add(as_double=0.25)
    return message.SerializeToString()


def stored(base: Path) -> list[tuple[str, Signal, bytes]]:
    found: list[tuple[str, Signal, bytes]] = []
    for folder in run_folders(base):
        for segment in folder.segments():
            _, scan = read_segment(segment.path, 0, limit_bytes=1 << 30, final=False)
            found += [
                (folder.run_id, frame.signal, frame.payload) for frame in scan.frames
            ]
    return found


def call(
    url: str, body: bytes | None = None, **headers: str
) -> tuple[int, dict[str, str], bytes]:
    names = {key.replace("_", "-"): text for key, text in headers.items()}
    asked = urllib.request.Request(
        url, body, names, method="GET" if body is None else "POST"
    )
    try:
        with urllib.request.urlopen(asked, timeout=ANSWER_S) as answer:
            return (
                answer.status,
                {key.lower(): text for key, text in answer.headers.items()},
                answer.read(),
            )
    except HTTPError as exc:
        return (
            exc.code,
            {key.lower(): text for key, text in exc.headers.items()},
            exc.read(),
        )


PROTOBUF = {"Content_Type": "application/x-protobuf"}
JSON = {"Content_Type": "application/json"}


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    listening = Receiver(
        ReceiverSettings.from_environment(
            {"OTEL_BRIDGE_REQUEST_BYTES": "1MiB"}, tmp_path
        )
    )
    yield listening
    listening.stop()


def test_all_three_signals_are_taken_over_both_protocols(
    receiver: Receiver, tmp_path: Path
) -> None:
    traces, logs = ExportTraceServiceRequest(), ExportLogsServiceRequest()
    traces.resource_spans.add(resource=who("a")).scope_spans.add().spans.add(
        name="rollout"
    )
    logs.resource_logs.add(resource=who("a")).scope_logs.add().log_records.add(
        event_name="rl.run.end"
    )
    bodies = {
        "metrics": metrics("a"),
        "traces": traces.SerializeToString(),
        "logs": logs.SerializeToString(),
    }
    services = {
        "metrics": "metrics.v1.Metrics",
        "traces": "trace.v1.Trace",
        "logs": "logs.v1.Logs",
    }

    for name, body in bodies.items():
        assert call(f"{receiver.http_endpoint}/v1/{name}", body, **PROTOBUF)[::2] == (
            200,
            b"",
        )
    with grpc.insecure_channel(
        receiver.grpc_endpoint.removeprefix("http://")
    ) as channel:
        for name, service in services.items():
            channel.unary_unary(
                f"/opentelemetry.proto.collector.{service}Service/Export"
            )(bodies[name], timeout=ANSWER_S)

    signals = (Signal.METRICS, Signal.TRACES, Signal.LOGS)
    expected = [
        (run_id_of("maths", "a"), signal, body)
        for signal, body in zip(signals, bodies.values(), strict=True)
    ]
    assert stored(tmp_path) == expected * 2


def test_json_is_kept_as_the_protobuf_that_it_says_and_answered_in_json(
    receiver: Receiver, tmp_path: Path
) -> None:
    resource = {"attributes": [{"key": "rl.run.id", "value": {"stringValue": "r1"}}]}
    points = {"gauge": {"dataPoints": [{"asInt": "7", "timeUnixNano": "5"}]}}
    body = {
        "resourceMetrics": [
            {
                "resource": resource,
                "scopeMetrics": [{"metrics": [{"name": "loss", **points}]}],
            }
        ]
    }

    taken = call(
        f"{receiver.http_endpoint}/v1/metrics", json.dumps(body).encode(), **JSON
    )
    refused = call(
        f"{receiver.http_endpoint}/v1/metrics",
        b'{"resourceMetrics":[{"resource":5}]}',
        **JSON,
    )

    assert (taken[0], taken[1]["content-type"], taken[2]) == (
        200,
        "application/json",
        b"{}",
    )
    ((run_id, _, payload),) = stored(tmp_path)
    point = (
        ExportMetricsServiceRequest.FromString(payload)
        .resource_metrics[0]
        .scope_metrics[0]
        .metrics[0]
    )
    assert (run_id, point.name, point.gauge.data_points[0].as_int) == ("r1", "loss", 7)
    assert (refused[0], json.loads(refused[2])) == (
        400,
        {
            "code": 3,
            "message": "resourceMetrics[0].resource: expected an object, got 5",
        },
    )


def test_resources_that_can_never_be_taken_are_reported_as_partial_success(
    receiver: Receiver, tmp_path: Path
) -> None:
    newer = RunFolder(tmp_path, run_id_of("maths", "new"))
    newer.create()
    newer.format_path.write_bytes(b'{"format": 99}')
    body = metrics("a", "x" * 2000, "new", "b")

    status, _, answer = call(f"{receiver.http_endpoint}/v1/metrics", body, **PROTOBUF)
    alone = call(
        f"{receiver.http_endpoint}/v1/metrics", metrics("x" * 2000), **PROTOBUF
    )[0]

    said = ExportMetricsServiceResponse.FromString(answer).partial_success
    assert (status, said.rejected_data_points) == (200, 4)
    assert "2000 characters" in said.error_message
    assert {run for run, _, _ in stored(tmp_path)} == {
        run_id_of("maths", "a"),
        run_id_of("maths", "b"),
    }
    assert alone == 400


def test_refused_data_may_be_sent_again_and_what_was_taken_stays(
    receiver: Receiver, tmp_path: Path
) -> None:
    assert (
        call(f"{receiver.http_endpoint}/v1/metrics", metrics("a"), **PROTOBUF)[0] == 200
    )
    assert call(f"{receiver.http_endpoint}/readyz")[::2] == (200, b"ready\n")

    receiver.refuse("the service ends")
    receiver.release_connections()
    status, headers, _ = call(
        f"{receiver.http_endpoint}/v1/metrics", metrics("a"), **PROTOBUF
    )
    with (
        grpc.insecure_channel(
            receiver.grpc_endpoint.removeprefix("http://")
        ) as channel,
        pytest.raises(grpc.RpcError) as caught,
    ):
        channel.unary_unary(EXPORT)(metrics("a"), timeout=ANSWER_S)

    assert (status, headers["retry-after"]) == (503, "1")
    assert (caught.value.code(), caught.value.details()) == (
        grpc.StatusCode.UNAVAILABLE,
        "the service ends",
    )
    assert {
        "grpc-status-details-bin",
        "google.rpc.retryinfo-bin",
        "otel-bridge-version",
    } <= {key for key, _ in caught.value.trailing_metadata()}
    assert call(f"{receiver.http_endpoint}/readyz")[::2] == (503, b"the service ends\n")
    assert call(f"{receiver.http_endpoint}/healthz")[::2] == (200, b"alive\n")
    assert len(stored(tmp_path)) == 1


@pytest.mark.parametrize(
    "compression", [grpc.Compression.Gzip, grpc.Compression.Deflate]
)
def test_grpc_messages_are_inflated_and_a_bomb_is_refused(
    receiver: Receiver, tmp_path: Path, compression: grpc.Compression
) -> None:
    address = receiver.grpc_endpoint.removeprefix("http://")
    runs = ["a"] * 100
    with grpc.insecure_channel(address, compression=compression) as channel:
        channel.unary_unary(EXPORT)(metrics(*runs), timeout=ANSWER_S)
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary(EXPORT)(b"\x0a" * (100 << 20), timeout=ANSWER_S)

    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert [payload for _, _, payload in stored(tmp_path)] == [metrics(*runs)]


def test_pages_of_others_may_not_write_here_and_metrics_want_the_token(
    receiver: Receiver, tmp_path: Path
) -> None:
    url = f"{receiver.http_endpoint}/v1/metrics"
    guarded = Receiver(
        ReceiverSettings.from_environment(
            {"OTEL_BRIDGE_TOKEN": "t"}, tmp_path / "guarded"
        )
    )
    try:
        without = call(f"{guarded.http_endpoint}/metrics")
        with_token = call(f"{guarded.http_endpoint}/metrics", Authorization="Bearer t")
        denied = call(f"{guarded.http_endpoint}/v1/logs", b"", **PROTOBUF)
    finally:
        guarded.stop()

    assert call(url, metrics("a"), Origin="https://example.org", **PROTOBUF)[0] == 403
    assert (without[0], with_token[0]) == (401, 200)
    assert (denied[0], denied[1]["www-authenticate"]) == (401, "Bearer")


def test_what_was_received_and_refused_is_counted(receiver: Receiver) -> None:
    url = f"{receiver.http_endpoint}/v1/metrics"
    call(url, metrics("a"), **PROTOBUF)
    call(url, b"\xff", **PROTOBUF)
    call(f"{receiver.http_endpoint}/other", b"", **PROTOBUF)

    status, headers, text = call(f"{receiver.http_endpoint}/metrics")

    assert (status, headers["content-type"]) == (
        200,
        "text/plain; version=0.0.4; charset=utf-8",
    )
    lines = text.decode().splitlines()
    assert {
        'otel_bridge_received_requests_total{signal="metrics"} 1.0',
        'otel_bridge_refused_requests_total{reason="invalid"} 1.0',
        'otel_bridge_refused_requests_total{reason="not_found"} 1.0',
        f"otel_bridge_appended_bytes_total {len(metrics('a'))}.0",
        "otel_bridge_receiving_runs 1.0",
        "otel_bridge_syncs_total 1.0",
    } <= set(lines)


def test_connections_are_kept_and_a_head_without_end_is_cut(receiver: Receiver) -> None:
    connection = http.client.HTTPConnection(
        receiver.http_endpoint.removeprefix("http://"), timeout=ANSWER_S
    )
    for _ in range(3):
        connection.request(
            "POST",
            "/v1/metrics",
            metrics("a"),
            {"Content-Type": "application/x-protobuf"},
        )
        assert connection.getresponse().read() == b""
    kept = connection.sock
    assert kept is not None

    kept.sendall(b"GET /healthz HTTP/1.1\r\nX: ")
    kept.sendall(b"x" * (65 << 10))
    try:
        assert kept.recv(1) == b""
    except ConnectionResetError:
        return


def test_each_kind_of_error_has_its_answer() -> None:
    kinds = [
        InvalidRecordError("x"),
        UnauthenticatedError("x"),
        TooLargeError("x"),
        ThrottledError("x"),
        JournalFullError("x"),
        JournalError("x"),
        ZeroDivisionError("x"),
    ]

    answers = [answer_to(kind) for kind in kinds]

    assert [
        (one.reason, one.grpc_code, one.http_status, one.retry) for one in answers
    ] == [
        ("invalid", 3, 400, False),
        ("unauthenticated", 16, 401, False),
        ("too_large", 8, 413, False),
        ("throttled", 14, 429, True),
        ("full", 14, 503, True),
        ("journal", 14, 503, True),
        ("internal", 14, 503, True),
    ]


def test_limits_of_requests_and_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    limits = ReceiverLimits(LimitSettings(requests=2, bytes_per_s=100))
    limits.enter()
    limits.enter()
    with pytest.raises(ThrottledError, match="OTEL_BRIDGE_MAX_REQUESTS"):
        limits.enter()
    limits.leave()
    limits.enter()

    limits.charge(200)
    with pytest.raises(ThrottledError, match="OTEL_BRIDGE_MAX_RATE"):
        limits.charge(10)
    now[0] = 1.0
    limits.charge(1000)  # larger than a second's worth: once it has rested
    now[0] = 2.0
    with pytest.raises(ThrottledError):
        limits.charge(1)


def _asked(connection: http.client.HTTPConnection) -> http.client.HTTPResponse:
    connection.request(
        "POST", "/v1/metrics", metrics("a"), {"Content-Type": "application/x-protobuf"}
    )
    return connection.getresponse()


def openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    folder = tmp_path / "tls"
    folder.mkdir()
    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl(
        folder,
        "req",
        "-x509",
        *new_key,
        "-keyout",
        "ca.key",
        "-out",
        "ca.pem",
        "-subj",
        "/CN=ca",
        "-days",
        "2",
    )
    for name in ("server", "client"):
        openssl(
            folder,
            "req",
            *new_key,
            "-keyout",
            f"{name}.key",
            "-out",
            f"{name}.csr",
            "-subj",
            f"/CN={name}",
        )
        (folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
        openssl(folder, "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
                "-out", f"{name}.pem", "-days", "2", "-extfile", "names")  # fmt: skip
    return folder


def test_certificates_of_clients_open_both_protocols_and_nobody_else_gets_in(
    tmp_path: Path, certificates: Path
) -> None:
    env = {
        "OTEL_BRIDGE_TLS_CERT": str(certificates / "server.pem"),
        "OTEL_BRIDGE_TLS_KEY": str(certificates / "server.key"),
        "OTEL_BRIDGE_TLS_CLIENT_CA": str(certificates / "ca.pem"),
    }
    receiver = Receiver(
        ReceiverSettings.from_environment(env, tmp_path / "runs", host="0.0.0.0")
    )
    known = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
    other_client = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
    known.load_cert_chain(certificates / "client.pem", certificates / "client.key")
    ca, key, own = (
        (certificates / name).read_bytes()
        for name in ("ca.pem", "client.key", "client.pem")
    )
    port = int(receiver.http_endpoint.rpartition(":")[2])
    address = f"127.0.0.1:{receiver.grpc_endpoint.rpartition(':')[2]}"
    try:
        connection = http.client.HTTPSConnection(
            "127.0.0.1", port, context=known, timeout=ANSWER_S
        )
        connection.request(
            "POST",
            "/v1/metrics",
            metrics("a"),
            {"Content-Type": "application/x-protobuf"},
        )
        assert connection.getresponse().status == 200
        other = http.client.HTTPSConnection(
            "127.0.0.1", port, context=other_client, timeout=ANSWER_S
        )
        with pytest.raises((ssl.SSLError, ConnectionError, http.client.HTTPException)):
            _asked(other)
        with grpc.secure_channel(
            address, grpc.ssl_channel_credentials(ca, key, own)
        ) as channel:
            channel.unary_unary(EXPORT)(metrics("a"), timeout=ANSWER_S)
        with (
            grpc.secure_channel(address, grpc.ssl_channel_credentials(ca)) as channel,
            pytest.raises(grpc.RpcError),
        ):
            channel.unary_unary(EXPORT)(metrics("a"), timeout=ANSWER_S)
    finally:
        receiver.stop()

    assert len(stored(tmp_path / "runs")) == 2


CLOSED_TO_ME = """
import os, sys
from otel_bridge.errors import ConfigError
from otel_bridge_collector.access import Tls
if os.getuid() == 0:
    os.setuid(65534)
file = sys.argv[1] + "/closed/server.pem"
try:
    Tls.from_environment({"OTEL_BRIDGE_TLS_CERT": file, "OTEL_BRIDGE_TLS_KEY": file})
except ConfigError as error:
    print(error)
"""


def test_a_certificate_that_the_user_may_not_reach_is_said_at_the_start() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        Path(folder, "closed").mkdir(mode=0)

        with python(CLOSED_TO_ME, folder) as process:
            message = process.communicate()[0]

    assert "server.pem is not a file; expected PEM" in message


def test_tls_that_cannot_work_is_said_at_the_start(
    tmp_path: Path, certificates: Path
) -> None:
    locked = ("-aes256", "-passout", "pass:secret", "-out", "locked.key")
    openssl(certificates, "ec", "-in", "server.key", *locked)

    def start(**env: str) -> None:
        ReceiverSettings.from_environment(
            {f"OTEL_BRIDGE_TLS_{key}": value for key, value in env.items()}, tmp_path
        )

    with pytest.raises(ConfigError, match="set both or none"):
        start(CERT=str(certificates / "server.pem"))
    with pytest.raises(ConfigError, match="is not a file"):
        start(CERT=str(certificates / "server.pem"), KEY="/nowhere")
    for key in ("client.key", "locked.key"):
        with pytest.raises(ConfigError, match="its key, without a passphrase"):
            start(CERT=str(certificates / "server.pem"), KEY=str(certificates / key))
