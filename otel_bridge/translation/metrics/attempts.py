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
from otel_bridge.records import axis_of
from otel_bridge.translation.decode.attributes import as_int, mapping_of
from otel_bridge.translation.metrics.keys import StepAxes
from otel_bridge.translation.processes.producers import ProducerContext


def note_attempt(
    axes: StepAxes,
    context: ProducerContext,
    scopes: Iterable[ScopeSpans] | Iterable[ScopeLogs],
) -> None:
    """Note the attempt of a process from the first step in its spans or events.

    Nothing is read once the attempt is known. It stays unknown without a whole step of the
    process's own role, as of rollouts without one.

    It is noted before the data are used, because statistics of a step belong to one attempt of the
    role.
    """
    role = context.producer.role
    axis = axis_of(role)
    if axis in context.process.attempts:
        return
    for attributes in _attributes_of(scopes):
        step = _step(attributes, role)
        if step is not None:
            axes.attempt(context.process, axis, step)
            return


def _attributes_of(
    scopes: Iterable[ScopeSpans] | Iterable[ScopeLogs],
) -> Iterator[Iterable[KeyValue]]:
    """Yield the attributes of each span, and of each event with statistics of rollouts.

    A process whose first rollouts are all sampled out sends statistics alone.
    """
    for scope in scopes:
        if isinstance(scope, ScopeSpans):
            for span in scope.spans:
                yield span.attributes
            continue
        for record in scope.log_records:
            if record.event_name == semconv.EVENT_ROLLOUTS:
                yield record.attributes


def _step(attributes: Iterable[KeyValue], role: str | None) -> int | None:
    """Return the step in *attributes*, unless *attributes* name another role."""
    facts = mapping_of(
        pair for pair in attributes if pair.key in {semconv.STEP, semconv.ROLE}
    )
    if facts.get(semconv.ROLE, role) != role:
        return None
    return as_int(facts.get(semconv.STEP))
