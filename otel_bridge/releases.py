"""Versions of other packages as numbers that can be compared. Pure."""

from __future__ import annotations

from packaging.version import InvalidVersion, Version


def release_of(version: str) -> tuple[int, ...]:
    """Return the numbers of *version* without what follows them, e.g. ``rc1``; empty when it is no version."""
    try:
        return Version(version).release
    except InvalidVersion:
        return ()
