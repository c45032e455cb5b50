"""Moves spans of a rollout that another run received to the run of the rollout. For the host's thread.

An inference server exports its own spans, under its own name, with the trace id of the rollout that
asked it. They may arrive before anything of the rollout. So they are first stored in the run that
their resource names, and wait there.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from otel_bridge.bridge.ingest.segment_reader import SegmentReader
from otel_bridge.errors import JournalError
from otel_bridge.journal.folder import RunFolder

_EVERY_S = 0.2
_CLOSED_RUNS = 32
"""Most closed runs whose rollouts are remembered, since each may have thousands."""


@dataclass(frozen=True, slots=True)
class _ClosedRun:
    """Holds the rollouts of a run that is no longer active."""

    folder: RunFolder
    trace_ids: frozenset[str]


MayJoin: TypeAlias = Callable[[str, str], bool]
"""Returns whether spans of the run of the first id may move to the run of the second one."""


class StrayTraces:
    """Moves the strays of all active runs, a few times a second.

    Args:
        may_join: Returns whether spans of one run may move to another, because their senders have
            the same access.
        reopen: Opens a run that was closed, and is called with its folder.
    """

    def __init__(self, may_join: MayJoin, reopen: Callable[[RunFolder], None]) -> None:
        self._may_join = may_join
        self._reopen = reopen
        self._next_s = 0.0
        self._closed: dict[str, _ClosedRun] = {}

    def closed(self, folder: RunFolder, reader: SegmentReader) -> None:
        """Note a run that is closed: spans of its rollouts may still arrive, in another run, and open it again."""
        # Popped, so that a run that closes again is the newest and is forgotten last.
        self._closed.pop(folder.run_id, None)
        if trace_ids := reader.translator.rollouts.own_traces():
            self._closed[folder.run_id] = _ClosedRun(folder, trace_ids)
        while len(self._closed) > _CLOSED_RUNS:
            del self._closed[next(iter(self._closed))]

    def move(
        self, readers: Mapping[str, SegmentReader], *, now: bool = False
    ) -> set[str]:
        """Move what is due, or with *now* everything; return the ids of the runs that got spans.

        Args:
            readers: The reader of each active run, by the run's id.
            now: Whether to look although the last look was a moment ago.
        """
        # One run has no other that its strays could belong to; that is the usual bridge.
        is_alone = len(readers) + len(self._closed) < 2
        if is_alone or not (now or time.monotonic() >= self._next_s):
            return set()
        owners: set[str] = set()
        for run_id, reader in readers.items():
            # A batch that is not committed may yet be taken back, with the strays in it.
            strays = (
                reader.translator.rollouts.strays() if reader.consistent else set[str]()
            )
            if strays:
                owners |= self._move_from(run_id, readers, strays)
        self._next_s = time.monotonic() + _EVERY_S
        return owners

    def _move_from(
        self, run_id: str, readers: Mapping[str, SegmentReader], strays: set[str]
    ) -> set[str]:
        """Move *strays* of one run to the runs that own them; return the ids of those that got some.

        A closed run that owns some is opened again, and gets them in a later round. A stray without
        an owner waits on in its own run.
        """
        owners: set[str] = set()
        for closed_id, closed in list(self._closed.items()):
            is_owner = closed_id not in readers and not strays.isdisjoint(
                closed.trace_ids
            )
            if is_owner and self._may_join(run_id, closed_id):
                del self._closed[closed_id]
                self._reopen(closed.folder)  # the next round moves them
        for owner_id, owner in readers.items():
            if owner_id == run_id or not owner.consistent:
                continue
            owned = strays & owner.translator.rollouts.own_traces()
            if owned and self._may_join(run_id, owner_id):
                # The first owner gets them: the same spans must not be shown in two runs.
                strays -= owned
                for trace_id in owned:
                    if _move(trace_id, readers[run_id], owner):
                        owners.add(owner_id)
        return owners


def _move(trace_id: str, reader: SegmentReader, owner: SegmentReader) -> bool:
    """Store a trace with its owner, then forget it here; return whether the owner has it."""
    # In this order: after a kill between both, the owner gets the spans again, and drops them by
    # their ids. On a full disk the trace waits here, and the next round tries again.
    with contextlib.suppress(JournalError):
        owner.adopt(reader.translator.rollouts.stray(trace_id))
        reader.give_away(trace_id)
        return True
    return False
