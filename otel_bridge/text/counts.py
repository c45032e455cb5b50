"""Numbers of things -> text."""

from __future__ import annotations

from collections.abc import Sequence


def counted(count: int, noun: str) -> str:
    """Return *count* with *noun*, a plural unless *count* is 1: ``1 row``, ``1,200 rows``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def records_waiting(count: int) -> str:
    """Return *count* records with their verb: ``1 record waits``, ``7 records wait``."""
    return f"{counted(count, 'record')} {'waits' if count == 1 else 'wait'}"


def first_ones(texts: Sequence[str], limit: int) -> str:
    """Return at most *limit* of *texts* on one line, with the number of the others."""
    if len(texts) > limit:
        rest = [f"and {len(texts) - limit:,} more"]
    else:
        rest = []
    return "; ".join([*texts[:limit], *rest])
