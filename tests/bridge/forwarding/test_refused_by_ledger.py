"""The lane of ``otlp`` where a segment cannot be read or the ledger cannot note: all is forwarded, whole, and noted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)

from otel_bridge.bridge.forwarding import segments
from otel_bridge.bridge.forwarding.client import Reply
from otel_bridge.bridge.forwarding.forwarder import Forwarder
from otel_bridge.bridge.ledger.run_ledger import Ledger
from otel_bridge.errors import FormatVersionError, JournalError, JournalFullError
from otel_bridge.semconv import HEADER_SERVER
from support.bridge.bridge_doubles import Process, run_folder


class End:
    """Another end that takes everything."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    def send(self, body: bytes, run_id: str) -> Reply:
        del run_id
        self.bodies.append(body)
        return Reply(b"", {HEADER_SERVER: "otel-bridge"})

    def close(self) -> None: ...

    def rows(self) -> list[bool]:
        """Return for each row whether its resource came with it."""
        found = [
            one
            for body in self.bodies
            for one in ExportMetricsServiceRequest.FromString(body).resource_metrics
        ]
        return [
            bool(one.resource.attributes) for one in found for _ in one.scope_metrics
        ]


@pytest.fixture
def worker(tmp_path: Path) -> tuple[Forwarder, End, Ledger]:
    folder = run_folder(tmp_path)
    ledger = Ledger(folder.ledger_path)
    env = {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}
    made = Forwarder(
        folder,
        ledger,
        env,
        every_process=False,
        log_line=lambda _: None,
        progressed=lambda: None,
    )
    other = End()
    for lane in made._lanes:
        lane.sender._client = other
    return made, other, ledger


def test_a_header_that_cannot_be_read_at_once_is_waited_for(
    worker: tuple[Forwarder, End, Ledger], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, other, _ = worker
    process = Process.start(made._folder, "otlp")
    process.log(10)
    read, refused = segments.read_segment, []

    def reading(path: Path, offset: int, **named: Any) -> Any:
        if len(refused) < 2:
            refused.append(path)
            raise JournalError("Too many open files")
        return read(path, offset, **named)

    monkeypatch.setattr(segments, "read_segment", reading)
    states = [made.step() and made.exporter_state.state for _ in range(3)]

    assert (states[:2], other.rows()) == (["retrying", "retrying"], [True] * 10)
    process.die()


def test_a_process_whose_segments_are_a_newer_versions_keeps_no_other_waiting(
    worker: tuple[Forwarder, End, Ledger], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, other, _ = worker
    newer, process = (
        Process.start(made._folder, "otlp"),
        Process.start(made._folder, "otlp"),
    )
    newer.log(3)
    process.log(10)
    read = segments.read_segment

    def reading(path: Path, offset: int, **named: Any) -> Any:
        if path.name.startswith(newer.instance):
            raise FormatVersionError("a newer version wrote it")
        return read(path, offset, **named)

    monkeypatch.setattr(segments, "read_segment", reading)
    for _ in range(10):
        made.step()

    assert (other.rows(), made.exporter_state.state) == ([True] * 10, "idle")
    newer.die()
    process.die()


def test_what_was_taken_and_could_not_be_noted_is_noted_at_the_next_step_and_not_sent_again(
    worker: tuple[Forwarder, End, Ledger], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, other, ledger = worker
    process = Process.start(made._folder, "otlp")
    process.log(4)
    noted: list[tuple[str, int, int]] = []

    def noting(*place: Any, **_ahead: Any) -> bool:
        if not noted:
            noted.append(("refused", 0, 0))
            raise JournalFullError("database or disk is full")
        noted.append(place)
        return True

    monkeypatch.setattr(ledger, "forwarded", noting)
    for _ in range(10):
        made.step()

    assert other.rows() == [True] * 4
    assert noted[1:] == [(process.instance, 0, process.writer.offset)]
    process.die()


def test_a_lane_that_is_stopped_does_not_say_that_it_sent_what_it_did_not(
    worker: tuple[Forwarder, End, Ledger],
) -> None:
    made, other, _ = worker
    process = Process.start(made._folder, "otlp")
    process.log(10)
    made.stop()

    made.step()

    assert (other.rows(), made.exporter_state.state) == ([], "writing")
    process.die()
