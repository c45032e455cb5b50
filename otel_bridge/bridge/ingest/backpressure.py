"""Decides when the reader of a service pauses: while no writer of the run works."""

from __future__ import annotations

from operator import attrgetter

from otel_bridge.bridge.delivery.exporter_set import ExporterSet
from otel_bridge.bridge.ingest.process_monitor import ProcessMonitor
from otel_bridge.exporter import OTLP, WEBHOOK
from otel_bridge.records import Position

AHEAD_RECORDS = 4_000
"""Records that a service reads ahead of writers that all fail."""


def no_writer_ready(
    workers: ExporterSet, position: Position, processes: ProcessMonitor
) -> bool:
    """Return whether every exporter fails or is blocked and has enough records, and no local process waits.

    Unread records stay in the segments, where they take no more room than in the ledger, and
    translation costs several times what receiving costs: in an outage of all trackers it would slow
    the receiver for nothing. The bridge reads them once an exporter makes progress. ``False``
    without any exporter too, until it has read `AHEAD_RECORDS`.
    """
    states = workers.states()
    if len(states) > 1:
        states.pop(WEBHOOK, None)  # it passes over rows, so it is always ready
    # One writer that works is enough: it would wait for records that are not read.
    if any(not state.failing and state.state != "blocked" for state in states.values()):
        return False
    # Not of ``otlp``: it forwards segments and has no position in the ledger.
    states.pop(OTLP, None)
    written = max(map(attrgetter("written"), states.values()), default=0)
    if position - written < AHEAD_RECORDS:
        return False
    # A local program waits in `flush` and `finish` for what is read.
    return all(header.kind == "receiver" for header in processes.living())
