"""Traces that wait for spans, findable by age and by the time they are due. In memory only, pure."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping

from otel_bridge.translation.hearing import Hearing
from otel_bridge.translation.options import Options
from otel_bridge.translation.traces import OpenTrace


class OpenTraces:
    """An index of the traces that are not complete; its length is their number.

    Args:
        traces: Every trace that is stored, by id, oldest first, as it stands at any time. Those that wait for spans
            are indexed at once.
        options: Waiting times.
        hearing: Since when those could be heard who send spans.
    """

    def __init__(self, traces: Mapping[str, OpenTrace], options: Options, hearing: Hearing) -> None:
        self._traces, self._options, self._hearing = traces, options, hearing
        self._due: list[tuple[int, str]] = []
        self._rollouts: dict[str, None] = {}
        self._undecided: dict[str, None] = {}
        for trace in traces.values():
            if trace.facts is None:
                self.index(trace)

    def __len__(self) -> int:
        return len(self._rollouts) + len(self._undecided)

    def index(self, trace: OpenTrace, *, due: bool = True) -> None:
        """Make a trace that waits for spans findable, as what it is known to be by now.

        Args:
            trace: The trace; it keeps its age when it was indexed before and is still of the same kind.
            due: Also by the time it is due: it is new, or due earlier than when it was indexed last.
        """
        if trace.rollout:
            self._undecided.pop(trace.id, None)
            self._rollouts[trace.id] = None
        else:
            self._undecided[trace.id] = None
        if due:
            heapq.heappush(self._due, (self._due_ns(trace), trace.id))

    def reconsider(self) -> None:
        """Ask anew when each trace is due: `Hearing` says otherwise now."""
        waiting = (self._traces[trace_id] for trace_id in (*self._rollouts, *self._undecided))
        self._due = [(self._due_ns(trace), trace.id) for trace in waiting]
        heapq.heapify(self._due)

    def forget(self, trace: OpenTrace) -> None:
        """Take a trace out; unknown ones are fine."""
        self._rollouts.pop(trace.id, None)
        self._undecided.pop(trace.id, None)

    def due(self, now_unix_ns: int) -> Iterator[tuple[OpenTrace, int]]:
        """Yield each trace whose time is up, and when it was; traces may come and go while this is walked through."""
        while self._due and self._due[0][0] <= now_unix_ns:
            trace = self._traces.get(heapq.heappop(self._due)[1])
            if trace is None or trace.facts is not None:
                continue
            due_ns = self._due_ns(trace)
            if due_ns > now_unix_ns:
                heapq.heappush(self._due, (due_ns, trace.id))
            else:
                yield trace, due_ns

    def oldest_rollout(self) -> OpenTrace | None:
        """Return the trace that has been known to be a rollout for longest."""
        return self._first(self._rollouts)

    def oldest_undecided(self) -> OpenTrace | None:
        """Return the trace that has waited for longest without being known to be a rollout."""
        return self._first(self._undecided)

    def _first(self, trace_ids: Mapping[str, None]) -> OpenTrace | None:
        return self._traces[next(iter(trace_ids))] if trace_ids else None

    def _due_ns(self, trace: OpenTrace) -> int:
        if trace.root_ns is not None:
            return self._hearing.due(trace.root_ns, self._options.trace_grace_ns)
        since_ns = min(trace.last_ns, trace.marked_ns or trace.last_ns)
        return self._hearing.due(since_ns, self._options.trace_timeout_ns)
