"""Index of the traces that wait for spans, by age and by due time. In memory only, pure."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping

from otel_bridge.translation.options import TranslationOptions
from otel_bridge.translation.processes.receive_clock import ReceiveClock
from otel_bridge.translation.rollouts.trace_store import PendingTrace

_BARE = 4
"""Factor on the wait of a rollout whose messages may arrive in log records, which SDKs send every 1
to 5 s."""


class PendingTraces:
    """Indexes the incomplete traces; its length is their number.

    Args:
        traces: Live view of every stored trace, by id, oldest first. Traces that wait for spans are
            indexed at once.
        options: Waiting times.
        receive_clock: Clock of receiving spans from remote producers.
    """

    def __init__(
        self,
        traces: Mapping[str, PendingTrace],
        options: TranslationOptions,
        receive_clock: ReceiveClock,
    ) -> None:
        self._traces = traces
        self._options = options
        self._receive_clock = receive_clock
        self._due: list[tuple[int, str]] = []
        self._rollouts: dict[str, None] = {}
        self._undecided: dict[str, None] = {}
        for trace in traces.values():
            if trace.facts is None:
                self.index(trace)

    def __len__(self) -> int:
        return len(self._rollouts) + len(self._undecided)

    def index(self, trace: PendingTrace, *, due: bool = True) -> None:
        """Index a trace that waits for spans, as a rollout or as undecided.

        Args:
            trace: The trace; a trace that was indexed before as the same kind keeps its age.
            due: Whether to index the due time too: the trace is new, or due earlier than before.
        """
        if trace.rollout:
            self._undecided.pop(trace.id, None)
            self._rollouts[trace.id] = None
        else:
            self._undecided[trace.id] = None
        if due:
            heapq.heappush(self._due, (self._due_ns(trace), trace.id))

    def reconsider(self) -> None:
        """Compute the due time of each trace again, because `ReceiveClock` has changed."""
        waiting = (
            self._traces[trace_id] for trace_id in (*self._rollouts, *self._undecided)
        )
        self._due = [(self._due_ns(trace), trace.id) for trace in waiting]
        heapq.heapify(self._due)

    def forget(self, trace: PendingTrace) -> None:
        """Remove a trace; unknown traces are allowed."""
        self._rollouts.pop(trace.id, None)
        self._undecided.pop(trace.id, None)

    def due(self, now_unix_ns: int) -> Iterator[tuple[PendingTrace, int]]:
        """Yield each overdue trace with its due time.

        Traces may be added and removed during the iteration.
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

    def oldest_rollout(self) -> PendingTrace | None:
        """Return the trace that has been a known rollout for longest."""
        return self._first(self._rollouts)

    def oldest_undecided(self) -> PendingTrace | None:
        """Return the trace that has waited longest without being a known rollout."""
        return self._first(self._undecided)

    def _first(self, trace_ids: Mapping[str, None]) -> PendingTrace | None:
        if trace_ids:
            return self._traces[next(iter(trace_ids))]
        return None

    def _due_ns(self, trace: PendingTrace) -> int:
        if trace.root_ns is not None:
            grace_ns = self._options.trace_grace_ns * (_BARE if trace.bare else 1)
            return self._receive_clock.due(trace.root_ns, grace_ns)
        since_ns = min(trace.last_ns, trace.marked_ns or trace.last_ns)
        return self._receive_clock.due(since_ns, self._options.trace_timeout_ns)
