"""Measurements: each is appended once, counted when it finds no room, and made for a process that lives."""

from __future__ import annotations

import dataclasses
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)

from otel_bridge import semconv
from otel_bridge.bridge import measurements as module
from otel_bridge.bridge import system_metrics
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.header import SegmentHeader
from otel_bridge.journal.machine import this_host
from support.bridge.bridge_doubles import measurements, run_folder
from support.engines.engine import Engine
from support.engines.served import answer, served
from support.otlp.journal_samples import all_frames
from support.otlp.otlp_samples import RUN, source
from support.trainers import e2e_jobs as job
from support.waiting import HANG_S


def header(instance_id: str) -> SegmentHeader:
    return SegmentHeader(
        instance_id=instance_id, run_id=RUN, project="gsm8k", run_name="ppo", kind="process",
        resource=source(instance_id, "trainer").resource, exporters={}, destinations={}, host="h",
        boot_id=this_host().boot_id, pid=1, start_ticks=1, created_unix_ns=1,
    )  # fmt: skip


def measuring(instance_id: str) -> SegmentHeader:
    return dataclasses.replace(header(instance_id), system_metrics_s=0.01)


def test_what_finds_no_room_is_counted_once_with_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_WAITING", 2)
    text = Engine("vllm 0.9").text().encode()
    answered: list[None] = []
    all_answered = threading.Event()
    over = threading.Event()

    def respond(handler: BaseHTTPRequestHandler) -> None:
        # The seventh request comes when the six answers before it are stored or dropped.
        if len(answered) == 6:
            all_answered.set()
            over.wait(HANG_S)
        answered.append(None)
        answer(handler, text)

    with (
        measurements(run_folder(tmp_path)) as (measured, reader),
        served(respond) as address,
    ):
        requested = dataclasses.replace(
            header("i1"), scrape=(f"http://{address}/metrics",), scrape_s=0.0
        )
        measured.measure_if_due([requested])
        assert all_answered.wait(HANG_S)

        appended = [measured.measure_if_due([requested]) for _ in range(2)]
        counts = dict(reader.state.items("drop/"))
        examples = dict(reader.state.items("dropkey/"))
        over.set()

    assert appended == [True, False]
    assert len(requests(run_folder(tmp_path))) == 2
    assert counts == {"drop/measurement": 4}
    assert examples == {"dropkey/measurement": f"engine-{address}"}


def test_a_machine_that_cannot_be_measured_is_named_and_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = system_metrics.request
    lines: list[str] = []

    def failing_first(*args: object) -> bytes:
        if not lines:
            raise RuntimeError("the driver is gone")
        return request(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(system_metrics, "request", failing_first)

    with measurements(run_folder(tmp_path), lines.append) as (measured, _):
        job.until(lambda: measured.measure_if_due([measuring("i1")]) or lines)
        job.until(lambda: measured.measure_if_due([measuring("i1")]))

    assert lines == [
        "no metrics of 1 of 1 sources: the machine cannot be measured (RuntimeError: the driver is gone)"
    ]


def test_a_machine_is_measured_for_another_process_when_the_first_has_ended(
    tmp_path: Path,
) -> None:
    folder = run_folder(tmp_path)
    with measurements(folder) as (measured, _):
        job.until(lambda: measured.measure_if_due([measuring("i1"), measuring("i2")]))
        job.until(
            lambda: (
                measured.measure_if_due([measuring("i2")])
                and instance_ids(folder)[-1] == "i2"
            )
        )

    assert instance_ids(folder)[0] == "i1"


def instance_ids(folder: RunFolder) -> list[str]:
    """Return the processes for which the bridge measured, in order."""
    names: list[str] = []
    for request in requests(folder):
        for pair in request.resource_metrics[0].resource.attributes:
            if pair.key == semconv.INSTANCE_ID:
                names.append(pair.value.string_value)
    return names


def requests(folder: RunFolder) -> list[ExportMetricsServiceRequest]:
    """Return what the bridge measured."""
    frames = all_frames(folder)
    return [ExportMetricsServiceRequest.FromString(frame.payload) for frame in frames]
