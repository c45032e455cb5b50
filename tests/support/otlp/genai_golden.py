"""OTLP requests that real GenAI instrumentations sent, as tests/genai/record.py wrote them to tests/golden/genai."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
)
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.trace.v1.trace_pb2 import Span

FOLDER = Path(__file__).parents[2] / "golden" / "genai"
CASES = sorted({path.name.partition(".")[0] for path in FOLDER.glob("*.bin")})
CANARY = "CANARY"
"""In every text that a model reads or writes in the recordings, and in no name."""


def requests_of(case: str) -> Iterator[tuple[str, bytes]]:
    """Each request of a case: ``traces`` or ``logs``, and its bytes."""
    for path in sorted(FOLDER.glob(f"{case}.*.bin")):
        yield path.name.split(".")[2], path.read_bytes()


def spans_of(case: str) -> Iterator[Span]:
    """Each span of a case."""
    for signal, request in requests_of(case):
        if signal == "traces":
            for of_resource in ExportTraceServiceRequest.FromString(
                request
            ).resource_spans:
                for of_scope in of_resource.scope_spans:
                    yield from of_scope.spans


def logs_of(case: str) -> Iterator[LogRecord]:
    """Each log record of a case."""
    for signal, request in requests_of(case):
        if signal == "logs":
            for of_resource in ExportLogsServiceRequest.FromString(
                request
            ).resource_logs:
                for of_scope in of_resource.scope_logs:
                    yield from of_scope.log_records
