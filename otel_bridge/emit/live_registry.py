"""Trace id to the live rollout that is open in this process: foreign spans tell it that they are there."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from otel_bridge.emit.live import LiveRollout

_open: dict[str, LiveRollout] = {}


def remember(rollout: LiveRollout) -> None:
    """Take note of an open rollout."""
    _open[rollout.trace_id] = rollout


def forget(rollout: LiveRollout) -> None:
    """Drop a rollout that closed."""
    if _open.get(rollout.trace_id) is rollout:
        del _open[rollout.trace_id]


def foreign_span(trace_id: int) -> None:
    """Say that an instrumentation started a span in the trace *trace_id*."""
    if _open and (rollout := _open.get(f"{trace_id:032x}")) is not None:
        rollout.foreign = True
