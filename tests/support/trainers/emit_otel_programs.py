"""Running a program with a stock OpenTelemetry SDK, and reading what its run's segments hold."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
)
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ScopeLogs
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric, ScopeMetrics
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span

from otel_bridge.journal.folder import run_folders
from otel_bridge.journal.header import SegmentHeader
from otel_bridge.journal.segment import read_segment
from support.trainers.emit_rollout_doubles import plain
from support.waiting import HANG_S

INSTRUMENT = [
    str(Path(sys.executable).with_name("opentelemetry-instrument")),
    sys.executable,
]


@dataclass
class Written:
    """What the segments of a folder hold, in the order appended."""

    headers: list[SegmentHeader] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    metrics: list[Metric] = field(default_factory=list)
    logs: list[LogRecord] = field(default_factory=list)

    def points(self, name: str) -> list[tuple[Any, float]]:
        """Step (either name) and value of each point of a gauge or sum."""
        found = []
        for metric in self.metrics:
            if metric.name == name:
                kind = metric.WhichOneof("data")
                for point in getattr(metric, str(kind)).data_points:
                    given = {pair.key: plain(pair.value) for pair in point.attributes}
                    value = (
                        point.as_int
                        if point.WhichOneof("value") == "as_int"
                        else point.as_double
                    )
                    found.append((given.get("rl.step", given.get("step")), value))
        return found

    @property
    def ends(self) -> list[str]:
        return [
            plain(pair.value)
            for record in self.logs
            for pair in record.attributes
            if record.event_name == "rl.run.end" and pair.key == "rl.run.status"
        ]


def written(base: Path) -> Written:
    found = Written()
    for folder in run_folders(base):
        for segment in folder.segments():
            header, scan = read_segment(
                segment.path, 0, limit_bytes=1 << 30, final=True
            )
            assert header is not None
            found.headers.append(header)
            for frame in scan.frames:
                _read(found, int(frame.signal), frame.payload, frame.whole)
    return found


def _read(found: Written, signal: int, payload: bytes, whole: bool) -> None:
    if signal == 1:
        requests = (
            ExportMetricsServiceRequest.FromString(payload).resource_metrics
            if whole
            else []
        )
        scopes = (
            [s for r in requests for s in r.scope_metrics]
            if whole
            else [ScopeMetrics.FromString(payload)]
        )
        found.metrics += [metric for scope in scopes for metric in scope.metrics]
    elif signal == 2:
        traces = (
            ExportTraceServiceRequest.FromString(payload).resource_spans
            if whole
            else []
        )
        groups = (
            [s for r in traces for s in r.scope_spans]
            if whole
            else [ScopeSpans.FromString(payload)]
        )
        found.spans += [span for scope in groups for span in scope.spans]
    elif signal == 3:
        logs = (
            ExportLogsServiceRequest.FromString(payload).resource_logs if whole else []
        )
        logged = (
            [s for r in logs for s in r.scope_logs]
            if whole
            else [ScopeLogs.FromString(payload)]
        )
        found.logs += [record for scope in logged for record in scope.log_records]


def run_program(
    folder: Path, source: str, *, instrument: bool = True, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run *source* as a program in *folder*, appending only; its run is ``p/n`` below ``runs``."""
    (folder / "prog.py").write_text(source)
    clean = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("OTEL_", "WANDB_", "MLFLOW_"))
    }
    own = {"OTEL_BRIDGE_DIR": str(folder / "runs"), "OTEL_BRIDGE_OFFLINE": "1"}
    own["OTEL_RESOURCE_ATTRIBUTES"] = "rl.project=p,rl.run.name=n"
    command = INSTRUMENT if instrument else [sys.executable]
    return subprocess.run(
        [*command, "prog.py"], cwd=folder, env={**clean, **own, **env}, capture_output=True, text=True, check=False,
        timeout=HANG_S,
    )  # fmt: skip
