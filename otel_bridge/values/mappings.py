"""Parts of mappings, each as a new dict in the order of the mapping."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import TypeVar

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
