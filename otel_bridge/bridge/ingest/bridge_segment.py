"""Writes what the bridge itself has to send to a segment of its own.

These are ends of dead processes, which cannot send them, signs of life, and measurements. They are
read, translated and forwarded like any other record.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.common.v1.common_pb2 import (
    AnyValue,
    InstrumentationScope,
    KeyValue,
)
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs, ScopeLogs
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric, ResourceMetrics
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otel_bridge import semconv
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.frames import Signal
from otel_bridge.journal.header import SegmentHeader
from otel_bridge.journal.segment import SegmentWriter
from otel_bridge.records import Status

KIND = "bridge"


class BridgeSegment:
    """Holds the segment of one bridge in one run folder; the first event creates it. One thread.

    An end or a measurement that a full disk refuses stays with the caller, which appends it at a
    later poll.

    Args:
        folder: The run folder, whose lock is held.
    """

    def __init__(self, folder: RunFolder) -> None:
        self.instance_id = os.urandom(8).hex()
        self._folder = folder
        self._writer: SegmentWriter | None = None

    def end(self, of: SegmentHeader, status: Status, time_unix_ns: int) -> None:
        """Append the end of a process; raises `JournalError` as `SegmentWriter.append` does."""
        attributes = string_attributes({semconv.RUN_STATUS: status.value})
        self._append_event(of, semconv.EVENT_END, attributes, time_unix_ns)

    def alive(self, of: SegmentHeader, time_unix_ns: int) -> None:
        """Append a sign of life of a process.

        Raises `JournalError` as `SegmentWriter.append` does.
        """
        self._append_event(of, semconv.EVENT_ALIVE, [], time_unix_ns)

    def metrics(self, of: SegmentHeader, request: bytes) -> None:
        """Append an export request of metrics.

        Raises `JournalError` as `SegmentWriter.append` does.
        """
        self._append(of, Signal.METRICS, request)

    def close(self) -> None:
        """Close the segment. May be called twice."""
        if self._writer is not None:
            self._writer.close()

    def _append_event(
        self,
        of: SegmentHeader,
        event: str,
        attributes: list[KeyValue],
        time_unix_ns: int,
    ) -> None:
        """Append a log record about the process of header *of*, in the name of that process.

        Raises `JournalError` as `SegmentWriter.append` does. It is a whole request with the
        resource of that process, because the segment's header names the bridge.
        """
        now = time.time_ns()
        record = LogRecord(
            time_unix_nano=time_unix_ns,
            observed_time_unix_nano=now,
            event_name=event,
            attributes=attributes,
        )
        scope = InstrumentationScope(name=semconv.SCOPE_NAME)
        request = ExportLogsServiceRequest(
            resource_logs=[
                ResourceLogs(
                    resource=Resource.FromString(of.resource),
                    scope_logs=[ScopeLogs(scope=scope, log_records=[record])],
                )
            ]
        )
        self._append(of, Signal.LOGS, request.SerializeToString())

    def _append(self, of: SegmentHeader, signal: Signal, request: bytes) -> None:
        """Append one request to the bridge's segment, which the first one creates.

        Raises `JournalError` when the segment cannot be created or the disk is full.
        """
        now = time.time_ns()
        if self._writer is None:
            # Only now: a bridge that appends nothing leaves no segment for others to read.
            header = SegmentHeader.of_this_process(
                KIND,
                self.instance_id,
                run_id=of.run_id,
                project=of.project,
                run_name=of.run_name,
            )
            self._writer = SegmentWriter(self._folder.segments_dir, header)
        self._writer.append(signal, request, now, whole=True)


def metrics_request(
    resource: Resource,
    metrics: Sequence[Metric],
    scope: str,
    attributes: Mapping[str, str] = MappingProxyType({}),
) -> bytes:
    """Return an export request of *metrics* that this bridge measured.

    Args:
        resource: Resource of the process that requested them.
        metrics: The metrics.
        scope: What was measured.
        attributes: Further attributes of the resource.
    """
    part = ResourceMetrics(resource=resource)
    # So that such points open no run again and belong to no role, rank or step.
    part.resource.attributes.add(key=semconv.SYSTEM).value.bool_value = True
    part.resource.attributes.extend(string_attributes(attributes))
    name = f"{semconv.SCOPE_NAME}.{scope}"
    part.scope_metrics.add(scope=InstrumentationScope(name=name), metrics=metrics)
    return ExportMetricsServiceRequest(resource_metrics=[part]).SerializeToString()


def string_attributes(attributes: Mapping[str, str]) -> list[KeyValue]:
    """Return *attributes* as OTLP."""
    pairs: list[KeyValue] = []
    for name, value in attributes.items():
        pairs.append(KeyValue(key=name, value=AnyValue(string_value=value)))
    return pairs
