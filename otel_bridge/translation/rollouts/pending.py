"""Index of the traces that wait for spans, by due time. In memory only, pure."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping

from otel_bridge.translation.rollouts.trace_store import PendingTrace
from otel_bridge.translation.run_context import RunContext

_BARE = 4
"""Factor on the wait of a rollout whose messages may arrive in log records, which SDKs send every 1
to 5 s."""


class PendingTraces:
    """Indexes the traces that wait for spans.

    Args:
        traces: Live view of every stored trace, by id, oldest first. Traces that wait for spans are
            indexed at once.
        run: The run; its clock is that of receiving spans from remote producers.
    """

    def __init__(
        self,
        traces: Mapping[str, PendingTrace],
        run: RunContext,
    ) -> None:
        self._traces = traces
        self._options = run.options
        self._receive_clock = run.receive_clock
        self._due: list[tuple[int, str]] = []
        self.reconsider()

    def add(self, trace: PendingTrace) -> None:
        """Index a trace that is new, or due earlier than before."""
        heapq.heappush(self._due, (self._due_ns(trace), trace.id))

    def reconsider(self) -> None:
        """Compute the due time of each trace again, because `ReceiveClock` has changed."""
        self._due = [(self._due_ns(trace), trace.id) for trace in self._waiting()]
        heapq.heapify(self._due)

    def due(self, now_unix_ns: int) -> Iterator[tuple[PendingTrace, int]]:
        """Yield each overdue trace with its due time.

        Traces may be added and removed during the iteration.

        The due time, not the time now, is the time at which the trace is released, so that a bridge
        that was down in between gives the same records.
        """
        while self._due and self._due[0][0] <= now_unix_ns:
            trace = self._traces.get(heapq.heappop(self._due)[1])
            # An entry outlives its trace: removing it from the heap would need a search.
            if trace is None or trace.facts is not None:
                continue
            due_ns = self._due_ns(trace)
            # Its due time has moved: an old entry in the heap is cheaper than a search for it.
            if due_ns > now_unix_ns:
                heapq.heappush(self._due, (due_ns, trace.id))
            else:
                yield trace, due_ns

    def oldest(self, *, rollout: bool) -> PendingTrace | None:
        """Return the trace that has waited longest of those that are known to be rollouts, or of the others."""
        for trace in self._waiting():
            if trace.rollout == rollout:
                return trace
        return None

    def _waiting(self) -> Iterator[PendingTrace]:
        return (trace for trace in self._traces.values() if trace.facts is None)

    def _due_ns(self, trace: PendingTrace) -> int:
        """Return the time at which *trace* is released although spans of it may be missing.

        With its root after the grace, which is longer while log records may bring its messages.
        Without a root after the time-out, counted from the first marked span, so that a rollout
        which gets spans for ever is released too.
        """
        if trace.root_ns is not None:
            grace_ns = self._options.trace_grace_ns * (_BARE if trace.bare else 1)
            return self._receive_clock.due(trace.root_ns, grace_ns)
        since_ns = min(trace.last_ns, trace.marked_ns or trace.last_ns)
        return self._receive_clock.due(since_ns, self._options.trace_timeout_ns)
