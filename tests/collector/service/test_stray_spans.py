"""Spans of an inference server at a service: they join the rollout of their trace id if they came with its token."""

from __future__ import annotations

import urllib.request
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span

from otel_bridge.journal.folder import run_folders
from support.bridge.bridge_doubles import until
from support.collector.service_process import Service, service
from support.otlp import trace_samples as sample
from support.trainers.command_runs import environment, records, runs
from support.waiting import ANSWER_S

pytestmark = pytest.mark.slow

JOB = {
    "rl.project": "vllm",
    "rl.run.name": "mine",
    "rl.role": "explorer",
    "rl.instance.id": "i1",
}


def send(
    running: Service, token: str, resource: dict[str, Any], scope: str, *spans: Span
) -> None:
    message = ResourceSpans(
        resource=Resource(attributes=sample.pairs(resource)),
        scope_spans=[sample.scope_spans(spans, scope)],
    )
    body = ExportTraceServiceRequest(resource_spans=[message]).SerializeToString()
    headers = {
        "Content-Type": "application/x-protobuf",
        "Authorization": f"Bearer {token}",
    }
    call = urllib.request.Request(
        f"{running.http}/v1/traces", body, headers, method="POST"
    )
    with urllib.request.urlopen(call, timeout=ANSWER_S) as answer:
        assert answer.status == 200


def spans_of_mine(folder: Path) -> set[str]:
    """The names of all spans that the run of the job shows, in its rollout or after it."""
    shown = [record for run in run_folders(runs(folder)) for record in records(run)]
    mine = [
        record
        for record in shown
        if record.get("rollout_key") or record["kind"] == "rollout"
    ]
    return {span["name"] for record in mine for span in record["spans"]}


@pytest.mark.long
def test_only_spans_with_the_token_of_the_rollout_join_it(tmp_path: Path) -> None:
    env = environment(
        tmp_path, OTEL_BRIDGE_TOKEN="ours,theirs", OTEL_BRIDGE_TRACE_GRACE_S="1"
    )
    root, chat, *_ = sample.rollout_spans("a", counted=False)
    spans = [
        sample.span("a", number, f"llm_request {number}", parent=2) for number in (8, 9)
    ]

    with service(tmp_path, env, "--exporters", "file") as running:
        send(running, "theirs", {"service.name": "their-server"}, "vllm", spans[0])
        send(running, "ours", {"service.name": "our-server"}, "vllm", spans[1])
        send(running, "ours", JOB, "otel_bridge", chat, root)
        until(lambda: "llm_request 9" in spans_of_mine(tmp_path))
        running.end()

    assert spans_of_mine(tmp_path) == {"rollout", "chat policy", "llm_request 9"}
