"""From a request's bytes to the run folders: parse, read the resources only, append; nothing walks the points.

On the event loop. A request of several runs is split by run; every payload is made of the bytes as they came. It is
parsed once, in C, only to refuse what is no OTLP.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_bridge.errors import FormatVersionError, InvalidRecordError, JournalError
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.frames import MAX_RECORD_BYTES, Signal
from otel_bridge.journal.quota import Quota
from otel_bridge.translation.identity import RunIdentity, attributes_of, run_of
from otel_bridge_collector.answers import TooLargeError, UnavailableError
from otel_bridge_collector.counters import Counters
from otel_bridge_collector.group_sync import GroupSync
from otel_bridge_collector.items import items_in
from otel_bridge_collector.metrics_text import SERVICE_MARK
from otel_bridge_collector.run_segment import RunSegment
from otel_bridge_collector.wire import parts

Request: TypeAlias = ExportMetricsServiceRequest | ExportTraceServiceRequest | ExportLogsServiceRequest

REQUESTS: Final[Mapping[Signal, type[Request]]] = {
    Signal.METRICS: ExportMetricsServiceRequest,
    Signal.TRACES: ExportTraceServiceRequest,
    Signal.LOGS: ExportLogsServiceRequest,
}
_OPEN_RUNS: Final = 256
_RUNS: Final = 256
"""Runs of one request: a new one costs ten milliseconds, in which no other request is answered."""
_IDLE_S: Final = 60.0
_KNOWN_RESOURCES: Final = 4096
_KNOWN_BYTES: Final = 16 << 10
_NAME_CHARACTERS: Final = 1024


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


@dataclass(slots=True)
class Rejected:
    """What of a request that was taken is not.

    Attributes:
        items: Points, spans or records.
        reason: Why, the first one.
    """

    items: int = 0
    reason: str = ""


Accept: TypeAlias = Callable[[Signal, bytes], Awaitable[Rejected | None]]
"""How a server stores a request: `Ingest.accept`."""


class Ingest:
    """Keeps requests. For one thread, the event loop's; `refuse` is for any.

    Args:
        settings: Where and how.
        counters: Counts.
    """

    def __init__(self, settings: IngestSettings, counters: Counters) -> None:
        self._settings, self._counters = settings, counters
        self._runs: OrderedDict[str, RunSegment] = OrderedDict()
        self._identities: OrderedDict[bytes, RunIdentity | InvalidRecordError | None] = OrderedDict()
        self._quota = Quota(settings.base, settings.max_bytes)
        self.sync = GroupSync() if settings.fsync else None
        self._refusing = ""

    @property
    def open_runs(self) -> int:
        """Runs whose segment is open."""
        return len(self._runs)

    @property
    def refusing(self) -> str:
        """Why nothing is taken now; empty when it is."""
        return self._refusing

    async def accept(self, signal: Signal, body: bytes) -> Rejected | None:
        """Append a serialised export request; it is safe when this returns, until then it may be sent again.

        Returns:
            What of it can never be taken, for ``partial_success``.

        Raises:
            InvalidRecordError: The bytes are no such request, or nothing of it can ever be taken.
            TooLargeError: They are more than a record may have, or of too many runs, resources or scopes.
            UnavailableError: We are closing, or the directory's limit is reached.
            JournalError: They could not be stored.
        """
        if self._refusing:
            raise UnavailableError(self._refusing)
        if len(body) > MAX_RECORD_BYTES:
            raise TooLargeError(f"request of {len(body)} bytes, at most {MAX_RECORD_BYTES}; send smaller batches")
        found = list(parts(body))  # first: it refuses what would take a hundred times its size when parsed
        try:
            REQUESTS[signal].FromString(body)
        except DecodeError as exc:
            raise InvalidRecordError(f"{len(body)} bytes are no OTLP {signal.name.lower()} request: {exc}") from exc
        by_run, rejected = self._by_run(signal, body, found)
        waited_for = self._append(signal, by_run, rejected)
        try:
            for one in waited_for:
                await one
        except JournalError:
            # What a failed sync left on the disk nobody knows: this file is not trusted with more.
            for identity in by_run:
                if identity.id in self._runs:
                    self._runs.pop(identity.id).close()
            raise
        self._counters.requests[signal.name.lower()] += 1
        self._counters.rejected += rejected.items
        return rejected if rejected.reason else None

    def refuse(self, reason: str) -> None:
        """Take nothing more; clients are told *reason* and to try again."""
        self._refusing = reason

    def close_idle(self, now_s: float | None = None) -> None:
        """Close the segments of runs that had nothing for a minute: their folders can be closed too."""
        before_s = (time.monotonic() if now_s is None else now_s) - _IDLE_S
        for run_id, run in list(self._runs.items()):
            if run.used_s <= before_s:
                self._runs.pop(run_id).close()

    def close(self) -> None:
        """Close all segments; what is waited for is synced first."""
        self._refusing = self._refusing or "the receiver is shutting down; send it again"
        runs, self._runs = list(self._runs.values()), OrderedDict()
        for run in runs:
            run.close()
        if self.sync is not None:
            self.sync.stop()

    def _by_run(
        self, signal: Signal, body: bytes, resources: Sequence[tuple[bytes, bytes]]
    ) -> tuple[dict[RunIdentity, bytes], Rejected]:
        """Split a request by run; one of a single run stays as it came."""
        found: dict[RunIdentity, list[bytes]] = {}
        rejected = Rejected()
        whole = True
        for resource, part in resources:
            identity = self._identity(resource)
            if isinstance(identity, RunIdentity):
                found.setdefault(identity, []).append(part)
                continue
            whole = False
            if identity is not None:
                _reject(rejected, signal, part, identity)
        if rejected.reason and not found:
            raise InvalidRecordError(rejected.reason)
        if len(found) > _RUNS:
            raise TooLargeError(f"request of {len(found)} runs, at most {_RUNS}; send smaller batches")
        if whole and len(found) == 1:
            return dict.fromkeys(found, body), rejected
        return {identity: b"".join(own) for identity, own in found.items()}, rejected

    def _append(
        self, signal: Signal, by_run: Mapping[RunIdentity, bytes], rejected: Rejected
    ) -> list[asyncio.Future[None]]:
        now_ns = time.time_ns()
        waited_for: list[asyncio.Future[None]] = []
        for identity, payload in by_run.items():
            try:
                future = self._segment(identity).append(signal, payload, now_ns)
            except FormatVersionError as exc:
                # It would be refused for ever, and hold up every other run behind it in a client's queue.
                if len(by_run) == 1:
                    raise InvalidRecordError(str(exc)) from exc
                _reject(rejected, signal, payload, exc)
                continue
            self._counters.appended_bytes += len(payload)
            if future is not None:
                waited_for.append(future)
        return waited_for

    def _identity(self, resource: bytes) -> RunIdentity | InvalidRecordError | None:
        """Return the run of a resource, or why it can have none; ``None`` for what belongs to no run."""
        if resource in self._identities:
            return self._identities[resource]
        attributes = attributes_of(resource)
        found: RunIdentity | InvalidRecordError | None = None
        if attributes.get(SERVICE_MARK) is not True:
            found = run_of(attributes)
            longest = max(len(found.id), len(found.project), len(found.name))
            if longest > _NAME_CHARACTERS:
                found = InvalidRecordError(
                    f"a run's id, project or name has {longest} characters, at most {_NAME_CHARACTERS}; shorten it"
                )
        if len(resource) <= _KNOWN_BYTES:
            self._identities[resource] = found
            if len(self._identities) > _KNOWN_RESOURCES:
                self._identities.popitem(last=False)
        return found

    def _segment(self, identity: RunIdentity) -> RunSegment:
        """Return the open segment of a run; opens one where there is none, closes the one used longest ago."""
        if self._quota.full():
            raise UnavailableError(
                f"{self._settings.base} has reached its limit (OTEL_BRIDGE_MAX_BYTES or half of the disk)"
            )
        run = self._runs.get(identity.id)
        if run is not None and run.usable():
            self._runs.move_to_end(identity.id)
            return run
        if run is not None:
            self._runs.pop(identity.id).close()
        run = RunSegment(
            RunFolder(self._settings.base, identity.id),
            identity,
            instance_id=os.urandom(8).hex(),
            segment_bytes=self._settings.segment_bytes,
            sync=self.sync,
        )
        self._runs[identity.id] = run
        if len(self._runs) > _OPEN_RUNS:
            self._runs.popitem(last=False)[1].close()
        return run


def _reject(rejected: Rejected, signal: Signal, part: bytes, why: Exception) -> None:
    rejected.items += items_in(REQUESTS[signal].FromString(part))
    rejected.reason = rejected.reason or str(why)
