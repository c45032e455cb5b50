"""Streams of tokens that wait: for the other half of the mismatch, and for what trackers show of a rollout. Pure.

Owns ``tokens/streams/`` of the state, an entry a rollout. Beyond the limit of bytes, the rollout
that came first is forgotten.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from otel_bridge.records import Json
from otel_bridge.translation.packing import packed, unpacked
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
    def size_bytes(self) -> int:
        """Bytes of the streams, and of what is stored beside them."""
        streams = (*self.streams.values(), *self.waiting.values())
        return _ENTRY_BYTES + sum(map(len, streams))

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


class StreamStore:
    """Keeps the streams of the last rollouts.

    Args:
        state: Key space ``tokens/streams/``, by the order of arrival.
        max_bytes: Most bytes of all streams.

    Attributes:
        with_news: Trace ids of the rollouts whose view is to be sent, as the state has them.
    """

    def __init__(self, state: TranslationState, max_bytes: int) -> None:
        self._state = state
        self._max_bytes = max_bytes
        self._keys: dict[str, str] = {}
        self._sizes: dict[str, int] = {}
        self._number = 0
        self.with_news: list[str] = []
        for key, value in state.items(_PREFIX):
            rollout = unpacked(RolloutStreams, value)
            self._keys[rollout.trace_id] = key
            self._sizes[rollout.trace_id] = rollout.size_bytes
            self._number = int(key.removeprefix(_PREFIX))
            if rollout.has_news:
                self.with_news.append(rollout.trace_id)

    def get(self, trace_id: str) -> RolloutStreams | None:
        """Return the streams of a rollout, ``None`` without any; call `put` after a change."""
        if trace_id not in self._keys:
            return None
        return unpacked(RolloutStreams, self._state.get(self._keys[trace_id]))

    def put(self, rollout: RolloutStreams) -> None:
        """Store the streams of a rollout."""
        if rollout.trace_id not in self._keys:
            self._number += 1
            # Of one length, so that the order of the keys is that of their numbers.
            self._keys[rollout.trace_id] = f"{_PREFIX}{self._number:015}"
        self._sizes[rollout.trace_id] = rollout.size_bytes
        self._state.set(self._keys[rollout.trace_id], packed(rollout))

    def evict(self) -> Iterator[RolloutStreams]:
        """Forget the rollouts that came first until the limit is met, and yield each."""
        # The last one stays even if it is over the limit alone, or it could never be joined.
        while len(self._sizes) > 1 and sum(self._sizes.values()) > self._max_bytes:
            rollout = self.get(next(iter(self._keys)))
            if rollout is not None:
                self.forget(rollout.trace_id)
                yield rollout

    def forget(self, trace_id: str) -> None:
        """Remove the streams of a rollout."""
        self._state.delete(self._keys.pop(trace_id))
        del self._sizes[trace_id]
