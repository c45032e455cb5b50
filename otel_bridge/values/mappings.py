"""Parts of mappings, each as a new dict or list in the order of the mapping."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import TypeVar
from weakref import WeakKeyDictionary

K = TypeVar("K")
V = TypeVar("V")


def only(values: Mapping[K, V], keys: Container[object]) -> dict[K, V]:
    """Return the entries of *values* whose key is in *keys*."""
    return {key: value for key, value in values.items() if key in keys}


def without(values: Mapping[K, V], keys: Container[object]) -> dict[K, V]:
    """Return the entries of *values* whose key is not in *keys*."""
    return {key: value for key, value in values.items() if key not in keys}


def present(values: Mapping[K, V | None]) -> dict[K, V]:
    """Return the entries of *values* that are not ``None``."""
    return {key: value for key, value in values.items() if value is not None}


def living(registry: WeakKeyDictionary[K, V]) -> list[K]:
    """Return the keys that still exist.

    A loop over *registry* itself raises `RuntimeError` when another thread adds a key meanwhile.
    """
    keys: list[K] = []
    # Copied in one step of the interpreter.
    for reference in registry.keyrefs():
        key = reference()
        if key is not None:
            keys.append(key)
    return keys
