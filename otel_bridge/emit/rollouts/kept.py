"""The last rollouts that this process recorded whole: only their tokens are worth sending one by one."""

from __future__ import annotations

_LIMIT = 16_384
_kept: dict[bytes, None] = {}


def note_kept(trace_id: bytes) -> None:
    """Note that a rollout leaves the process whole."""
    _kept[trace_id] = None
    if len(_kept) > _LIMIT:
        # Another thread may have removed the same entry.
        _kept.pop(next(iter(_kept), b""), None)


def is_kept(trace_id: bytes) -> bool:
    """Return whether this process recorded the rollout whole, as far as that is remembered."""
    return trace_id in _kept
