from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import ScopeMetrics
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otel_bridge.bridge.forwarding.client import client_for
from otel_bridge.bridge.forwarding.forwarder import Forwarder
from otel_bridge.bridge.forwarding.segments import ForwardedSegments
from otel_bridge.bridge.ledger.queries import SegmentPosition
from otel_bridge.bridge.ledger.run_ledger import Ledger
from otel_bridge.bridge.process_segments import ProcessSegments
from otel_bridge.errors import JournalError, PermanentError, RetryableError
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.frames import Signal
from otel_bridge.journal.header import SegmentHeader
from otel_bridge.journal.segment import SegmentFile, SegmentWriter, read_segment
from otel_bridge.otlp.destination import endpoint_for
from otel_bridge_collector import Receiver, ReceiverSettings
from support.bridge.forwarded_metrics import RESOURCE, scope, values_of
from support.otlp.journal_samples import no_files_left
from support.trackers.mlflow_server import FaultProxy
from support.waiting import HANG_S


class Sender:
    """A process of the run that names otlp, and the ledger that its bridge has."""

    def __init__(self, base: Path) -> None:
        self.folder = RunFolder(base, "9f2c")
        self.folder.create()
        self.ledger = Ledger(self.folder.ledger_path)
        self.header = header = SegmentHeader(
            instance_id="a1", run_id="9f2c", project="maths", run_name="ppo", kind="process", resource=RESOURCE,
            exporters={"metrics": ("otlp",)}, destinations={}, host="h", boot_id="b", pid=1, start_ticks=1,
            created_unix_ns=1,
        )  # fmt: skip
        self.writer = SegmentWriter(
            self.folder.segments_dir, header, segment_bytes=4096
        )
        self.ledger.commit([], sources=[SegmentPosition("a1", 0, 0, header.to_bytes())])
        self.lines: list[str] = []
        self.progressed = threading.Event()

    def log(self, *values: float) -> None:
        for value in values:
            self.writer.append(Signal.METRICS, scope(value), time.time_ns())

    def worker(self, endpoint: str, **env: str) -> Forwarder:
        return Forwarder(
            self.folder, self.ledger, {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, **env},
            every_process=False, log_line=self.lines.append, progressed=self.progressed.set,
        )  # fmt: skip

    def wait(self, worker: Forwarder, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + HANG_S
        while not holds():
            assert time.monotonic() < deadline, worker.exporter_state
            self.progressed.wait(0.5)
            self.progressed.clear()


@pytest.fixture
def sender(tmp_path: Path) -> Iterator[Sender]:
    made = Sender(tmp_path / "here")
    yield made
    made.ledger.close()


def received(base: Path) -> list[float]:
    folder = RunFolder(base, "9f2c")
    frames = [
        found.payload
        for segment in folder.segments()
        for found in read_segment(segment.path, 0, limit_bytes=1 << 30, final=False)[
            1
        ].frames
    ]
    return values_of(frames)


def receiver(
    base: Path, *, grpc_port: int = 0, http_port: int = 0, **env: str
) -> Receiver:
    return Receiver(
        ReceiverSettings.from_environment(
            env, base, grpc_port=grpc_port, http_port=http_port
        )
    )


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_what_stands_in_the_segments_goes_on_over_both_protocols(
    sender: Sender, tmp_path: Path, protocol: str
) -> None:
    there = receiver(tmp_path / "there", OTEL_BRIDGE_TOKEN="secret")
    endpoint = there.grpc_endpoint if protocol == "grpc" else there.http_endpoint
    sender.log(*range(200))
    worker = sender.worker(
        endpoint,
        OTEL_EXPORTER_OTLP_PROTOCOL=protocol,
        OTEL_EXPORTER_OTLP_COMPRESSION="gzip",
        OTEL_BRIDGE_TOKEN="secret",
    )

    worker.start()
    sender.wait(
        worker,
        lambda: (
            worker.exporter_state.state == "idle"
            and len(received(tmp_path / "there")) == 200
        ),
    )
    sender.log(200, 201)
    worker.notify()
    sender.wait(worker, lambda: len(received(tmp_path / "there")) == 202)
    worker.stop()

    assert worker.join(10)
    assert received(tmp_path / "there") == [float(n) for n in range(202)]
    assert sender.lines == []
    there.stop()


def test_an_endpoint_that_comes_late_and_goes_away_loses_nothing(
    sender: Sender, tmp_path: Path
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    sender.log(1, 2, 3)
    worker = sender.worker(
        f"http://127.0.0.1:{port}", OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf"
    )

    worker.start()
    sender.wait(worker, lambda: worker.exporter_state.state == "retrying")
    there = receiver(tmp_path / "there", http_port=port)
    worker.notify(retry=True)
    sender.wait(worker, lambda: worker.exporter_state.state == "idle")
    there.stop()
    sender.log(4)
    worker.notify()
    sender.wait(worker, lambda: worker.exporter_state.state == "retrying")
    again = receiver(tmp_path / "there", http_port=port)
    worker.notify(retry=True)
    sender.wait(worker, lambda: worker.exporter_state.state == "idle")
    worker.stop()
    worker.join(10)
    again.stop()

    assert sorted(received(tmp_path / "there")) == [1.0, 2.0, 3.0, 4.0]


def test_a_new_lane_goes_on_where_the_last_one_was(
    sender: Sender, tmp_path: Path
) -> None:
    there = receiver(tmp_path / "there")
    sender.log(*range(50))
    first = sender.worker(there.grpc_endpoint)
    first.start()
    sender.wait(first, lambda: first.exporter_state.state == "idle")
    first.stop()
    first.join(10)
    sender.log(50)

    second = sender.worker(there.grpc_endpoint)
    second.start()
    sender.wait(second, lambda: len(received(tmp_path / "there")) == 51)
    second.stop()
    second.join(10)
    there.stop()

    assert received(tmp_path / "there") == [float(n) for n in range(51)]


def test_a_damaged_end_that_the_last_bridge_read_keeps_no_segment(
    sender: Sender, tmp_path: Path
) -> None:
    sender.log(1, 2)
    with open(sender.writer.path, "ab") as segment:
        segment.write(bytes(4096))  # as a power cut leaves it
        size = segment.tell()
    header = sender.header.to_bytes()
    sender.ledger.commit([], sources=[SegmentPosition("a1", 0, size, header)])
    there = receiver(tmp_path / "there")
    view = sender.ledger.view()

    worker = sender.worker(there.grpc_endpoint)
    worker.start()
    sender.wait(worker, lambda: view.sources()[0].forwarded_offset == size)
    worker.stop()
    worker.join(10)
    there.stop()
    view.close()

    assert received(tmp_path / "there") == [1.0, 2.0]


def test_a_header_that_could_not_be_read_for_a_moment_does_not_count_as_damaged(
    sender: Sender,
) -> None:
    segments = ForwardedSegments(ProcessSegments(sender.folder, "a1", 0))

    with no_files_left(), pytest.raises(JournalError):
        segments._header_at(0)

    assert segments._header_at(0) == sender.header


def test_nothing_is_sent_again_after_a_moment_in_which_the_folder_could_not_be_listed(
    sender: Sender, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = receiver(tmp_path / "there")
    unlisted = threading.Event()

    def none_listed(_folder: RunFolder) -> list[SegmentFile]:
        unlisted.set()
        return []

    sender.log(1, 2, 3)
    worker = sender.worker(there.grpc_endpoint)
    worker.start()
    sender.wait(worker, lambda: worker.exporter_state.state == "idle")
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "segments", none_listed)
        worker.notify()
        assert unlisted.wait(HANG_S)
    sender.log(4)
    worker.notify()
    sender.wait(worker, lambda: 4.0 in received(tmp_path / "there"))
    worker.stop()
    worker.join(10)
    there.stop()

    assert received(tmp_path / "there") == [1.0, 2.0, 3.0, 4.0]


def test_an_endpoint_that_is_too_slow_for_a_full_request_gets_smaller_ones(
    sender: Sender, tmp_path: Path
) -> None:
    there = receiver(tmp_path / "there")
    proxy = FaultProxy(there.http_endpoint)
    proxy.hang, proxy.hang_above = True, 100_000
    sender.writer.append(Signal.METRICS, scope(*range(15_000)), time.time_ns())
    worker = sender.worker(
        proxy.url,
        OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf",
        OTEL_EXPORTER_OTLP_TIMEOUT="0.5",
    )

    worker.start()
    sender.wait(worker, lambda: len(set(received(tmp_path / "there"))) == 15_000)
    worker.stop()

    assert worker.join(10)
    assert sorted(set(received(tmp_path / "there"))) == [
        float(n) for n in range(15_000)
    ]
    proxy.close()
    there.stop()


def test_a_process_that_is_forwarded_before_the_reader_knows_it_is_noted_when_it_does(
    sender: Sender, tmp_path: Path
) -> None:
    there = receiver(tmp_path / "there")
    header = replace(sender.header, instance_id="b1")
    writer = SegmentWriter(sender.folder.segments_dir, header, segment_bytes=4096)
    writer.append(Signal.METRICS, scope(7.0), time.time_ns())
    writer.close()
    worker = sender.worker(there.grpc_endpoint)
    worker.start()
    sender.wait(
        worker,
        lambda: (
            received(tmp_path / "there") == [7.0]
            and worker.exporter_state.state == "idle"
        ),
    )

    end = sender.folder.segment_path("b1", 0).stat().st_size
    sender.ledger.commit([], sources=[SegmentPosition("b1", 0, end, header.to_bytes())])
    worker.notify()

    view = sender.ledger.view()
    sender.wait(
        worker,
        lambda: (
            {one.instance_id: one.forwarded_offset for one in view.sources()}.get("b1")
            == end
        ),
    )
    view.close()
    worker.stop()
    worker.join(10)
    there.stop()


def test_a_wrong_token_blocks_and_says_what_to_set(
    sender: Sender, tmp_path: Path
) -> None:
    there = receiver(tmp_path / "there", OTEL_BRIDGE_TOKEN="secret")
    sender.log(1)
    worker = sender.worker(
        there.http_endpoint,
        OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf",
        OTEL_BRIDGE_TOKEN="wrong",
    )

    worker.start()
    sender.wait(worker, lambda: worker.exporter_state.state == "blocked")
    worker.stop()
    worker.join(10)
    there.stop()

    assert "OTEL_BRIDGE_TOKEN" in worker.exporter_state.help
    assert "wrong" not in " ".join(
        [
            *sender.lines,
            worker.exporter_state.reason,
            str(worker.exporter_state.destination),
        ]
    )


def forwarded(
    sender: Sender, base: Path, protocol: str, *, limit: int, count: int
) -> list[float]:
    """Forward to a receiver that takes *limit* bytes; returns its *count* values once it has them, none refused."""
    there = receiver(base, OTEL_BRIDGE_REQUEST_BYTES=str(limit))
    endpoint = there.grpc_endpoint if protocol == "grpc" else there.http_endpoint
    worker = sender.worker(endpoint, OTEL_EXPORTER_OTLP_PROTOCOL=protocol)
    worker.start()
    sender.wait(
        worker,
        lambda: worker.exporter_state.state == "idle" and len(received(base)) == count,
    )
    worker.stop()
    assert worker.join(10)
    there.stop()
    assert (worker.exporter_state.dead_letters, sender.lines) == (0, [])
    return received(base)


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_what_is_over_the_limit_of_the_other_end_goes_in_parts(
    sender: Sender, tmp_path: Path, protocol: str
) -> None:
    sender.log(*range(200))

    assert forwarded(sender, tmp_path / "there", protocol, limit=2000, count=200) == [
        float(n) for n in range(200)
    ]


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_a_request_that_a_receiver_stored_goes_in_parts_too(
    sender: Sender, tmp_path: Path, protocol: str
) -> None:
    request = ExportMetricsServiceRequest()
    part = request.resource_metrics.add(resource=Resource.FromString(RESOURCE))
    part.scope_metrics.append(ScopeMetrics.FromString(scope(*range(20_000))))
    sender.writer.append(
        Signal.METRICS, request.SerializeToString(), time.time_ns(), whole=True
    )

    found = forwarded(sender, tmp_path / "there", protocol, limit=70_000, count=20_000)

    assert found == [float(n) for n in range(20_000)]


@pytest.mark.parametrize(
    ("bytes_", "kind", "said"),
    [
        (2000, PermanentError, "larger than max"),
        (10, RetryableError, "quota of this minute"),
    ],
)
def test_a_request_over_the_limit_of_a_grpc_server_is_final_and_a_rate_limit_is_not(
    bytes_: int, kind: type[Exception], said: str
) -> None:
    def busy(_request: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(
            grpc.StatusCode.RESOURCE_EXHAUSTED, "the quota of this minute is used up"
        )
        return b""

    service = "opentelemetry.proto.collector.metrics.v1.MetricsService"
    handler = grpc.method_handlers_generic_handler(
        service, {"Export": grpc.unary_unary_rpc_method_handler(busy)}
    )
    server = grpc.server(
        ThreadPoolExecutor(1),
        [handler],
        options=[("grpc.max_receive_message_length", 1000)],
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    env = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
    }
    client = client_for(endpoint_for("metrics", env))

    with pytest.raises(kind, match=said):
        client.send(bytes(bytes_), "9f2c")

    client.close()
    server.stop(0)


def test_over_grpc_too_it_is_tried_again_when_the_other_end_asked_for_it(
    tmp_path: Path,
) -> None:
    there = receiver(tmp_path / "there")
    there.refuse("it ends")
    env = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": there.grpc_endpoint,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
    }
    client = client_for(endpoint_for("metrics", env))

    with pytest.raises(RetryableError, match="it ends") as caught:
        client.send(b"", "9f2c")

    client.close()
    there.stop()
    assert caught.value.retry_after_s == 1.0


def test_without_grpc_an_unset_protocol_means_http_and_that_is_said_once(
    sender: Sender, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = receiver(tmp_path / "there")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    worker = sender.worker(there.http_endpoint)
    sender.log(1.0)

    worker.start()
    sender.wait(worker, lambda: received(tmp_path / "there") == [1.0])
    worker.stop()

    assert worker.join(10)
    there.stop()
    (line,) = sender.lines
    assert line.startswith(
        "otlp goes by http/protobuf: OTEL_EXPORTER_OTLP_PROTOCOL is unset, and gRPC, the default,"
    )
    assert line.endswith("needs pip install 'otel-bridge[collector]'")
