"""Attempt of a process whose first data are not rows but rollouts, or statistics of rollouts.

For rows, `StepAxes.attempt` detects the attempt. This module does the same for data before the
first row, so that the statistics of a further attempt's first step belong to that attempt.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import ScopeLogs
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans

from otel_bridge import semconv
from otel_bridge.records import Record, axis_of
from otel_bridge.translation.decode.attributes import as_int, value_of
from otel_bridge.translation.events import Events
from otel_bridge.translation.metrics.keys import StepAxes
from otel_bridge.translation.processes.producers import ProducerContext


class AttemptDetector:
    """Detects a process's attempt, by `StepAxes`, and emits the config of a further attempt."""

    def __init__(self, axes: StepAxes, events: Events) -> None:
        self._axes = axes
        self._events = events

    def of_spans(
        self, context: ProducerContext, scopes: Iterable[ScopeSpans], now_unix_ns: int
    ) -> list[Record]:
        """Detect the attempt of a process from its spans.

        Return the config of a further attempt.
        """
        return self._detected(context, _of_spans(scopes), now_unix_ns)

    def of_logs(
        self, context: ProducerContext, scopes: Iterable[ScopeLogs], now_unix_ns: int
    ) -> list[Record]:
        """Detect the attempt of a process from its events.

        Return the config of a further attempt.
        """
        return self._detected(context, _of_rollout_events(scopes), now_unix_ns)

    def _detected(
        self,
        context: ProducerContext,
        attributes_of_each: Iterable[Iterable[KeyValue]],
        now_unix_ns: int,
    ) -> list[Record]:
        """Note the attempt from the first step; nothing is read once the attempt is known.

        Nothing without a whole step of the process's own role, as of rollouts without one.
        """
        role = context.producer.role
        axis = axis_of(role)
        if axis in context.process.attempts:
            return []
        for attributes in attributes_of_each:
            step = _step(attributes, role)
            if step is None:
                continue
            attempt = self._axes.attempt(context.process, axis, step)
            if self._axes.restarted.pop(axis, None) is None:
                return []
            return self._events.restarted(role, attempt, now_unix_ns)
        return []


def _of_spans(scopes: Iterable[ScopeSpans]) -> Iterator[Iterable[KeyValue]]:
    for scope in scopes:
        for span in scope.spans:
            yield span.attributes


def _of_rollout_events(scopes: Iterable[ScopeLogs]) -> Iterator[Iterable[KeyValue]]:
    for scope in scopes:
        for record in scope.log_records:
            if record.event_name == semconv.EVENT_ROLLOUTS:
                yield record.attributes


def _step(attributes: Iterable[KeyValue], role: str | None) -> int | None:
    """Return the step in *attributes*, unless *attributes* name another role."""
    facts = {
        pair.key: value_of(pair.value)
        for pair in attributes
        if pair.key in {semconv.STEP, semconv.ROLE}
    }
    if facts.get(semconv.ROLE, role) != role:
        return None
    return as_int(facts.get(semconv.STEP))
