"""State of translation: a read-through key-value store that the bridge commits together with the records.

Every module of translation owns one key space (``drop/``, ``axis/``, ``key/``, ``config/``,
``summary/``, ``metric-summary/``, ``proc/``, ``row/``, ``seen/``, ``media/``, ``alert/``,
``trace/``, ``step/``, ``stepless/``, ``evaluation/``, ``phase/``, ``lineage/``, ``engine/``,
``ranks/``, ``tokens/``, ``run``). No I/O here: the bridge provides an implementation that stores
the changes in its ledger.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, Protocol, TypeAlias

StateValue: TypeAlias = object
"""A JSON-able value (``None``, bool, int, float with non-finite ones, str, list, dict with str
keys) or bytes."""


FIRST_KEY = "dropkey/"
"""Key space of the state: drop reason to the first key that was dropped for this reason."""
_MAX_KEY_CHARS = 256
"""Most characters of such a key: a program's keys may have any length, and `status` shows it in one line."""


HASH_BYTES = 8
"""Bytes of an `identity`: two of 200,000 are equal by chance once in a billion runs."""


class TranslationState(Protocol):
    """Maps each key to its value after the last change.

    A bridge's state keeps values of a kilobyte and more in its ledger alone when memory is short:
    `get` and `items` raise `JournalError` when the ledger cannot be read. That error passes through
    all of translation. The reader then discards state and translator, and begins again at the last
    commit: nothing is lost or counted twice. `set`, `delete` and small values never raise.
    """

    def get(self, key: str) -> StateValue | None:
        """Return the value, ``None`` when *key* is unknown. Never change the returned value: `set` a new one."""
        ...

    def set(self, key: str, value: StateValue) -> None:
        """Replace the value of *key*."""
        ...

    def delete(self, key: str) -> None:
        """Remove *key*; unknown keys are allowed."""
        ...

    def items(self, prefix: str) -> Iterable[tuple[str, StateValue]]:
        """Return the pairs whose key begins with *prefix*, ordered by key, as they are at this moment.

        *prefix* holds a slash. The state may change while a caller iterates over the result.
        """
        ...


def named(state: TranslationState, prefix: str) -> dict[str, Any]:
    """Return what is stored below *prefix*, in the order of the rest of its keys, to which it maps.

    Empty without any. Values have the type that their module stored: a ledger of another format is
    refused before.
    """
    return {key.removeprefix(prefix): value for key, value in state.items(prefix)}


def identity(*parts: object) -> bytes:
    """Return a hash (8 bytes) of the parts that identify a point, an event or a medium."""
    return hashlib.blake2b(
        repr(parts).encode("utf-8", "surrogatepass"), digest_size=HASH_BYTES
    ).digest()


def number_at(state: TranslationState, key: str) -> int:
    """Return the integer under *key*, 0 without one."""
    value = state.get(key)
    if isinstance(value, int):
        return value
    return 0


def count(
    state: TranslationState, reason: str, number: int = 1, *, name: str = ""
) -> None:
    """Add *number* to the drop counter ``drop/<reason>``.

    *name* is the key of what was dropped; the first of each reason is stored as an example. It never
    raises: a count is small, and so in memory.

    Counts live in the state, so that a kill of the bridge neither loses nor doubles one.
    """
    key = f"drop/{reason}"
    state.set(key, number_at(state, key) + number)
    # The first key only: one example is enough for a person, and keys may be many.
    if name and state.get(f"{FIRST_KEY}{reason}") is None:
        state.set(f"{FIRST_KEY}{reason}", name[:_MAX_KEY_CHARS])


def uncount(state: TranslationState, reason: str, number: int) -> None:
    """Take *number* back from the drop counter ``drop/<reason>``, and its first key with the last of them.

    For what turned out not to be lost after all.
    """
    key = f"drop/{reason}"
    remaining = number_at(state, key) - number
    # At 0 the counter goes, so that the report names no reason without drops.
    if remaining > 0:
        state.set(key, remaining)
        return
    state.delete(key)
    state.delete(f"{FIRST_KEY}{reason}")
