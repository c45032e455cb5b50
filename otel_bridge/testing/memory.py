"""A writer's memory in an SQLite file, as a bridge's ledger keeps it; without a file, in this process."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path


class MemoryTable:
    """Stores a writer's memory; in a file, a `put` that returned survives a kill.

    Args:
        path: The file; without one, the memory ends with this object.

    Raises:
        sqlite3.Error: The file cannot be used; each call raises it too.
    """

    def __init__(self, path: Path | str = ":memory:") -> None:
        # Each statement is a transaction. Tests may write from another thread than they read in.
        self._connection = sqlite3.connect(
            path, isolation_level=None, check_same_thread=False
        )
        self._connection.execute(
            "CREATE TABLE IF NOT EXISTS memory (key TEXT PRIMARY KEY, value BLOB)"
        )

    def get(self, key: str) -> bytes | None:
        """Return the value, ``None`` when there is none."""
        return dict(self.items(key)).get(key)

    def put(self, key: str, value: bytes) -> None:
        """Store a value durably."""
        self._connection.execute(
            "INSERT OR REPLACE INTO memory VALUES (?, ?)", (key, value)
        )

    def delete(self, key: str) -> None:
        """Forget a key; an unknown key is ignored."""
        self._connection.execute("DELETE FROM memory WHERE key = ?", (key,))

    def items(self, prefix: str = "") -> Iterator[tuple[str, bytes]]:
        """Yield the pairs whose key begins with *prefix*, ordered by key."""
        rows: list[tuple[str, bytes]] = self._connection.execute(
            "SELECT key, value FROM memory ORDER BY key"
        ).fetchall()
        yield from ((key, value) for key, value in rows if key.startswith(prefix))
