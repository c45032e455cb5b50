"""Provides the memory of one destination: the key-value table for its writer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from otel_bridge.bridge.ledger.database import Database
from otel_bridge.bridge.ledger.rows import after_prefix


class LedgerMemory:
    """Stores a destination's key-value table; once `put` returns, the value is committed."""

    def __init__(self, database: Database, destination_id: int) -> None:
        self._database, self._id = database, destination_id

    def get(self, key: str) -> bytes | None:
        """Return the value of *key*; ``None`` without one."""
        with self._database.transaction() as sql:
            found = sql.execute(
                "SELECT value FROM memory WHERE destination = ? AND key = ?", (self._id, key)
            ).fetchone()
        return None if found is None else bytes(found[0])

    def put(self, key: str, value: bytes) -> None:
        """Store a value durably."""
        with self._database.transaction() as sql:
            sql.execute("INSERT OR REPLACE INTO memory VALUES (?, ?, ?)", (self._id, key, value))

    def delete(self, key: str) -> None:
        """Delete *key*, if it exists."""
        with self._database.transaction() as sql:
            sql.execute("DELETE FROM memory WHERE destination = ? AND key = ?", (self._id, key))

    def items(self, prefix: str = "") -> Iterator[tuple[str, bytes]]:
        """Yield the pairs whose key begins with *prefix*, ordered by key, as they are at the first step."""
        with self._database.transaction() as sql:
            found = cast(
                "list[tuple[str, bytes]]",
                sql.execute(
                    "SELECT key, value FROM memory WHERE destination = ? AND key >= ? AND key < ? ORDER BY key",
                    (self._id, prefix, after_prefix(prefix)),
                ).fetchall(),
            )
        yield from found
