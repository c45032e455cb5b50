"""Holds what all servers of a receiver share, independent of their protocol."""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import cast

from otel_bridge_collector.access import Access
from otel_bridge_collector.ingest import Accept
from otel_bridge_collector.limits import ReceiverLimits
from otel_bridge_collector.telemetry.counters import Counters

LARGE_BYTES = 1 << 20
_AFTER_S = 1.0


class HeapTrimmer:
    """Trims the heap a second after large requests, once for all of them. For the event loop's thread."""

    def __init__(self) -> None:
        self._trim = _malloc_trim()
        self._due: asyncio.TimerHandle | None = None

    def note(self, size_bytes: int) -> None:
        """Plan a trim when *size_bytes*, which one request held, is large; once for all until then.

        glibc keeps what was freed: four requests of 60 MiB over gRPC left 112 MiB. Nothing is done
        without glibc.
        """
        if size_bytes < LARGE_BYTES or self._due is not None or self._trim is None:
            return
        self._due = asyncio.get_running_loop().call_later(
            _AFTER_S, self._start, self._trim
        )

    def _start(self, trim: Callable[[int], int]) -> None:
        self._due = None
        asyncio.get_running_loop().run_in_executor(None, trim, 0)


def _malloc_trim() -> Callable[[int], int] | None:
    """Return glibc's function that returns free memory to the system; ``None`` without glibc."""
    try:
        return cast("Callable[[int], int]", ctypes.CDLL(None).malloc_trim)
    except (AttributeError, OSError):
        # Not glibc (macOS, musl): its heap is left to itself.
        return None


@dataclass(frozen=True, slots=True)
class ServerContext:
    """Holds the parts that all servers of a receiver share on its event loop, for all clients together.

    Attributes:
        accept: Stores a request; raises the same errors as `Ingest.accept`.
        access: Decides which clients may send.
        limits: Limits of requests and bytes.
        counters: Counts refusals.
        request_bytes: Largest request, also after decompression.
        heap: Returns memory to the system after large requests.
        decoding: Decodes large requests outside the event loop, one at a time, to limit memory.
    """

    accept: Accept
    access: Access
    limits: ReceiverLimits
    counters: Counters
    request_bytes: int
    heap: HeapTrimmer = field(default_factory=HeapTrimmer)
    decoding: ThreadPoolExecutor = field(
        default_factory=partial(ThreadPoolExecutor, 1, "otlp-decode")
    )
