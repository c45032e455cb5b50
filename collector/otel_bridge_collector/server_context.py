"""Holds what all servers of a receiver share, independent of their protocol."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from otel_bridge_collector.access import Access
from otel_bridge_collector.ingest import Accept
from otel_bridge_collector.limits import ReceiverLimits
from otel_bridge_collector.telemetry.counters import Counters


@dataclass(frozen=True, slots=True)
class ServerContext:
    """Holds the parts that all servers of a receiver share on its event loop, for all clients together.

    Attributes:
        accept: Stores a request; raises the same errors as `Ingest.accept`.
        access: Decides which clients may send.
        limits: Limits of requests and bytes.
        counters: Counts refusals.
        request_bytes: Largest request, also after decompression.
        decoding: Decodes large requests outside the event loop, one at a time, to limit memory.
    """

    accept: Accept
    access: Access
    limits: ReceiverLimits
    counters: Counters
    request_bytes: int
    decoding: ThreadPoolExecutor = field(
        default_factory=partial(ThreadPoolExecutor, 1, "otlp-decode")
    )
