"""Runs in a folder of their own, and what lies in their segments afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from opentelemetry.proto.common.v1 import common_pb2
from opentelemetry.proto.logs.v1 import logs_pb2
from opentelemetry.proto.metrics.v1 import metrics_pb2
from opentelemetry.proto.resource.v1 import resource_pb2

import otel_bridge
from otel_bridge import semconv
from otel_bridge.emit.run import Run
from otel_bridge.journal.folder import run_folders
from otel_bridge.journal.frames import Signal
from otel_bridge.journal.header import SegmentHeader
from otel_bridge.journal.segment import read_segment

CLEAN = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(("OTEL_", "WANDB_", "MLFLOW_", "TRACKIO_"))
    and name not in {"RANK", "WORLD_SIZE"}
}


@dataclass(frozen=True)
class SeenRow:
    """One row as it stands in a segment."""

    step: int
    values: Mapping[str, object]
    seq: int
    role: str | None = None
    own_ns: int | None = None


@dataclass(frozen=True)
class SeenEvent:
    name: str
    attributes: Mapping[str, object]
    body: object = None
    time_unix_ns: int = field(default=0, compare=False)


@dataclass
class SegmentContents:
    """What one process appended."""

    header: SegmentHeader
    rows: list[SeenRow] = field(default_factory=list)
    events: list[SeenEvent] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    gap_bytes: int = 0

    @property
    def resource(self) -> dict[str, object]:
        parsed = resource_pb2.Resource.FromString(self.header.resource)
        return {pair.key: any_value(pair.value) for pair in parsed.attributes}

    @property
    def steps(self) -> list[int]:
        return [row.step for row in self.rows]

    def event(self, name: str) -> SeenEvent:
        """Return the only event of a name; of those of drops, which count all so far, the last."""
        events = [event for event in self.events if event.name == name]
        if name == semconv.EVENT_DROPPED:
            return events[-1]
        (event,) = events
        return event


def any_value(value: common_pb2.AnyValue) -> object:
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    if kind == "kvlist_value":
        return {pair.key: any_value(pair.value) for pair in value.kvlist_value.values}
    if kind == "array_value":
        return [any_value(item) for item in value.array_value.values]
    return getattr(value, kind)


def seen_in(base: Path) -> list[SegmentContents]:
    """Read every segment below *base*, by process, in the order in which they were begun."""
    found: dict[str, SegmentContents] = {}
    for folder in run_folders(base):
        for file in folder.segments():
            header, scan = read_segment(file.path, 0, limit_bytes=1 << 30, final=True)
            assert header is not None
            seen = found.setdefault(file.instance_id, SegmentContents(header))
            seen.gap_bytes += scan.gap_bytes
            for frame in scan.frames:
                if frame.signal == Signal.METRICS:
                    _take_row(seen, frame.payload)
                elif frame.signal == Signal.LOGS:
                    _take_events(seen, frame.payload)
    return sorted(found.values(), key=lambda seen: seen.header.created_unix_ns)


def _take_row(seen: SegmentContents, payload: bytes) -> None:
    scope = metrics_pb2.ScopeMetrics.FromString(payload)
    values: dict[str, object] = {}
    for metric in scope.metrics:
        if metric.WhichOneof("data") == "exponential_histogram":
            (histogram,) = metric.exponential_histogram.data_points
            values[metric.name] = (
                histogram.count,
                histogram.sum,
                histogram.min,
                histogram.max,
            )
        else:
            (point,) = metric.gauge.data_points
            values[metric.name] = getattr(point, point.WhichOneof("value"))
    row = scope.metrics[-1].gauge.data_points[0]
    attributes = {pair.key: any_value(pair.value) for pair in row.attributes}
    assert values.pop("rl.row") == len(values)
    seen.times.append(row.time_unix_nano)
    role, own_ns = attributes.get("rl.role"), attributes.get("rl.row.time_unix_ns")
    seen.rows.append(
        SeenRow(attributes["rl.step"], values, attributes["rl.seq"], role, own_ns)
    )


def _take_events(seen: SegmentContents, payload: bytes) -> None:
    for record in logs_pb2.ScopeLogs.FromString(payload).log_records:
        attributes = {pair.key: any_value(pair.value) for pair in record.attributes}
        seen.events.append(
            SeenEvent(
                record.event_name,
                attributes,
                any_value(record.body),
                record.time_unix_nano,
            )
        )


def held(base: Path, **more: str) -> dict[str, str]:
    """Return an environment in which a run is appended below *base* and no bridge is started."""
    return {
        **CLEAN,
        "OTEL_BRIDGE_DIR": str(base),
        "OTEL_BRIDGE_OFFLINE": "1",
        "OTEL_BRIDGE_QUIET": "1",
        **more,
    }


@contextmanager
def environment_of(variables: Mapping[str, str]) -> Iterator[None]:
    """Replace this process's environment; end the run begun in it."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(variables)
    try:
        yield
    finally:
        otel_bridge.finish(timeout_s=0)
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def run_in(
    base: Path, variables: Mapping[str, str] | None = None, **arguments: object
) -> Iterator[Run]:
    """Begin a run in this process that only appends."""
    with environment_of({**held(base), **(variables or {})}):
        yield otel_bridge.init(**{"project": "gsm8k", "name": "ppo", **arguments})  # type: ignore[arg-type]


def run_script(
    code: str, env: Mapping[str, str], *, cwd: Path | None = None, timeout_s: float = 60
) -> subprocess.CompletedProcess[str]:
    """Run *code* as a script of its own."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=dict(env),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
