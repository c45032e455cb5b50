"""Numbers of things -> text."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """Return *count* with *noun*, a plural unless *count* is 1: ``1 row``, ``1,200 rows``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def records_waiting(count: int) -> str:
    """Return *count* records with their verb: ``1 record waits``, ``7 records wait``."""
    return f"{counted(count, 'record')} {'waits' if count == 1 else 'wait'}"
