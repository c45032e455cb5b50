"""Log events of otel-bridge and the GenAI conventions -> configs, summaries, media, ends, evaluations. Pure.

An event of otel-bridge is identified by (instance, ``rl.event.seq``) and has effect once. An event without a number is
identified by its content.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, cast

from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from otel_bridge import semconv
from otel_bridge.records import Alert, Json, Record, Status
from otel_bridge.text.secret_patterns import redact_and_cut, scrubbed
from otel_bridge.translation.alerts import note_raised
from otel_bridge.translation.decode import content_events
from otel_bridge.translation.decode.attributes import int_in, mapping_of, text_in
from otel_bridge.translation.decode.resources import Producer
from otel_bridge.translation.metrics.configs import Configs
from otel_bridge.translation.metrics.dedup import Deduplicator, identity
from otel_bridge.translation.metrics.defined_summaries import DefinedSummaries
from otel_bridge.translation.metrics.latest_values import Origin, ValuesEvent
from otel_bridge.translation.metrics.media import MediaAssembler, MediaEvent
from otel_bridge.translation.metrics.summaries import Summaries
from otel_bridge.translation.processes.lifecycle import EndEvent, RunLifecycle
from otel_bridge.translation.processes.process import Process
from otel_bridge.translation.processes.run_metadata import RunMetadata
from otel_bridge.translation.state import TranslationState, count

_MAX_REASONS = 100
"""Most drop reasons that are counted for one process."""


class RolloutEvents(Protocol):
    """Receives the events about rollouts."""

    def evaluation(
        self,
        resource_attributes: Mapping[str, object],
        instance_id: str,
        log_record: LogRecord,
        now_unix_ns: int,
    ) -> list[Record]:
        """Process a ``gen_ai.evaluation.result``."""
        ...

    def content(
        self,
        resource_attributes: Mapping[str, object],
        instance_id: str,
        log_record: LogRecord,
        now_unix_ns: int,
    ) -> list[Record]:
        """Process an event that holds messages of a span."""
        ...

    def sampled_out(
        self,
        resource_attributes: Mapping[str, object],
        instance_id: str,
        log_record: LogRecord,
        now_unix_ns: int,
    ) -> list[Record]:
        """Process an ``rl.rollouts``."""
        ...


@dataclass(frozen=True, slots=True)
class _Event:
    producer: Producer
    process: Process
    record: LogRecord
    attributes: Mapping[str, object]
    seq: int
    time_unix_ns: int


class Events:
    """Handles the events of one run."""

    def __init__(
        self,
        state: TranslationState,
        lifecycle: RunLifecycle,
        seen: Deduplicator,
        rollouts: RolloutEvents,
        media: MediaAssembler,
        *,
        defined: DefinedSummaries,
        metadata: RunMetadata,
    ) -> None:
        self._media = media
        self._defined = defined
        self._metadata = metadata
        self._state = state
        self._lifecycle = lifecycle
        self._seen = seen
        self._rollouts = rollouts
        self._configs = Configs(state)
        self._summaries = Summaries(state)
        self._handlers: dict[str, Callable[[_Event], list[Record]]] = {
            semconv.EVENT_CONFIG: self._config,
            semconv.EVENT_SUMMARY: self._summary,
            semconv.EVENT_METRIC_SUMMARY: self._metric_summary,
            semconv.EVENT_ALERT: self._alert,
            semconv.EVENT_MEDIA: self._taken_media,
        }
        self.redelivered = 0

    def take(
        self, producer: Producer, process: Process, record: LogRecord, now_unix_ns: int
    ) -> list[Record]:
        """Process one log record; records that are not such events are ignored."""
        attributes: dict[str, object] = dict(mapping_of(record.attributes))
        name = record.event_name or text_in(attributes, semconv.EVENT_NAME)
        if name in content_events.NAMES:
            self._lifecycle.on_record(process, now_unix_ns)
            return self._rollouts.content(
                producer.attributes, process.instance, record, now_unix_ns
            )
        if name not in _NAMES:
            if name.startswith("gen_ai."):
                count(self._state, "event/other")
            return []
        seq = max(int_in(attributes, semconv.EVENT_SEQ) or 0, 0)
        time_ns = record.time_unix_nano or record.observed_time_unix_nano or now_unix_ns
        event = _Event(producer, process, record, attributes, seq, time_ns)
        if not self._new(event, name):
            self.redelivered += 1
            return []
        return self._act(name, event, now_unix_ns)

    def restarted(self, role: str | None, attempt: int, time_unix_ns: int) -> list[Record]:
        """Note in the config that *role* began another attempt."""
        return [*self._configs.attempt(role, attempt, time_unix_ns)]

    def _act(self, name: str, event: _Event, now_unix_ns: int) -> list[Record]:
        if name in _DATA:
            self._lifecycle.on_record(event.process, now_unix_ns, event=event.seq)
            if name in self._handlers:
                return self._handlers[name](event)
            take = (
                self._rollouts.evaluation
                if name == semconv.EVENT_EVALUATION
                else self._rollouts.sampled_out
            )
            return take(
                event.producer.attributes, event.process.instance, event.record, now_unix_ns
            )
        if name == semconv.EVENT_END:
            self._end(event, now_unix_ns)
        elif name == semconv.EVENT_DROPPED:
            self._dropped(event)
        elif name == semconv.EVENT_RENAMED:
            self._metadata.rename(text_in(event.attributes, semconv.RUN_NAME))
        return []

    def _taken_media(self, event: _Event) -> list[Record]:
        media = MediaEvent(event.producer, event.process, event.attributes, event.time_unix_ns)
        return [*self._media.take(media, event.record.body.bytes_value)]

    def _new(self, event: _Event, name: str) -> bool:
        process = event.process
        seq = event.seq
        if name == semconv.EVENT_ALIVE:
            return True
        if seq and not event.producer.third_party:
            if process.events.seen(seq):
                return False
            process.events.add(seq, 0)
            process.mark_changed()
            return True
        if name == semconv.EVENT_END:
            return True  # ending twice changes nothing
        return self._seen.add(
            identity(process.instance, event.record.SerializeToString(deterministic=True))
        )

    def _end(self, event: _Event, now_unix_ns: int) -> None:
        stated = text_in(event.attributes, semconv.RUN_STATUS)
        status = Status(stated) if stated in _STATUSES else Status.FINISHED
        last_row = max(int_in(event.attributes, semconv.SEQ) or 0, 0)
        self._lifecycle.end(
            event.process, EndEvent(status, event.seq, last_row, event.time_unix_ns), now_unix_ns
        )

    def _dropped(self, event: _Event) -> None:
        """Add the drops of a process since its last report; the counts of a process only grow."""
        counts = mapping_of(event.record.body.kvlist_value.values)
        known = event.process.dropped
        for reason in counts:
            number = int_in(counts, reason) or 0
            before = known.get(reason, 0)
            if number > before and (reason in known or len(known) < _MAX_REASONS):
                known[reason] = number
                count(self._state, reason, number - before, name=_first_key(reason, event))
        event.process.mark_changed()

    def _config(self, event: _Event) -> list[Record]:
        return [*self._configs.merge(_values_of(event))]

    def _summary(self, event: _Event) -> list[Record]:
        return [*self._summaries.merge(_values_of(event))]

    def _metric_summary(self, event: _Event) -> list[Record]:
        self._defined.define(_values_of(event))
        return []

    def _alert(self, event: _Event) -> list[Record]:
        known = int_in({_ALERTS: self._state.get(_ALERTS)}, _ALERTS) or 0
        title = redact_and_cut(text_in(event.attributes, semconv.ALERT_TITLE), _MAX_TITLE_CHARS)
        if known >= _MAX_ALERTS or not title:
            count(self._state, TOO_MANY_ALERTS if title else ALERT_WITHOUT_TITLE)
            return []
        self._state.set(_ALERTS, known + 1)
        level = text_in(event.attributes, semconv.ALERT_LEVEL).lower()
        text = redact_and_cut(event.record.body.string_value, _MAX_TEXT_CHARS)
        number = (
            f"{event.process.instance}:{event.seq}"
            if event.seq
            else f"{event.process.instance}:a{known}"
        )
        role = text_in(event.attributes, semconv.ROLE) or event.process.role
        level = level if level in _LEVELS else "warn"
        step = int_in(event.attributes, semconv.STEP)
        alert = Alert(f"a:{number}", role, title, text, level, step, event.time_unix_ns)
        return [note_raised(self._state, alert)]


def _values_of(event: _Event) -> ValuesEvent:
    # Our emitter scrubs its values; a third-party producer may send anything.
    values = cast("dict[str, Json]", scrubbed(mapping_of(event.record.body.kvlist_value.values)))
    role = text_in(event.attributes, semconv.ROLE) or event.process.role
    origin = Origin(event.time_unix_ns, event.process.instance, event.seq)
    return ValuesEvent(
        origin, role, values, replaces=event.attributes.get(semconv.CONFIG_REPLACE) is True
    )


TOO_MANY_ALERTS = "alert/too_many"
ALERT_WITHOUT_TITLE = "alert/title"
_ALERTS = "alerts"
_MAX_ALERTS = 1_000
_MAX_TITLE_CHARS = 256
_MAX_TEXT_CHARS = 10_000
_LEVELS = frozenset({"info", "warn", "error"})
_STATUSES = frozenset(status.value for status in Status)
_DATA = frozenset({
    semconv.EVENT_CONFIG, semconv.EVENT_SUMMARY, semconv.EVENT_ALERT,
    semconv.EVENT_ROLLOUTS, semconv.EVENT_EVALUATION, semconv.EVENT_MEDIA, semconv.EVENT_METRIC_SUMMARY,
})  # fmt: skip
"""Events that become records, or change some; all other events are about the process itself."""
_NAMES = _DATA | {
    semconv.EVENT_END,
    semconv.EVENT_ALIVE,
    semconv.EVENT_DROPPED,
    semconv.EVENT_RENAMED,
}


def _first_key(reason: str, event: _Event) -> str:
    """Return the first key that the process of *event* dropped for *reason*; empty if it names none."""
    keys = event.attributes.get(semconv.DROPPED_KEYS)
    key = cast("Mapping[str, object]", keys).get(reason) if isinstance(keys, Mapping) else None
    return key if isinstance(key, str) else ""
