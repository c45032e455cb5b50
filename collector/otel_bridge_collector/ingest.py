"""From a request's bytes to the run folders: parse, read the resources only, append; nothing walks the points.

Thread-safe. A request that names several runs is split by run; one that names one is kept byte for byte.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otel_bridge.errors import InvalidRecordError
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.frames import MAX_RECORD_BYTES, Signal
from otel_bridge.journal.quota import Quota
from otel_bridge.translation.identity import RunIdentity, attributes_of, run_of
from otel_bridge_collector.answers import TooLargeError, UnavailableError
from otel_bridge_collector.run_segment import RunSegment

Request: TypeAlias = ExportMetricsServiceRequest | ExportTraceServiceRequest | ExportLogsServiceRequest

_REQUESTS: Final[Mapping[Signal, type[Request]]] = {
    Signal.METRICS: ExportMetricsServiceRequest,
    Signal.TRACES: ExportTraceServiceRequest,
    Signal.LOGS: ExportLogsServiceRequest,
}
_OPEN_RUNS: Final = 256
_KNOWN_RESOURCES: Final = 4096


@dataclass(frozen=True, slots=True)
class IngestSettings:
    """Where and how requests are kept.

    Attributes:
        base: Folder of run folders.
        max_bytes: Limit of that folder.
        fsync: Wait for the disk before a request is acknowledged.
        segment_bytes: Size at which a segment is closed.
    """

    base: Path
    max_bytes: int
    fsync: bool
    segment_bytes: int


class Ingest:
    """Keeps requests. `accept` returns when the request is safe; until then it may be sent again."""

    def __init__(self, settings: IngestSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._runs: OrderedDict[str, RunSegment] = OrderedDict()
        self._identities: OrderedDict[bytes, RunIdentity] = OrderedDict()
        self._quota = Quota(settings.base, settings.max_bytes)
        self._closed = False

    def accept(self, signal: Signal, body: bytes) -> None:
        """Append a serialised export request.

        Raises:
            InvalidRecordError: The bytes are no such request.
            TooLargeError: They are more than a record may have.
            UnavailableError: We are closing, or the directory's limit is reached.
            JournalError: They could not be stored.
        """
        if len(body) > MAX_RECORD_BYTES:
            raise TooLargeError(f"request of {len(body)} bytes, at most {MAX_RECORD_BYTES}; send smaller batches")
        try:
            request = _REQUESTS[signal].FromString(body)
        except DecodeError as exc:
            raise InvalidRecordError(f"{len(body)} bytes are no OTLP {signal.name.lower()} request: {exc}") from exc
        now = time.time_ns()
        for identity, payload in self._by_run(request, body):
            self._segment(identity).append(signal, payload, now)

    def close(self) -> None:
        """Refuse what comes from here on and close all segments."""
        with self._lock:
            self._closed = True
            runs, self._runs = list(self._runs.values()), OrderedDict()
        for run in runs:
            run.close()

    def _by_run(self, request: Request, body: bytes) -> Iterator[tuple[RunIdentity, bytes]]:
        parts: OrderedDict[RunIdentity, list[int]] = OrderedDict()
        for index, resource in enumerate(_resources(request)):
            parts.setdefault(self._identity(resource), []).append(index)
        if len(parts) == 1:
            yield next(iter(parts)), body
            return
        for identity, indices in parts.items():
            yield identity, _part(request, indices).SerializeToString()

    def _identity(self, resource: Resource) -> RunIdentity:
        key = resource.SerializeToString(deterministic=True)
        with self._lock:
            known = self._identities.get(key)
            if known is not None:
                self._identities.move_to_end(key)
                return known
        identity = run_of(attributes_of(key))
        with self._lock:
            self._identities[key] = identity
            if len(self._identities) > _KNOWN_RESOURCES:
                self._identities.popitem(last=False)
        return identity

    def _segment(self, identity: RunIdentity) -> RunSegment:
        """Return the open segment of a run; opens one where there is none, closes the one used longest ago."""
        with self._lock:
            if self._closed:
                raise UnavailableError("the receiver is shutting down; send it again")
            if self._quota.full():
                raise UnavailableError(
                    f"{self._settings.base} has reached its limit (OTEL_BRIDGE_MAX_BYTES or half of the disk)"
                )
            run = self._runs.get(identity.id)
            if run is not None and run.usable():
                self._runs.move_to_end(identity.id)
                return run
            if run is not None:
                run.close()
            folder = RunFolder(self._settings.base, identity.id)
            run = RunSegment(
                folder,
                identity,
                instance_id=os.urandom(8).hex(),
                segment_bytes=self._settings.segment_bytes,
                fsync=self._settings.fsync,
            )
            self._runs[identity.id] = run
            oldest = self._runs.popitem(last=False)[1] if len(self._runs) > _OPEN_RUNS else None
        if oldest is not None:
            oldest.close()
        return run


def _resources(request: Request) -> Iterator[Resource]:
    if isinstance(request, ExportMetricsServiceRequest):
        yield from (part.resource for part in request.resource_metrics)
    elif isinstance(request, ExportTraceServiceRequest):
        yield from (part.resource for part in request.resource_spans)
    else:
        yield from (part.resource for part in request.resource_logs)


def _part(request: Request, indices: list[int]) -> Request:
    """Return a request with the resources at *indices* only."""
    if isinstance(request, ExportMetricsServiceRequest):
        return ExportMetricsServiceRequest(resource_metrics=[request.resource_metrics[index] for index in indices])
    if isinstance(request, ExportTraceServiceRequest):
        return ExportTraceServiceRequest(resource_spans=[request.resource_spans[index] for index in indices])
    return ExportLogsServiceRequest(resource_logs=[request.resource_logs[index] for index in indices])
