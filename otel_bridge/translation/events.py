"""Log events of otel-bridge and the GenAI conventions -> configs, summaries, media, ends, evaluations. Pure.

An event of otel-bridge is identified by (instance, ``rl.event.seq``) and has effect once. An event
without a number is identified by its content.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias, cast

from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from otel_bridge import semconv
from otel_bridge.records import (
    DEFAULT_LEVEL,
    Alert,
    Json,
    Record,
    Status,
    level_named,
    status_named,
)
from otel_bridge.text.secret_patterns import redact_and_cut, redact_text, scrubbed
from otel_bridge.translation.alerts import note_raised
from otel_bridge.translation.decode import content_events
from otel_bridge.translation.decode.attributes import int_in, mapping_of, text_in
from otel_bridge.translation.decode.resources import Producer
from otel_bridge.translation.metrics.configs import Configs
from otel_bridge.translation.metrics.dedup import Deduplicator
from otel_bridge.translation.metrics.defined_summaries import DefinedSummaries
from otel_bridge.translation.metrics.latest_values import Origin, ValuesEvent
from otel_bridge.translation.metrics.media import MediaAssembler, MediaEvent
from otel_bridge.translation.metrics.summaries import Summaries
from otel_bridge.translation.processes.lifecycle import EndEvent, RunLifecycle
from otel_bridge.translation.processes.process import Process
from otel_bridge.translation.processes.run_metadata import RunMetadata
from otel_bridge.translation.run_context import RunContext
from otel_bridge.translation.state import count, identity, number_at

_MAX_REASONS = 100
"""Most drop reasons that are counted for one process."""


RolloutHandler: TypeAlias = Callable[[Producer, str, LogRecord, int], list[Record]]
"""Processes an event about rollouts: producer, instance of its process, event, now in Unix ns."""


@dataclass(frozen=True, slots=True)
class _Event:
    producer: Producer
    process: Process
    record: LogRecord
    attributes: Mapping[str, object]
    seq: int
    time_unix_ns: int
    now_unix_ns: int


class Events:
    """Handles the events of one run.

    No handler raises for what a producer sent: attributes of an unexpected type count as missing,
    and what cannot be used without them is counted.

    Args:
        run: The run.
        lifecycle: Processes of the run.
        deduplicator: Remembers the events of third-party producers.
        rollout_handlers: Event to what processes it, for events about rollouts.
        read_content: Processes an event that holds messages of a span.
        defined: Summaries that the program has defined.
        metadata: Names of the run.

    Attributes:
        media: The media of the run, joined from their parts.
        redelivered: Number of events that came again.
    """

    def __init__(
        self,
        run: RunContext,
        lifecycle: RunLifecycle,
        deduplicator: Deduplicator,
        *,
        rollout_handlers: Mapping[str, RolloutHandler],
        read_content: RolloutHandler,
        defined: DefinedSummaries,
        metadata: RunMetadata,
    ) -> None:
        self.media = MediaAssembler(run.state, run.options, run.axes)
        self._defined = defined
        self._metadata = metadata
        self._state = run.state
        self._lifecycle = lifecycle
        self._seen = deduplicator
        self._read_content = read_content
        self._configs = Configs(run.state)
        summaries = Summaries(run.state)
        # Events that become records, or change some.
        self._data_handlers: dict[str, Callable[[_Event], Sequence[Record]]] = {
            semconv.EVENT_CONFIG: lambda event: self._configs.merge(_values_of(event)),
            semconv.EVENT_SUMMARY: lambda event: summaries.merge(_values_of(event)),
            semconv.EVENT_METRIC_SUMMARY: self._define_summaries,
            semconv.EVENT_ALERT: self._alert,
            semconv.EVENT_MEDIA: self._take_media,
        }
        for name, handle in rollout_handlers.items():
            self._data_handlers[name] = partial(_to_rollouts, handle)
        # Events about the process itself, and about the names of the run.
        self._process_handlers: dict[str, Callable[[_Event], None]] = {
            semconv.EVENT_END: self._end,
            semconv.EVENT_ALIVE: lambda _: None,
            semconv.EVENT_DROPPED: self._dropped,
            semconv.EVENT_RENAMED: self._rename,
        }
        self.redelivered = 0

    def take(
        self, producer: Producer, process: Process, record: LogRecord, now_unix_ns: int
    ) -> list[Record]:
        """Process one log record; records that are not such events are ignored.

        Nothing for a redelivered event, which is counted in `redelivered`, and for events about the
        process alone. An unread event of the GenAI conventions is counted (``event/other``).
        """
        attributes = mapping_of(record.attributes)
        name = record.event_name or text_in(attributes, semconv.EVENT_NAME)
        # Before the numbers are checked: messages are deduplicated by their trace, as spans are.
        if name in content_events.NAMES:
            self._lifecycle.on_record(process, now_unix_ns)
            return self._read_content(producer, process.instance, record, now_unix_ns)
        if name not in self._data_handlers and name not in self._process_handlers:
            # Log lines are not counted; an unread event of the conventions is a loss.
            if name.startswith("gen_ai."):
                count(self._state, "event/other")
            return []
        seq = max(int_in(attributes, semconv.EVENT_SEQ) or 0, 0)
        time_ns = record.time_unix_nano or record.observed_time_unix_nano or now_unix_ns
        event = _Event(producer, process, record, attributes, seq, time_ns, now_unix_ns)
        if not self._new(event, name):
            self.redelivered += 1
            return []
        if name in self._process_handlers:
            # Without `on_record`: an end or a count of drops must not reopen its run.
            self._process_handlers[name](event)
            return []
        self._lifecycle.on_record(process, now_unix_ns, event=seq)
        return list(self._data_handlers[name](event))

    def restarted(
        self, role: str | None, attempt: int, time_unix_ns: int
    ) -> list[Record]:
        """Note in the config that *role* began another attempt.

        Nothing where the user's own config has an entry of that name.
        """
        return [*self._configs.attempt(role, attempt, time_unix_ns)]

    def _define_summaries(self, event: _Event) -> Sequence[Record]:
        self._defined.define(_values_of(event))
        return ()

    def _take_media(self, event: _Event) -> Sequence[Record]:
        media = MediaEvent(
            event.producer, event.process, event.attributes, event.time_unix_ns
        )
        return self.media.take(media, event.record.body.bytes_value)

    def _rename(self, event: _Event) -> None:
        self._metadata.rename(text_in(event.attributes, semconv.RUN_NAME))

    def _new(self, event: _Event, name: str) -> bool:
        """Return whether an event was not received before, and remember it.

        Our emitter numbers its events; others are known by process and content.
        """
        process = event.process
        seq = event.seq
        # A heartbeat has no effect that could happen twice; its frame has already been noted.
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
            identity(
                process.instance, event.record.SerializeToString(deterministic=True)
            )
        )

    def _end(self, event: _Event) -> None:
        """Note the end of the process that sent *event*; an unknown status counts as finished.

        The program has said how it ended; of a word of a later version only that it ended is known.
        """
        stated = text_in(event.attributes, semconv.RUN_STATUS)
        # An end of another version or producer is still an end; only its word is not known.
        status = status_named(stated) or Status.FINISHED
        last_row = max(int_in(event.attributes, semconv.SEQ) or 0, 0)
        self._lifecycle.end(
            event.process,
            EndEvent(status, event.seq, last_row, event.time_unix_ns),
            event.now_unix_ns,
        )

    def _dropped(self, event: _Event) -> None:
        """Add the drops of a process since its last report; the counts of a process only grow.

        Beyond `_MAX_REASONS` reasons of one process further ones are ignored: a producer chooses
        their names.
        """
        counts = mapping_of(event.record.body.kvlist_value.values)
        dropped = event.process.dropped
        for reason in counts:
            number = int_in(counts, reason) or 0
            last_number = dropped.get(reason, 0)
            # Reports may arrive out of order or again: only what exceeds the highest one is added.
            if number > last_number and (
                reason in dropped or len(dropped) < _MAX_REASONS
            ):
                dropped[reason] = number
                count(
                    self._state,
                    reason,
                    number - last_number,
                    name=_first_key(reason, event),
                )
        event.process.mark_changed()

    def _alert(self, event: _Event) -> list[Record]:
        """Return the alert of *event*, cut and redacted; its level is ``warn`` unless it names a known one.

        Nothing without a title (counted: ``alert/title``), and beyond `_MAX_ALERTS` of a run
        (``alert/too_many``).
        """
        alert_count = number_at(self._state, _ALERTS)
        # Cut here too: the event may come from a producer that knows neither limit nor secrets.
        title = redact_and_cut(
            text_in(event.attributes, semconv.ALERT_TITLE), _MAX_TITLE_CHARS
        )
        if alert_count >= _MAX_ALERTS or not title:
            count(self._state, TOO_MANY_ALERTS if title else ALERT_WITHOUT_TITLE)
            return []
        self._state.set(_ALERTS, alert_count + 1)
        level = level_named(text_in(event.attributes, semconv.ALERT_LEVEL))
        text = redact_and_cut(event.record.body.string_value, _MAX_TEXT_CHARS)
        # Without a number of its own the alert gets one of the run, which is in the state as well.
        number = event.seq or f"a{alert_count}"
        role = text_in(event.attributes, semconv.ROLE) or event.process.role
        step = int_in(event.attributes, semconv.STEP)
        alert = Alert(
            f"a:{event.process.instance}:{number}",
            role,
            title,
            text,
            level or DEFAULT_LEVEL,
            step,
            event.time_unix_ns,
        )
        return [note_raised(self._state, alert)]


def _to_rollouts(handle: RolloutHandler, event: _Event) -> Sequence[Record]:
    return handle(
        event.producer,
        event.process.instance,
        event.record,
        event.now_unix_ns,
    )


def _values_of(event: _Event) -> ValuesEvent:
    """Return what the body of a config or summary says, by which event, without secrets.

    A body that is not a map of values gives none: the event then changes nothing, uncounted.
    """
    # Our emitter scrubs its values; a third-party producer may send anything.
    values = cast(
        "dict[str, Json]",
        scrubbed(
            mapping_of(event.record.body.kvlist_value.values),
            text=lambda text, _name: redact_text(text),
        ),
    )
    role = text_in(event.attributes, semconv.ROLE) or event.process.role
    origin = Origin(event.time_unix_ns, event.process.instance, event.seq)
    return ValuesEvent(
        origin,
        role,
        values,
        replaces=event.attributes.get(semconv.CONFIG_REPLACE) is True,
    )


TOO_MANY_ALERTS = "alert/too_many"
ALERT_WITHOUT_TITLE = "alert/title"
_ALERTS = "alerts"
_MAX_ALERTS = 1_000
"""Most alerts that programs raise in one run, since each may call a person."""
_MAX_TITLE_CHARS = 256
_MAX_TEXT_CHARS = 10_000


def _first_key(reason: str, event: _Event) -> str:
    """Return the first key that the process of *event* dropped for *reason*.

    Empty if it names none.
    """
    keys = event.attributes.get(semconv.DROPPED_KEYS)
    if isinstance(keys, Mapping):
        return text_in(cast("Mapping[str, object]", keys), reason)
    return ""
