"""Writes the bridge's own events to a segment of its own: ends of dead processes, and signs of life.

A dead process cannot report its end. The bridge's events are read, translated and forwarded like
any other record.
"""

from __future__ import annotations

import os
import time

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
)
from opentelemetry.proto.common.v1.common_pb2 import (
    AnyValue,
    InstrumentationScope,
    KeyValue,
)
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs, ScopeLogs
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

    Args:
        folder: The run folder, whose lock is held.
    """

    def __init__(self, folder: RunFolder) -> None:
        self.instance_id = os.urandom(8).hex()
        self._folder = folder
        self._writer: SegmentWriter | None = None

    def end(self, of: SegmentHeader, status: Status, time_unix_ns: int) -> None:
        """Append the end of a process; raises `JournalError` as `SegmentWriter.append` does."""
        attribute = KeyValue(
            key=semconv.RUN_STATUS, value=AnyValue(string_value=status.value)
        )
        self._append_event(of, semconv.EVENT_END, [attribute], time_unix_ns)

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

        Raises `JournalError` as `SegmentWriter.append` does.
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
