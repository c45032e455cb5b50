"""What every server of a receiver works with, whatever its protocol."""

from __future__ import annotations

from dataclasses import dataclass

from otel_bridge_collector.access import Access
from otel_bridge_collector.counters import Counters
from otel_bridge_collector.ingest import Accept
from otel_bridge_collector.limits import Limits


@dataclass(frozen=True, slots=True)
class Serving:
    """One for all servers of a receiver, on its event loop: limits and counters are of all clients together.

    Attributes:
        accept: Stores a request, raises as `Ingest.accept` does.
        access: Who may send.
        limits: How much.
        counters: Counts refusals.
        request_bytes: Largest request, inflated too.
    """

    accept: Accept
    access: Access
    limits: Limits
    counters: Counters
    request_bytes: int
