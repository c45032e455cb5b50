"""Spans of a rollout that arrive in another run, after the rollout was written."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans

from otel_bridge.bridge.exporter_environment import ExporterEnvironment
from otel_bridge.bridge.supervisor import BridgeSupervisor
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.frames import Signal
from otel_bridge.translation.decode.resources import RunIdentity
from otel_bridge_collector.run_segment import RunSegment
from support.bridge.bridge_doubles import Process, options, run_folder, until
from support.otlp import trace_samples as sample
from support.trainers.command_runs import records


def server_spans(base: Path) -> None:
    """Store spans of a server as the receiver does, in the run that their resource names."""
    resource = Resource(
        attributes=sample.pairs({"rl.run.id": "server", "service.name": "vllm-server"})
    )
    spans = sample.scope_spans([sample.span("a", 9, "llm_request", parent=2)], "vllm")
    request = ExportTraceServiceRequest(
        resource_spans=[ResourceSpans(resource=resource, scope_spans=[spans])]
    )
    folder, identity = RunFolder(base, "server"), RunIdentity("server", "p", "server")
    segment = RunSegment(
        folder, identity, instance_id="server", segment_bytes=1 << 20, sync=None
    )
    segment.append(Signal.TRACES, request.SerializeToString(), time.time_ns())
    segment.close()


def spans_shown(folder: RunFolder) -> list[tuple[str, list[str]]]:
    shown: list[dict[str, Any]] = [
        record for record in records(folder) if "spans" in record
    ]
    return [
        (record["kind"], [span["name"] for span in record["spans"]]) for record in shown
    ]


def test_a_closed_run_is_opened_again_for_spans_of_its_rollouts(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    job = Process.start(folder, "file")
    job.append(
        Signal.TRACES, sample.scope_spans(sample.rollout_spans("a")).SerializeToString()
    )
    job.end()
    settings = options(exporter_env=ExporterEnvironment({}, tmp_path))
    host = BridgeSupervisor(tmp_path, settings, may_join=lambda _run, _other: True)
    host.start()
    try:
        until(lambda: bool(spans_shown(folder)) and host.state().runs_open == 0)

        server_spans(tmp_path)
        until(lambda: len(spans_shown(folder)) == 2)
    finally:
        host.stop(5.0)

    [(kind, _), late] = spans_shown(folder)
    assert (kind, late) == ("rollout", ("trace", ["llm_request"]))


def test_spans_of_another_run_are_shown_although_the_run_of_the_rollout_is_silent(
    tmp_path: Path,
) -> None:
    folder = run_folder(tmp_path)
    job = Process.start(folder, "file")
    job.append(
        Signal.TRACES, sample.scope_spans(sample.rollout_spans("a")).SerializeToString()
    )
    settings = options(exporter_env=ExporterEnvironment({}, tmp_path))
    settings = replace(
        settings, translation=replace(settings.translation, step_startup_ns=0)
    )
    host = BridgeSupervisor(tmp_path, settings, may_join=lambda _run, _other: True)
    host.start()
    try:
        # The statistics of its step are the last that the run brings by itself.
        until(lambda: [one["kind"] for one in records(folder)] == ["rollout", "row"])

        server_spans(tmp_path)
        until(lambda: len(spans_shown(folder)) == 2)
    finally:
        job.end()
        host.stop(5.0)

    assert spans_shown(folder)[1] == ("trace", ["llm_request"])
