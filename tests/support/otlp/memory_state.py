"""A state of translation in memory, in place of the ledger's."""

from __future__ import annotations

from otel_bridge.translation.state import StateValue


class MemoryState:
    """Keeps a `TranslationState` in memory: for tests, and for a bridge without a ledger."""

    def __init__(self, values: dict[str, StateValue] | None = None) -> None:
        self._values: dict[str, StateValue] = dict(values or {})

    def get(self, key: str) -> StateValue | None:
        """Return the value, ``None`` when *key* is unknown."""
        return self._values.get(key)

    def set(self, key: str, value: StateValue) -> None:
        """Replace the value of *key*."""
        self._values[key] = value

    def delete(self, key: str) -> None:
        """Remove *key*."""
        self._values.pop(key, None)

    def items(self, prefix: str) -> list[tuple[str, StateValue]]:
        """Return the pairs whose key begins with *prefix*, ordered by key."""
        return sorted(
            (pair for pair in self._values.items() if pair[0].startswith(prefix)),
            key=lambda pair: pair[0],
        )

    def snapshot(self) -> dict[str, StateValue]:
        """Return a copy of everything, e.g. to restore another `MemoryState` from."""
        return dict(self._values)
