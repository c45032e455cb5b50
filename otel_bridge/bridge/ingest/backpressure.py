"""When the reader waits: what it reads ahead of everybody who could take it costs those who are at work."""

from __future__ import annotations

from typing import Final

from otel_bridge.bridge.delivery.exporter_set import ExporterSet
from otel_bridge.bridge.ingest.process_monitor import ProcessMonitor
from otel_bridge.exporter import OTLP
from otel_bridge.records import Position

AHEAD_RECORDS: Final = 4_000
"""How far a service reads ahead of writers that all fail."""
ENOUGH_RECORDS: Final = 6_000
"""How far the reader hastens ahead of the first writer when it is late: half as much again as our largest batch."""
READ_AT_LEAST_S: Final = 1.0
"""How long it waits for the writers at most: one of them may hang."""


def no_writer_ready(workers: ExporterSet, position: Position, processes: ProcessMonitor) -> bool:
    """Return whether every exporter fails or is blocked and has enough records, and no local process waits.

    What is not read stays in the segments, which take no more room than records in the ledger would, and is read as
    soon as one of them gets on.
    """
    found = [(name, worker.progress) for name, worker in workers.by_name.items()]
    if any(one.failing_since_s is None and one.state != "blocked" for _, one in found):
        return False
    written = max((one.written for name, one in found if name != OTLP), default=0)
    return position - written >= AHEAD_RECORDS and all(header.kind == "receiver" for header in processes.living())


def writers_saturated(workers: ExporterSet, position: Position) -> bool:
    """Return whether every writer at work is so far behind that reading more only takes the interpreter from it."""
    written = workers.written()
    return bool(written) and position - max(written) >= ENOUGH_RECORDS
