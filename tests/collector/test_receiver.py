from __future__ import annotations

import asyncio
import gzip
import http.client
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError

import grpc
import pytest
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from otel_bridge.errors import ConfigError
from otel_bridge.journal.folder import run_folders
from otel_bridge.journal.frames import Frame, Signal
from otel_bridge.journal.header import SegmentHeader
from otel_bridge.journal.segment import read_segment
from otel_bridge.records import run_id_of
from otel_bridge_collector import Receiver, ReceiverSettings
from otel_bridge_collector.ingest import Ingest
from otel_bridge_collector.telemetry.counters import Counters
from support.bridge.bridge_doubles import until
from support.waiting import ANSWER_S

EXPORT = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"


def request(*runs: str, value: float = 0.5) -> bytes:
    message = ExportMetricsServiceRequest()
    for run in runs:
        part = message.resource_metrics.add()
        part.resource.attributes.append(
            KeyValue(key="rl.project", value=AnyValue(string_value="maths"))
        )
        part.resource.attributes.append(
            KeyValue(key="rl.run.name", value=AnyValue(string_value=run))
        )
        metric = part.scope_metrics.add().metrics.add(name="loss")
        metric.gauge.data_points.add(as_double=value, time_unix_nano=1)
    return message.SerializeToString()


def stored(base: Path) -> dict[str, list[tuple[SegmentHeader, Frame]]]:
    found: dict[str, list[tuple[SegmentHeader, Frame]]] = {}
    for folder in run_folders(base):
        for segment in folder.segments():
            header, scan = read_segment(
                segment.path, 0, limit_bytes=1 << 30, final=False
            )
            assert header is not None
            found.setdefault(folder.run_id, []).extend(
                (header, frame) for frame in scan.frames
            )
    return found


def post(
    receiver: Receiver, body: bytes, path: str = "/v1/metrics", **headers: str
) -> tuple[int, dict[str, str], bytes]:
    names = {
        "Content-Type": "application/x-protobuf",
        **{key.replace("_", "-"): text for key, text in headers.items()},
    }
    call = urllib.request.Request(
        receiver.http_endpoint + path, body, names, method="POST"
    )
    try:
        with urllib.request.urlopen(call, timeout=ANSWER_S) as answer:
            return answer.status, dict(answer.headers), answer.read()
    except HTTPError as exc:
        return exc.code, dict(exc.headers), exc.read()


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    listening = Receiver(
        ReceiverSettings.from_environment(
            {"OTEL_BRIDGE_REQUEST_BYTES": "1MiB"}, tmp_path
        )
    )
    yield listening
    listening.stop()


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Receiver]:
    listening = Receiver(
        ReceiverSettings.from_environment({"OTEL_BRIDGE_TOKEN": "new,old"}, tmp_path)
    )
    yield listening
    listening.stop()


def test_a_request_over_http_is_kept_byte_for_byte_before_it_is_acknowledged(
    receiver: Receiver, tmp_path: Path
) -> None:
    body = request("ppo")

    status, headers, answer = post(receiver, body)

    assert (status, answer, headers["content-type"]) == (
        200,
        b"",
        "application/x-protobuf",
    )
    assert "otel-bridge-version" in headers
    ((header, frame),) = stored(tmp_path)[run_id_of("maths", "ppo")]
    assert (header.kind, header.project, header.run_name) == (
        "receiver",
        "maths",
        "ppo",
    )
    assert (frame.signal, frame.whole, frame.payload) == (Signal.METRICS, True, body)


def test_gzip_and_deflate_are_inflated(receiver: Receiver, tmp_path: Path) -> None:
    import zlib

    assert (
        post(receiver, gzip.compress(request("ppo")), Content_Encoding="gzip")[0] == 200
    )
    assert (
        post(receiver, zlib.compress(request("ppo")), Content_Encoding="deflate")[0]
        == 200
    )

    assert [
        frame.payload for _, frame in stored(tmp_path)[run_id_of("maths", "ppo")]
    ] == [request("ppo")] * 2


def test_a_request_may_hold_as_many_runs_as_are_open_at_one_time(
    receiver: Receiver, tmp_path: Path
) -> None:
    assert post(receiver, request(*map(str, range(256))))[0] == 200

    assert len(stored(tmp_path)) == 256


def test_a_request_over_grpc_is_kept(receiver: Receiver, tmp_path: Path) -> None:
    with grpc.insecure_channel(
        receiver.grpc_endpoint.removeprefix("http://")
    ) as channel:
        answer, call = channel.unary_unary(EXPORT).with_call(
            request("ppo"), timeout=ANSWER_S
        )

    assert answer == b""
    assert "otel-bridge-version" in dict(call.trailing_metadata())
    ((_, frame),) = stored(tmp_path)[run_id_of("maths", "ppo")]
    assert frame.payload == request("ppo")


def test_a_request_of_two_runs_is_split_by_run(
    receiver: Receiver, tmp_path: Path
) -> None:
    post(receiver, request("a", "b", "a"))

    kept = stored(tmp_path)
    assert {
        run: [frame.payload for _, frame in frames] for run, frames in kept.items()
    } == {
        run_id_of("maths", "a"): [request("a", "a")],
        run_id_of("maths", "b"): [request("b")],
    }


@pytest.mark.parametrize(
    ("body", "headers", "status", "code"),
    [
        (b"\xff\xff\xff", {}, 400, 3),
        (gzip.compress(request("ppo"))[:-4], {"Content_Encoding": "gzip"}, 400, 3),
        (b"no gzip", {"Content_Encoding": "gzip"}, 400, 3),
        (request("ppo"), {"Content_Encoding": "br"}, 415, 12),
        (b"{}", {"Content_Type": "text/plain"}, 415, 12),
        (b"x" * ((1 << 20) + 1), {}, 413, 8),
        (gzip.compress(b"x" * (64 << 20)), {"Content_Encoding": "gzip"}, 413, 8),
        (gzip.compress(b"") * 2, {"Content_Encoding": "gzip"}, 400, 3),
        (b"\x0a\x00" * 200_000, {}, 413, 8),
        (request(*map(str, range(257))), {}, 413, 8),
    ],
    ids=[
        "garbage",
        "torn gzip",
        "no gzip",
        "unknown encoding",
        "unknown type",
        "too large",
        "bomb",
        "several gzip members",
        "nothing but resources",
        "too many runs",
    ],
)
def test_what_cannot_be_taken_is_refused_for_good_with_a_reason(
    receiver: Receiver,
    tmp_path: Path,
    body: bytes,
    headers: dict[str, str],
    status: int,
    code: int,
) -> None:
    seen, _, answer = post(receiver, body, **headers)

    reason = Status.FromString(answer)
    assert (seen, reason.code) == (status, code)
    assert reason.message
    assert stored(tmp_path) == {}


def test_garbage_over_grpc_is_an_invalid_argument(receiver: Receiver) -> None:
    with (
        grpc.insecure_channel(
            receiver.grpc_endpoint.removeprefix("http://")
        ) as channel,
        pytest.raises(grpc.RpcError) as caught,
    ):
        channel.unary_unary(EXPORT)(b"\xff\xff\xff", timeout=ANSWER_S)

    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_a_full_directory_asks_clients_of_both_kinds_to_try_again(
    tmp_path: Path,
) -> None:
    (tmp_path / "filler").write_bytes(b"x" * 2048)
    receiver = Receiver(
        ReceiverSettings.from_environment({"OTEL_BRIDGE_MAX_BYTES": "1k"}, tmp_path)
    )
    try:
        status, headers, _ = post(receiver, request("ppo"))
        with (
            grpc.insecure_channel(
                receiver.grpc_endpoint.removeprefix("http://")
            ) as channel,
            pytest.raises(grpc.RpcError) as caught,
        ):
            channel.unary_unary(EXPORT)(request("ppo"), timeout=ANSWER_S)
    finally:
        receiver.stop()

    assert (status, headers["retry-after"]) == (503, "1")
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    trailers = {key for key, _ in caught.value.trailing_metadata()}
    assert {"grpc-status-details-bin", "google.rpc.retryinfo-bin"} <= trailers


def test_only_a_valid_token_gets_in_and_several_may_be_valid(
    guarded: Receiver, tmp_path: Path
) -> None:
    assert [
        post(guarded, request("ppo"), **headers)[0]
        for headers in (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": "Basic new"},
            {"Authorization": "Bearer new"},
            {"Authorization": "Bearer%20old"},
        )
    ] == [401, 401, 401, 200, 200]

    with grpc.insecure_channel(
        guarded.grpc_endpoint.removeprefix("http://")
    ) as channel:
        export = channel.unary_unary(EXPORT)
        export(
            request("ppo"), timeout=ANSWER_S, metadata=[("authorization", "Bearer old")]
        )
        with pytest.raises(grpc.RpcError) as caught:
            export(request("ppo"), timeout=ANSWER_S)
    assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED


def test_an_address_that_others_can_reach_needs_a_token(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="OTEL_BRIDGE_TOKEN"):
        ReceiverSettings.from_environment({}, tmp_path, host="0.0.0.0")

    assert ReceiverSettings.from_environment(
        {"OTEL_BRIDGE_TOKEN": "x"}, tmp_path, host="0.0.0.0"
    ).tokens == ("x",)


def test_a_port_that_is_taken_is_said(receiver: Receiver, tmp_path: Path) -> None:
    port = int(receiver.grpc_endpoint.rpartition(":")[2])

    with pytest.raises(ConfigError, match=f"gRPC cannot listen on 127.0.0.1:{port}"):
        Receiver(ReceiverSettings.from_environment({}, tmp_path, grpc_port=port))


def test_segments_roll_and_a_deleted_folder_is_made_again(tmp_path: Path) -> None:
    import shutil

    env = {"OTEL_BRIDGE_SEGMENT_BYTES": "2k"}
    receiver = Receiver(ReceiverSettings.from_environment(env, tmp_path))
    try:
        for _ in range(40):
            post(receiver, request("ppo"))
        (folder,) = run_folders(tmp_path)
        rolled = len(folder.segments())
        shutil.rmtree(folder.path)
        post(receiver, request("ppo"))
    finally:
        receiver.stop()

    assert rolled > 1
    assert len(stored(tmp_path)[run_id_of("maths", "ppo")]) == 1


def test_other_paths_and_methods_are_not_found(receiver: Receiver) -> None:
    connection = http.client.HTTPConnection(
        receiver.http_endpoint.removeprefix("http://"), timeout=ANSWER_S
    )
    connection.request("GET", "/v1/metrics")
    answer = connection.getresponse()

    assert (answer.status, answer.getheader("Allow")) == (405, "POST")
    assert b"GET /v1/metrics: expected POST" in answer.read()
    connection.request("POST", "/metrics")
    answer = connection.getresponse()
    assert (answer.status, answer.getheader("Allow")) == (405, "GET")
    assert b"POST /metrics: expected GET" in answer.read()
    assert post(receiver, b"", path="/v1/profiles")[0] == 404


def test_the_limit_of_the_directory_holds_however_fast_requests_come_and_readyz_says_that_all_are_refused(
    tmp_path: Path,
) -> None:
    limit, body = 2 << 20, request(*["r" * 900] * 100)
    env = {"OTEL_BRIDGE_MAX_BYTES": str(limit)}
    receiver = Receiver(
        ReceiverSettings.from_environment(env, tmp_path, grpc_port=None, http_port=0)
    )
    try:
        taken = 0
        while (answer := post(receiver, body))[0] == 200:
            taken += 1
        refused = post(receiver, request("other"))
        unready = receiver.unready()
        for folder in run_folders(tmp_path):
            for segment in folder.segments():
                segment.path.unlink()
        until(lambda: receiver.unready() == [])
        again = post(receiver, body)
    finally:
        receiver.stop()

    assert limit - len(body) - (16 << 10) < taken * len(body) < limit + len(body)
    assert (answer[0], refused[0], again[0]) == (503, 503, 200)
    (why,) = unready
    assert why.startswith(
        f"{tmp_path} has reached its limit (OTEL_BRIDGE_MAX_BYTES); `otel-bridge status` shows what"
    )
    assert "delete folders of ended runs" in why


def test_requests_that_arrive_together_at_the_start_are_all_kept(
    tmp_path: Path,
) -> None:
    settings = ReceiverSettings.from_environment({}, tmp_path).ingest

    async def store() -> None:
        ingest = Ingest(settings, Counters())
        bodies = [request(run) for run in "abc"]
        await asyncio.gather(*(ingest.accept(Signal.METRICS, body) for body in bodies))
        await ingest.close()

    asyncio.run(store())

    assert len(stored(tmp_path)) == 3
