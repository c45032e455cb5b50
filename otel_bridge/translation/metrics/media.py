"""Events ``rl.media`` -> media records: parts are joined in whatever order they arrive. Pure.

Owns ``media/<instance>/<id>/<part>`` (bytes of a part that waits for the others) and
``media/<instance>/<id>/head`` (attributes of the first part) of the state. Parts that wait for too
many bytes of others are dropped, the oldest first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from otel_bridge import semconv
from otel_bridge.content.media import limited_media
from otel_bridge.errors import InvalidRecordError
from otel_bridge.records import MediaItem, MediaRecord, axis_of
from otel_bridge.translation.decode.attributes import int_in, text_in
from otel_bridge.translation.decode.media import MediaPart, items_of, key_in, part_of
from otel_bridge.translation.decode.resources import Producer
from otel_bridge.translation.decode.rows import full_key
from otel_bridge.translation.metrics.keys import StepAxes
from otel_bridge.translation.options import TranslationOptions
from otel_bridge.translation.processes.process import Process
from otel_bridge.translation.state import (
    TranslationState,
    count,
    identity,
    number_at,
)

INVALID = "media/invalid"
INCOMPLETE = "media/incomplete"
_MAX_WAITING_BYTES = 128 << 20
"""Most bytes of parts that wait; beyond it the oldest media are dropped."""
COUNTED = "media-count"
"""Key of the state with the number of media so far."""
_ENTRY_BYTES = 512
"""Bytes that each part counts beside its own, or parts without bytes would have no bound."""
_PREFIX = "media/"
_HEAD = "head"
_TIME = "time_unix_ns"


@dataclass(frozen=True, slots=True)
class MediaEvent:
    """Holds one event ``rl.media`` without its bytes."""

    producer: Producer
    process: Process
    attributes: Mapping[str, object]
    time_unix_ns: int


class MediaAssembler:
    """Joins the media of one run.

    Stored parts that the ledger cannot give raise `JournalError`; see `TranslationState`.

    Args:
        state: State that stores the parts that wait.
        options: Content policy for third-party producers.
        axes: Step axes of the run.
    """

    def __init__(
        self,
        state: TranslationState,
        options: TranslationOptions,
        axes: StepAxes,
    ) -> None:
        self._state = state
        self._axes = axes
        self._content_policy = options.content
        self._waiting: dict[str, dict[str, int]] = {}
        self._waiting_bytes = 0
        for key, value in state.items(_PREFIX):
            name, _, kind = key.rpartition("/")
            self._note(name, kind, value)

    def take(self, event: MediaEvent, data: bytes) -> list[MediaRecord]:
        """Process one event; return the record that it completes. What is not valid is counted.

        It is counted as ``media/invalid``, with its key as the example.
        """
        try:
            part = part_of(event.attributes)
            # Nothing to wait for, so nothing is written to the state.
            if part.parts == 1:
                return self._records(event, event.attributes, event.time_unix_ns, data)
            return self._join(event, part, data)
        except InvalidRecordError:
            # Another producer may send anything; this one event is dropped, and rows go on.
            count(
                self._state, INVALID, name=text_in(event.attributes, semconv.MEDIA_KEY)
            )
            return []

    def close(self) -> None:
        """Drop, and count (``media/incomplete``), what waits for parts, because no more will arrive."""
        for name in list(self._waiting):
            self._drop(name)

    def forget(self, instance: str) -> None:
        """Drop, and count (``media/incomplete``), what waits for parts of a process that has ended."""
        for name in list(self._waiting):
            if name.startswith(f"{_PREFIX}{instance}/"):
                self._drop(name)

    def _join(
        self, event: MediaEvent, part: MediaPart, data: bytes
    ) -> list[MediaRecord]:
        """Keep one of several parts; return the record when it is the last that was missing, else nothing.

        Beyond the bytes that may wait, the oldest media are dropped and counted
        (``media/incomplete``).

        Raises:
            InvalidRecordError: The key or the joined items are invalid; the caller counts them.
        """
        # A hash, because an id of a third-party producer may hold anything.
        name = f"{_PREFIX}{event.process.instance}/{identity(part.id).hex()}"
        if not part.part:
            # Checked with the first part: else all parts are kept before the key is refused.
            key_in(event.attributes)
            self._keep(name, _HEAD, {**event.attributes, _TIME: event.time_unix_ns})
        self._keep(name, f"{part.part:06d}", data)
        # All parts and the head, in whatever order they arrived.
        if len(self._waiting[name]) > part.parts and _HEAD in self._waiting[name]:
            parts = dict(self._state.items(f"{name}/"))
            head = cast("dict[str, object]", parts.pop(f"{name}/{_HEAD}"))
            self._forget(name)
            data = b"".join(cast("bytes", parts[key]) for key in sorted(parts))
            return self._records(
                event, head, int_in(head, _TIME) or event.time_unix_ns, data
            )
        while self._waiting_bytes > _MAX_WAITING_BYTES:
            self._drop(next(iter(self._waiting)))
        return []

    def _keep(self, name: str, kind: str, value: object) -> None:
        self._state.set(f"{name}/{kind}", value)
        self._note(name, kind, value)

    def _note(self, name: str, kind: str, value: object) -> None:
        """Count what waits: without the cost of an entry, parts without bytes would have no bound.

        A part that comes again replaces the earlier one.
        """
        sizes = self._waiting.setdefault(name, {})
        size = _ENTRY_BYTES + len(value if isinstance(value, bytes) else repr(value))
        self._waiting_bytes += size - sizes.get(kind, 0)
        sizes[kind] = size

    def _drop(self, name: str) -> None:
        head = cast("dict[str, object]", self._state.get(f"{name}/{_HEAD}") or {})
        count(self._state, INCOMPLETE, name=text_in(head, semconv.MEDIA_KEY))
        self._forget(name)

    def _forget(self, name: str) -> None:
        for key, _ in self._state.items(f"{name}/"):
            self._state.delete(key)
        self._waiting_bytes -= sum(self._waiting.pop(name).values())

    def _records(
        self,
        event: MediaEvent,
        attributes: Mapping[str, object],
        time_unix_ns: int,
        data: bytes,
    ) -> list[MediaRecord]:
        """Return the record of an event with all its bytes; nothing if the content policy leaves nothing of it.

        Media do not advance the axis of their role, since a row of an earlier step may follow. The
        policy raises nothing: it reads tables that `items_of` has checked.

        Raises:
            InvalidRecordError: Attributes and bytes are not what they claim to be.
        """
        process = event.process
        key = key_in(attributes)
        items, cells = items_of(attributes, data)
        role = text_in(attributes, semconv.ROLE) or process.role
        step = int_in(attributes, semconv.STEP)
        axis = None
        steps = self._axes.steps()
        if step is not None:
            axis = axis_of(role)
            steps = self._axes.beside(axis, step)
        record = MediaRecord(
            id=_id(
                process.instance,
                int_in(attributes, semconv.EVENT_SEQ),
                time_unix_ns,
                items,
            ),
            role=role,
            key=full_key(role, key, rank=process.rank),
            step=step,
            axis=axis,
            time_unix_ns=time_unix_ns,
            items=items,
            cells=cells,
            steps=steps,
        )
        if event.producer.third_party:  # our emitter applies the policy itself
            record = limited_media(record, self._content_policy)
        # The policy left nothing of it.
        if not record.items:
            return []
        media_count = number_at(self._state, COUNTED)
        self._state.set(COUNTED, media_count + len(record.items))
        return [record]


def _id(
    instance: str, seq: int | None, time_unix_ns: int, items: list[MediaItem]
) -> str:
    if seq:
        return f"media:{instance}:{seq}"
    digests = [item.digest for item in items]
    return f"media:{identity(instance, time_unix_ns, digests).hex()}"
