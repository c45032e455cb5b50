"""Log events of ours and of the GenAI conventions -> configs, ends, life signs, late values. Pure.

An event of ours is known by (instance, ``rl.event.seq``) and acted on once; one without a number by its content.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, cast

from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from otel_bridge import semconv
from otel_bridge.records import Json, Record, Status
from otel_bridge.redaction import scrubbed
from otel_bridge.translation.attributes import int_in, mapping_of, text_in
from otel_bridge.translation.configs import ConfigEvent, Configs
from otel_bridge.translation.identity import Speaker
from otel_bridge.translation.life import EndEvent, Life
from otel_bridge.translation.process import Process
from otel_bridge.translation.seen import Seen, identity
from otel_bridge.translation.state import State, count

_MAX_REASONS = 100
"""Drop reasons counted of one process."""


class RolloutEvents(Protocol):
    """Whoever takes the events that are about rollouts."""

    def evaluation(
        self,
        resource_attributes: Mapping[str, object],
        instance_id: str,
        log_record: LogRecord,
        now_unix_ns: int,
    ) -> list[Record]:
        """Take a ``gen_ai.evaluation.result``."""
        ...

    def left_out(
        self,
        resource_attributes: Mapping[str, object],
        instance_id: str,
        log_record: LogRecord,
        now_unix_ns: int,
    ) -> list[Record]:
        """Take an ``rl.rollouts``."""
        ...


@dataclass(frozen=True, slots=True)
class _Event:
    speaker: Speaker
    process: Process
    record: LogRecord
    attributes: Mapping[str, object]
    seq: int
    time_unix_ns: int


class Events:
    """The events of one run."""

    def __init__(self, state: State, life: Life, seen: Seen, rollouts: RolloutEvents) -> None:
        self._state, self._life, self._seen, self._rollouts = state, life, seen, rollouts
        self._configs = Configs(state)
        self.redelivered = 0

    def take(self, speaker: Speaker, process: Process, record: LogRecord, now_unix_ns: int) -> list[Record]:
        """Act on one log record; records that are no event of these are passed over."""
        attributes: dict[str, object] = dict(mapping_of(record.attributes))
        name = record.event_name or text_in(attributes, semconv.EVENT_NAME)
        if name not in _NAMES:
            return []
        seq = max(int_in(attributes, semconv.EVENT_SEQ) or 0, 0)
        time_ns = record.time_unix_nano or record.observed_time_unix_nano or now_unix_ns
        event = _Event(speaker, process, record, attributes, seq, time_ns)
        if not self._new(event, name):
            self.redelivered += 1
            return []
        return self._act(name, event, now_unix_ns)

    def restarted(self, role: str | None, attempt: int, time_unix_ns: int) -> list[Record]:
        """Tell in the config that *role* began another attempt."""
        return [*self._configs.attempt(role, attempt, time_unix_ns)]

    def _act(self, name: str, event: _Event, now_unix_ns: int) -> list[Record]:
        if name in _DATA:
            self._life.data(event.process, now_unix_ns, event=event.seq)
            if name == semconv.EVENT_CONFIG:
                return self._config(event)
            take = self._rollouts.evaluation if name == semconv.EVENT_EVALUATION else self._rollouts.left_out
            return take(event.speaker.attributes, event.process.instance, event.record, now_unix_ns)
        if name == semconv.EVENT_END:
            self._end(event, now_unix_ns)
        elif name == semconv.EVENT_DROPPED:
            self._dropped(event)
        return []

    def _new(self, event: _Event, name: str) -> bool:
        process, seq = event.process, event.seq
        if name == semconv.EVENT_ALIVE:
            return True
        if seq and not event.speaker.foreign:
            if process.events.seen(seq):
                return False
            process.events.add(seq, 0)
            process.dirty = True
            return True
        if name == semconv.EVENT_END:
            return True  # ending twice changes nothing
        return self._seen.add(identity(process.instance, event.record.SerializeToString(deterministic=True)))

    def _end(self, event: _Event, now_unix_ns: int) -> None:
        said = text_in(event.attributes, semconv.RUN_STATUS)
        status = Status(said) if said in _STATUSES else Status.FINISHED
        last_row = max(int_in(event.attributes, semconv.SEQ) or 0, 0)
        self._life.end(event.process, EndEvent(status, event.seq, last_row, event.time_unix_ns), now_unix_ns)

    def _dropped(self, event: _Event) -> None:
        """Add what the process has dropped since it last said so; its counts only grow."""
        counts = mapping_of(event.record.body.kvlist_value.values)
        known = event.process.dropped
        for reason in counts:
            number = int_in(counts, reason) or 0
            before = known.get(reason, 0)
            if number > before and (reason in known or len(known) < _MAX_REASONS):
                known[reason] = number
                count(self._state, reason, number - before)
        event.process.dirty = True

    def _config(self, event: _Event) -> list[Record]:
        # Ours come scrubbed; who does not know us may send anything.
        config = cast("dict[str, Json]", scrubbed(mapping_of(event.record.body.kvlist_value.values)))
        role = text_in(event.attributes, semconv.ROLE) or event.process.role
        return [*self._configs.merge(ConfigEvent(event.process.instance, role, event.seq, event.time_unix_ns, config))]


_STATUSES = frozenset(status.value for status in Status)
_DATA = frozenset({semconv.EVENT_CONFIG, semconv.EVENT_ROLLOUTS, semconv.EVENT_EVALUATION})
"""Events that something is made of; the others are about the process itself."""
_NAMES = _DATA | {semconv.EVENT_END, semconv.EVENT_ALIVE, semconv.EVENT_DROPPED}
