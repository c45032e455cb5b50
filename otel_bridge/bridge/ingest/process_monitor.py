"""Monitor which processes of a run are alive, and write the end of those that died without one."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final, cast

from otel_bridge.bridge.ingest.bridge_segment import KIND, BridgeSegment
from otel_bridge.bridge.ingest.segment_reader import SegmentReader
from otel_bridge.bridge.ingest.segment_tailer import SegmentTailer
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.header import SegmentHeader
from otel_bridge.journal.liveness import alive, this_host
from otel_bridge.records import Status

_SPEAKING: Final = frozenset({"process", "launcher"})
"""Kinds of segments whose process says its end; others hold the words of several, or the bridge's own."""
ALIVE_SIGN_NS: Final = 60_000_000_000


class ProcessMonitor:
    """Looks after the processes of one run folder. One thread.

    Args:
        folder: The run folder.
        reader: Its reader.
        own: The bridge's own segment.
        liveness_timeout_ns: How long a process of another machine may be silent.
    """

    def __init__(
        self, folder: RunFolder, reader: SegmentReader, own: BridgeSegment, *, liveness_timeout_ns: int
    ) -> None:
        self._folder, self._reader, self._own, self._liveness_timeout_ns = folder, reader, own, liveness_timeout_ns
        self._signed_ns = 0

    def look(self, now_unix_ns: int) -> bool:
        """Find out who has died since, and return whether anybody has; a process once seen dead stays dead."""
        died = False
        for tail in self._reader.tails.values():
            header = tail.header
            if tail.dead or header is None:
                continue
            if not self._is_alive(header, now_unix_ns):
                tail.mark_dead(local=header.boot_id == this_host().boot_id)
                died = True
        return died

    def living(self) -> list[SegmentHeader]:
        """Return the headers of processes that live; of those only whose word keeps a run open or names exporters."""
        tails = self._reader.tails.values()
        return [tail.header for tail in tails if tail.header is not None and not tail.dead and tail.header.kind != KIND]

    def headers(self) -> list[SegmentHeader]:
        """Return the headers of all processes that still have segments, dead ones too."""
        tails = self._reader.tails.values()
        return [tail.header for tail in tails if tail.header is not None and tail.header.kind != KIND]

    def status_of(self, instance_id: str) -> Status:
        """Return how a process ended; one that died and did not send its end was killed."""
        facts = cast("Mapping[str, object] | None", self._reader.state.get(f"proc/{instance_id}"))
        status = Status.FINISHED.value if facts is None else facts.get("status")
        return Status.KILLED if status is None else Status(str(status))

    def is_alone(self, header: SegmentHeader) -> bool:
        """Return whether every other process that asked for exporters is dead and wholly read."""
        self.look(time.time_ns())
        others = [tail for name, tail in self._reader.tails.items() if name != header.instance_id]
        asking = [tail for tail in others if tail.header is None or any(tail.header.exporters.values())]
        return all(tail.dead and not tail.moved and not tail.behind() for tail in asking)

    def write_end_events(self, spared_pid: int = 0) -> bool:
        """Say the end of each process that died without a word; return whether any was said.

        Only when everything has been read: the word may stand in what has not.

        Args:
            spared_pid: A process whose end somebody else will say.

        Raises:
            JournalError: It cannot be appended now.
        """
        said = False
        for tail in self._reader.tails.values():
            if tail.ended or not tail.used_up or _is_spared(tail, spared_pid):
                continue
            if tail.header is not None and self._is_open(tail):
                self._own.end(tail.header, Status.KILLED, tail.last_append_ns or tail.header.created_unix_ns)
                said = True
            tail.mark_ended()
        return said

    def has_unreported_ends(self) -> bool:
        """Return whether an end is still to be said, or to be read."""
        tails = self._reader.tails.values()
        return any(tail.dead and not tail.refused and not (tail.ended and tail.used_up) for tail in tails)

    def end_open(self, status: Status, spared_pid: int = 0) -> None:
        """Say the end of every living process that has not ended, and of *spared_pid*; raises `JournalError`.

        A process that died without a word is left to `write_end_events`: it was killed.
        """
        for tail in self._reader.tails.values():
            if tail.header is None or not self._is_open(tail):
                continue
            if not tail.dead or _is_spared(tail, spared_pid):
                self._own.end(tail.header, status, time.time_ns())

    def sign(self, now_unix_ns: int) -> None:
        """Once a minute, say for each living process that it lives, for the bridge that these segments go to."""
        if now_unix_ns - self._signed_ns < ALIVE_SIGN_NS:
            return
        self._signed_ns = now_unix_ns
        for header in self.living():
            if header.kind in _SPEAKING:
                self._own.alive(header, now_unix_ns)

    def _is_alive(self, header: SegmentHeader, now_unix_ns: int) -> bool:
        if header.kind == KIND:
            return header.instance_id == self._own.instance_id
        return alive(self._folder, header, now_unix_ns, liveness_timeout_ns=self._liveness_timeout_ns)

    def _is_open(self, tail: SegmentTailer) -> bool:
        header = tail.header
        if header is None or header.kind not in _SPEAKING:
            return False
        facts = cast("Mapping[str, object] | None", self._reader.state.get(f"proc/{tail.instance_id}"))
        return facts is not None and facts.get("status") is None


def _is_spared(tail: SegmentTailer, pid: int) -> bool:
    header = tail.header
    return pid > 0 and header is not None and header.pid == pid and header.boot_id == this_host().boot_id
