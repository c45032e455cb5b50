"""A writer's memory that lives in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping


class MemoryTable:
    """Stores a writer's memory in memory.

    `snapshot` is what a bridge that is killed now finds again.
    """

    def __init__(self, values: Mapping[str, bytes] | None = None) -> None:
        self._values = dict(values or {})

    def get(self, key: str) -> bytes | None:
        """Return the value, ``None`` when there is none."""
        return self._values.get(key)

    def put(self, key: str, value: bytes) -> None:
        """Store a value."""
        self._values[key] = value

    def delete(self, key: str) -> None:
        """Forget a key."""
        self._values.pop(key, None)

    def items(self, prefix: str = "") -> Iterator[tuple[str, bytes]]:
        """Yield the pairs whose key begins with *prefix*, ordered by key."""
        yield from (
            (key, value)
            for key, value in sorted(self._values.items())
            if key.startswith(prefix)
        )

    def snapshot(self) -> MemoryTable:
        """Return a copy that later puts do not change."""
        return MemoryTable(self._values)
