"""Media of a row -> events ``rl.media``: limits of size and rate, and parts that any OTLP receiver takes.

The bytes are in the event, not in a file beside it: what is appended is whole, in order with
everything else, and goes wherever segments go. Nothing has to be deleted that an event might still
name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from otel_bridge import semconv
from otel_bridge.content.policy import DEFAULT_POLICY, ContentPolicy
from otel_bridge.emit.encode.protobuf import Attribute

if TYPE_CHECKING:
    from otel_bridge.emit.media.encode import EncodedMedium
    from otel_bridge.values.plain import CountKeyedDrop

PART_BYTES = 1 << 20
"""Most bytes of one event: a Collector and gRPC take 4 MiB a request by default."""
_MAX_KEYS = 10_000

Put: TypeAlias = "Callable[[Mapping[str, Attribute], bytes], bool]"
"""Appends one event with its attributes and its body; returns whether that was possible."""


class MediaLog:
    """Encodes the media of one process. Not thread-safe: its owner locks.

    The limit of a step is counted here and not by the caller, because a step may be logged in
    several calls.

    Args:
        policy: Content policy.
        max_bytes: Most bytes of what one call logs under one key.
        max_per_step: Most items of a key and step.
    """

    def __init__(
        self,
        policy: ContentPolicy = DEFAULT_POLICY,
        *,
        max_bytes: int = 32 << 20,
        max_per_step: int = 100,
    ) -> None:
        self._policy = policy
        self._max_bytes = max_bytes
        self._max_per_step = max_per_step
        self._logged: dict[tuple[str | None, str], tuple[int, int]] = {}
        self._ids = 0

    def append(
        self,
        media: Sequence[tuple[str, Sequence[object]]],
        step: int,
        role: str | None,
        drop: CountKeyedDrop,
        append_event: Put,
    ) -> None:
        """Encode what one call logged, by key, and append it.

        What cannot be encoded is counted with *drop* (``media_…``). The parts of one key end where
        one of them cannot be appended, which *append_event* has counted: the bridge shows no medium
        that lacks a part.
        """
        for key, key_media in media:
            items = self._encoded(key, key_media, step, role, drop)
            if not items:
                continue
            pairs: dict[str, Attribute] = {
                semconv.MEDIA_KEY: key,
                semconv.MEDIA_ITEMS: list(map(_described, items)),
                semconv.STEP: step,
                semconv.ROLE: role,
            }
            self._put(pairs, b"".join(item.data for item in items), append_event)

    def _encoded(
        self,
        key: str,
        media: Sequence[object],
        step: int,
        role: str | None,
        drop: CountKeyedDrop,
    ) -> Sequence[EncodedMedium]:
        """Return the items of what one call logged under *key*, within the limit of its step.

        Empty when nothing is left. Only the last step of a key is remembered: items of a step that
        comes back count anew.
        """
        from otel_bridge.emit.media.encode import MediaEncoder  # noqa: PLC0415  # only programs with media pay for it

        earlier_step, earlier_items = self._logged.get((role, key), (step, 0))
        earlier_items = earlier_items if earlier_step == step else 0
        encoder = MediaEncoder(
            self._policy,
            self._max_bytes,
            self._max_per_step - earlier_items,
            lambda reason, number: drop(reason, number, key),
        )
        items = encoder.encode(media)
        # Bounds the memory of ever-new keys; at worst a step's limit begins anew.
        if len(self._logged) >= _MAX_KEYS:
            self._logged.clear()
        self._logged[role, key] = step, earlier_items + len(items)
        return items

    def _put(
        self, pairs: Mapping[str, Attribute], data: bytes, append_event: Put
    ) -> None:
        """Append items whole, or in parts of which the first describes the items of all.

        A bridge joins parts by their id, which is unique in this process.
        """
        if len(data) <= PART_BYTES:
            append_event(pairs, data)
            return
        self._ids += 1
        numbers: dict[str, Attribute] = {
            semconv.MEDIA_ID: str(self._ids),
            semconv.MEDIA_PARTS: -(-len(data) // PART_BYTES),
        }
        for part, start in enumerate(range(0, len(data), PART_BYTES)):
            facts = {**({} if part else pairs), **numbers, semconv.MEDIA_PART: part}
            if not append_event(facts, data[start : start + PART_BYTES]):
                break


def _described(item: EncodedMedium) -> Mapping[str, Attribute]:
    """Return what an event says of an item, whose bytes are in the event's body.

    A caption only where there is one.
    """
    facts: dict[str, Attribute] = {
        "type": item.kind,
        "mime_type": item.mime_type,
        "size": len(item.data),
        # Shows the bridge that a part is missing or mixed up, before a tracker stores the file.
        "sha256": hashlib.sha256(item.data).hexdigest(),
    }
    if item.caption:
        facts["caption"] = item.caption
    if item.cell:
        return {**facts, "cell": True}
    return facts
