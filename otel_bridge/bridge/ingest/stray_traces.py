"""Moves spans of a rollout that another run received to the run of the rollout. For the host's thread.

An inference server exports its own spans, under its own name, with the trace id of the rollout that asked it. They may
arrive before anything of the rollout. So they are first stored in the run that their resource names, and wait there.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Final

from otel_bridge.bridge.ingest.segment_reader import SegmentReader
from otel_bridge.errors import JournalError

_EVERY_S: Final = 0.2


class StrayTraces:
    """Moves the strays of all active runs, a few times a second."""

    def __init__(self) -> None:
        self._next_s = 0.0

    def move(self, readers: Sequence[SegmentReader], *, now: bool = False) -> bool:
        """Move what is due, or with *now* everything; return whether anything was moved."""
        if len(readers) < 2 or not (now or time.monotonic() >= self._next_s):
            return False
        moved = False
        for reader in readers:
            strays = reader.translator.rollouts.strays() if reader.consistent else set[str]()
            for other in readers if strays else ():
                if other is reader or not other.consistent:
                    continue
                for trace_id in other.translator.rollouts.owned(strays):
                    moved |= _move(trace_id, reader, other)
                    strays.discard(trace_id)
        self._next_s = time.monotonic() + _EVERY_S
        return moved


def _move(trace_id: str, reader: SegmentReader, owner: SegmentReader) -> bool:
    """Store a trace with its owner, then forget it here; return whether the owner has it."""
    # In this order: after a kill between both, the owner gets the spans again, and drops them by their ids.
    with contextlib.suppress(JournalError):  # a full disk: the trace waits here, and the next round tries again
        owner.adopt(reader.translator.rollouts.stray(trace_id))
        reader.give_away(trace_id)
        return True
    return False
