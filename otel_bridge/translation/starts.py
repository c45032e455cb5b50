"""Which start of its role a process is, where its first word is no row but a rollout, or statistics of rollouts.

Rows count the starts themselves (`Axes.attempt`); here the same is asked of what a process says before its first row,
so that the statistics of a further attempt's first step belong to it.
"""

from __future__ import annotations

from collections.abc import Iterable

from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import ScopeLogs
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans

from otel_bridge import semconv
from otel_bridge.records import Record, axis_of
from otel_bridge.translation.attributes import integer, value_of
from otel_bridge.translation.events import Events
from otel_bridge.translation.keys import Axes
from otel_bridge.translation.voices import Voice


class Starts:
    """Asks `Axes` which start a process is, and tells the config of a further one."""

    def __init__(self, axes: Axes, events: Events) -> None:
        self._axes, self._events = axes, events

    def of_spans(self, voice: Voice, scopes: Iterable[ScopeSpans], now_unix_ns: int) -> list[Record]:
        """Look at the spans of a process."""
        if not self._unknown(voice):
            return []
        return self._told(voice, (span.attributes for scope in scopes for span in scope.spans), now_unix_ns)

    def of_logs(self, voice: Voice, scopes: Iterable[ScopeLogs], now_unix_ns: int) -> list[Record]:
        """Look at the events of a process."""
        if not self._unknown(voice):
            return []
        records = (record for scope in scopes for record in scope.log_records)
        rollouts = (record.attributes for record in records if record.event_name == semconv.EVENT_ROLLOUTS)
        return self._told(voice, rollouts, now_unix_ns)

    def _unknown(self, voice: Voice) -> bool:
        return axis_of(voice.speaker.role) not in voice.process.attempts

    def _told(self, voice: Voice, said: Iterable[Iterable[KeyValue]], now_unix_ns: int) -> list[Record]:
        role = voice.speaker.role
        steps = (step for step in (_step(attributes, role) for attributes in said) if step is not None)
        step = next(steps, None)
        if step is None:
            return []
        axis = axis_of(role)
        attempt = self._axes.attempt(voice.process, axis, step)
        if self._axes.restarted.pop(axis, None) is None:
            return []
        return self._events.restarted(role, attempt, now_unix_ns)


def _step(attributes: Iterable[KeyValue], role: str | None) -> int | None:
    """Return the step that *attributes* name, unless they are another role's."""
    found = {pair.key: value_of(pair.value) for pair in attributes if pair.key in {semconv.STEP, semconv.ROLE}}
    if found.get(semconv.ROLE, role) != role:
        return None
    return integer(found.get(semconv.STEP))
