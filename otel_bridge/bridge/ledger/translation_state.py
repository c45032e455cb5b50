"""Keeps the state of translation in the ledger: every key in memory, and large values while there is room.

Changes are collected until the reader commits them together with their records. One thread.
"""

from __future__ import annotations

from collections.abc import Iterator

from otel_bridge.bridge.ledger.codec import decode_value, encode_value
from otel_bridge.bridge.ledger.queries import LedgerView

LARGE_BYTES = 1 << 10
"""Size from which a value counts towards the limit and may be released; smaller values stay in
memory."""
LIMIT_BYTES = 64 << 20
"""Most bytes of large values in memory; the others are read from the ledger when they are needed."""


class _Stored:
    """Represents a value that only the ledger has."""


_STORED = _Stored()


class LedgerState:
    """Implements `TranslationState` on top of a ledger.

    After a commit that failed, discard this object and create a new one: its content was never
    stored.

    Args:
        view: Reads the ledger; used by this state alone.
        limit_bytes: Limit of large values in memory.

    Raises:
        LedgerDamagedError: A stored value cannot be decoded.
        JournalError: The ledger cannot be read, here and in `get` and `items`.
    """

    def __init__(self, view: LedgerView, *, limit_bytes: int = LIMIT_BYTES) -> None:
        self._view = view
        self._limit = limit_bytes
        self._spaces: dict[str, dict[str, object]] = {}
        self._changed: dict[str, None] = {}
        self._large: dict[str, int] = {}
        self._large_bytes = 0
        for key, data in view.encoded_state():
            # Beyond the limit a large value stays in the ledger only.
            is_large = len(data) >= LARGE_BYTES
            if is_large and self._large_bytes + len(data) > self._limit:
                self._space(key)[key] = _STORED
                continue
            self._count(key, len(data))
            self._space(key)[key] = decode_value(data)

    def get(self, key: str) -> object | None:
        """Return the value of *key*; ``None`` without one."""
        value = self._space(key).get(key)
        if value is _STORED:
            return self._read(key)
        return value

    def set(self, key: str, value: object) -> None:
        """Replace the value of *key*."""
        self._space(key)[key] = value
        self._changed[key] = None

    def delete(self, key: str) -> None:
        """Forget *key*."""
        # A key that was set and deleted within one batch may still be in the ledger.
        if self._space(key).pop(key, None) is not None or key in self._changed:
            self._changed[key] = None

    def items(self, prefix: str) -> Iterator[tuple[str, object]]:
        """Return the pairs whose key begins with *prefix*, which holds a slash, ordered by key.

        Stored values are read on demand.
        """
        # Only one key space is searched: the state may have a hundred thousand keys.
        space = self._space(prefix)
        pairs = [pair for pair in space.items() if pair[0].startswith(prefix)]
        pairs.sort(key=lambda pair: pair[0])
        return (
            (key, self._read(key) if value is _STORED else value)
            for key, value in pairs
        )

    def changes(self) -> list[tuple[str, bytes | None]]:
        """Return the changes for `Ledger.commit`.

        They stay until `committed`, and a second call repeats them.
        """
        changes: list[tuple[str, bytes | None]] = []
        for key in self._changed:
            space = self._space(key)
            self._large_bytes -= self._large.pop(key, 0)
            if key not in space:
                changes.append((key, None))
            elif space[key] is not _STORED:
                data = encode_value(space[key])
                self._count(key, len(data))
                changes.append((key, data))
        return changes

    def committed(self) -> None:
        """Mark the changes as stored, and release large values above the limit, oldest first."""
        self._changed.clear()
        # Only after the commit: what is released must be in the ledger.
        while self._large_bytes > self._limit and self._large:
            key = next(iter(self._large))
            self._large_bytes -= self._large.pop(key)
            self._space(key)[key] = _STORED

    def _space(self, key: str) -> dict[str, object]:
        """Return the values of one key space, the part of *key* up to its first slash.

        A new one is empty.
        """
        name = key[: key.find("/") + 1]
        space = self._spaces.get(name)
        if space is None:
            space = {}
            self._spaces[name] = space
        return space

    def _read(self, key: str) -> object | None:
        """Return a value that only the ledger has; raises `JournalError` when it cannot be read."""
        return self._view.state_value(key)

    def _count(self, key: str, size_bytes: int) -> None:
        if size_bytes >= LARGE_BYTES:
            self._large[key] = size_bytes
            self._large_bytes += size_bytes
