"""Deduplication of third-party points and events: a bounded set that survives a restart. Pure.

Cumulative producers resend every known point at each collection, so a point that is still sent must
not be forgotten. The oldest chunk is dropped first, but hashes that were redelivered since they
were written are kept (second chance). Owns ``seen/<number>`` of the state: up to `_CHUNK` hashes of
8 bytes each.
"""

from __future__ import annotations

from otel_bridge.translation.state import HASH_BYTES, TranslationState, named

_PREFIX = "seen/"
_CHUNK = 1_024
"""Hashes under one key of the state, which is written again when one of them is added."""


class Deduplicator:
    """Remembers received hashes, at most about *limit*."""

    def __init__(self, state: TranslationState, limit: int) -> None:
        self._state = state
        self._limit = max(limit, _CHUNK)
        self._again: dict[bytes, bool] = {}
        self._chunks: dict[int, bytearray] = {}
        self._changed: set[int] = set()
        for number, chunk in named(state, _PREFIX).items():
            self._chunks[int(number)] = bytearray(chunk)
            self._again.update(dict.fromkeys(_hashes(chunk), False))
        self._last = max(self._chunks, default=0)

    def add(self, hash_: bytes) -> bool:
        """Note that *hash_* was received; return whether it is new.

        A hash that is not new is marked, so that it stays when its chunk is forgotten.
        """
        if hash_ in self._again:
            self._again[hash_] = True
            return False
        self._again[hash_] = False
        self._append(hash_)
        # A whole chunk at a time: one changed key of the state for 1,024 hashes.
        while len(self._again) > self._limit:
            self._forget_oldest()
        return True

    def flush(self) -> None:
        """Write what changed to the state."""
        for number in self._changed:
            key = f"{_PREFIX}{number:012d}"
            if number in self._chunks:
                self._state.set(key, bytes(self._chunks[number]))
            else:
                self._state.delete(key)
        self._changed.clear()

    def _append(self, hash_: bytes) -> None:
        chunk = self._chunks.get(self._last)
        if chunk is None or len(chunk) >= _CHUNK * HASH_BYTES:
            self._last += 1
            chunk = bytearray()
            self._chunks[self._last] = chunk
        chunk += hash_
        self._changed.add(self._last)

    def _forget_oldest(self) -> None:
        """Forget the oldest chunk, but keep up to half of its hashes that came again since they were written.

        At most half, or a producer that resends all its points would keep every chunk for ever.
        """
        oldest = next(iter(self._chunks))
        self._changed.add(oldest)
        kept_hashes = 0
        for hash_ in _hashes(self._chunks.pop(oldest)):
            # At least half of the chunk goes, so that this ends.
            if self._again.pop(hash_) and kept_hashes < _CHUNK // 2:
                kept_hashes += 1
                self._again[hash_] = False
                self._append(hash_)


def _hashes(chunk: bytes | bytearray) -> list[bytes]:
    return [
        bytes(chunk[start : start + HASH_BYTES])
        for start in range(0, len(chunk), HASH_BYTES)
    ]
