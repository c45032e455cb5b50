"""Streams of tokens that wait: for the other half of the mismatch, and for what trackers show of a rollout. Pure.

Owns ``tokens/streams/`` of the state, an entry a rollout. Beyond the limit of bytes, the rollout
that came first is forgotten.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import orjson

from otel_bridge.records import Json
from otel_bridge.translation.state import TranslationState
from otel_bridge.translation.step_rows import StepKey

_PREFIX = "tokens/streams/"
_ENTRY_BYTES = 512


@dataclass(slots=True)
class RolloutStreams:
    """Holds the streams of one rollout.

    Attributes:
        streams: 32-bit floats by name.
        times: Unix ns of the span that each stream is of: a later one replaces it.
        waiting: Steps whose mismatch waits for the log-probabilities of the engine, with those of
            the trainer.
        texts: Texts of the tokens.
        rollout_facts: Once trackers have the rollout, its key, role, step, title, and messages.
        viewed_ns: Unix ns of the last stream in the view that trackers have; 0: none.
        views: Number of views so far.
    """

    trace_id: str
    streams: dict[str, bytes] = field(default_factory=dict[str, bytes])
    times: dict[str, int] = field(default_factory=dict[str, int])
    waiting: dict[StepKey, bytes] = field(default_factory=dict[StepKey, bytes])
    texts: list[str] = field(default_factory=list[str])
    rollout_facts: dict[str, Json] = field(default_factory=dict[str, Json])
    viewed_ns: int = 0
    views: int = 0

    @property
    def has_news(self) -> bool:
        """Return whether trackers have the rollout, and there are streams that their view lacks."""
        return (
            bool(self.rollout_facts)
            and max(self.times.values(), default=0) > self.viewed_ns
        )

    def show(self, facts: dict[str, Json]) -> None:
        """Note that trackers have the rollout."""
        self.rollout_facts = facts

    def viewed(self) -> int:
        """Note that its view is sent; return how many there were before."""
        self.viewed_ns = max(self.times.values(), default=0)
        self.views += 1
        return self.views - 1

    def put(
        self, streams: Mapping[str, bytes], texts: list[str] | None, time_unix_ns: int
    ) -> None:
        """Take over *streams*, unless a later span has sent them, and the texts of the tokens, if there are any."""
        self.texts = texts or self.texts
        for name, data in streams.items():
            if time_unix_ns >= self.times.get(name, 0):
                self.streams[name] = data
                self.times[name] = time_unix_ns

    def to_bytes(self) -> bytes:
        """Return the streams as stored in the state: the length of a JSON head, that head, and the numbers."""
        steps: list[Json] = [
            [*track, number, len(data)]
            for (track, number), data in self.waiting.items()
        ]
        sizes: list[Json] = [
            [name, len(data), self.times[name]] for name, data in self.streams.items()
        ]
        texts: list[Json] = [*self.texts]
        head = orjson.dumps(
            [steps, sizes, texts, self.rollout_facts, self.viewed_ns, self.views]
        )
        return b"".join(
            (
                len(head).to_bytes(4, "little"),
                head,
                *self.waiting.values(),
                *self.streams.values(),
            )
        )

    @classmethod
    def from_bytes(cls, trace_id: str, data: bytes) -> RolloutStreams:
        """Restore what `to_bytes` returned."""
        start = 4 + int.from_bytes(data[:4], "little")
        steps, sizes, texts, facts, viewed_ns, views = cast(
            "list[Any]", orjson.loads(data[4:start])
        )
        restored = cls(
            trace_id, texts=texts, rollout_facts=facts, viewed_ns=viewed_ns, views=views
        )
        for role, attempt, number, size in steps:
            restored.waiting[(role, attempt), number] = data[start : start + size]
            start += size
        for name, size, time_unix_ns in sizes:
            restored.streams[name] = data[start : start + size]
            restored.times[name] = time_unix_ns
            start += size
        return restored


class StreamStore:
    """Keeps the streams of the last rollouts.

    Args:
        state: Key space ``tokens/streams/``.
        max_bytes: Most bytes of all streams.
    """

    def __init__(self, state: TranslationState, max_bytes: int) -> None:
        self._state = state
        self._max_bytes = max_bytes
        self._sizes: dict[str, int] = {}
        self._open: dict[str, RolloutStreams] = {}
        stored = [(key, cast("bytes", value)) for key, value in state.items(_PREFIX)]
        # By the number at the end of the key: the order of arrival, in which they are evicted.
        for key, value in sorted(
            stored, key=lambda pair: int(pair[0].rpartition("/")[2])
        ):
            self._sizes[key] = _ENTRY_BYTES + len(value)
        self._bytes = sum(self._sizes.values())
        self._keys = {
            key.removeprefix(_PREFIX).partition("/")[0]: key for key in self._sizes
        }
        self._number = max(
            (int(key.rpartition("/")[2]) for key in self._sizes), default=0
        )

    def get(self, trace_id: str) -> RolloutStreams | None:
        """Return the streams of a rollout, ``None`` without any."""
        key = self._keys.get(trace_id)
        if key is None:
            return None
        # Decoded at most once a batch: the state holds bytes.
        if trace_id not in self._open:
            self._open[trace_id] = RolloutStreams.from_bytes(
                trace_id, cast("bytes", self._state.get(key))
            )
        return self._open[trace_id]

    def open(self, trace_id: str) -> RolloutStreams:
        """Return the streams of a rollout, to be changed; call `put` afterwards."""
        return self.get(trace_id) or RolloutStreams(trace_id)

    def put(self, rollout: RolloutStreams) -> None:
        """Store the streams of a rollout."""
        key = self._keys.get(rollout.trace_id)
        if key is None:
            self._number += 1
            key = f"{_PREFIX}{rollout.trace_id}/{self._number}"
            self._keys[rollout.trace_id] = key
        data = rollout.to_bytes()
        self._state.set(key, data)
        self._bytes += _ENTRY_BYTES + len(data) - self._sizes.get(key, 0)
        self._sizes[key] = _ENTRY_BYTES + len(data)
        self._open[rollout.trace_id] = rollout

    def with_news(self) -> list[str]:
        """Return the trace ids of the rollouts whose view is to be sent; reads all."""
        trace_ids: list[str] = []
        for trace_id in self._keys:
            rollout = self.get(trace_id)
            if rollout is not None and rollout.has_news:
                trace_ids.append(trace_id)
        return trace_ids

    def overdue(self) -> RolloutStreams | None:
        """Return the rollout that came first, when there is more than the limit; `forget` it."""
        # The last one stays even if it is over the limit alone, or it could never be joined.
        if self._bytes <= self._max_bytes or len(self._sizes) <= 1:
            return None
        return self.get(next(iter(self._keys)))

    def forget(self, trace_id: str) -> None:
        """Remove the streams of a rollout."""
        key = self._keys.pop(trace_id, None)
        if key is not None:
            self._bytes -= self._sizes.pop(key)
            self._state.delete(key)
        self._open.pop(trace_id, None)

    def flush(self) -> None:
        """Release what is stored in the state from memory."""
        self._open.clear()
