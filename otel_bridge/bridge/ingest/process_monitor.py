"""Monitors which processes of a run are alive, and writes the end of those that died without one."""

from __future__ import annotations

import time
from dataclasses import dataclass

from otel_bridge.bridge.ingest.bridge_segment import KIND, BridgeSegment
from otel_bridge.bridge.ingest.segment_reader import SegmentReader
from otel_bridge.bridge.ingest.segment_tailer import SegmentTailer
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.header import SegmentHeader
from otel_bridge.journal.liveness import alive
from otel_bridge.journal.machine import this_host
from otel_bridge.records import Status
from otel_bridge.translation.packing import unpacked
from otel_bridge.translation.processes.process import PREFIX, Process

_REPORTING = frozenset({"process", "launcher"})
"""Kinds of segments whose process sends its end; other segments hold records of several processes,
or the bridge's."""
HEARTBEAT_NS = 60_000_000_000
"""Interval of signs of life; the bridge at the other end waits for longer than that."""


@dataclass(slots=True)
class ProcessMonitor:
    """Monitors the processes of one run folder. One thread.

    An end that cannot be appended, or state that cannot be read, raises `JournalError`: the poll of
    the run ends, and the next one tries again.

    Attributes:
        folder: The run folder.
        reader: Reader of the folder.
        bridge_segment: The bridge's own segment.
        liveness_timeout_ns: Silence after which a process of another machine counts as dead.
    """

    folder: RunFolder
    reader: SegmentReader
    bridge_segment: BridgeSegment
    liveness_timeout_ns: int
    _heartbeat_ns: int = 0

    @property
    def own_id(self) -> str:
        """Return the instance id of the bridge's own segment."""
        return self.bridge_segment.instance_id

    def check(self, now_unix_ns: int) -> bool:
        """Mark processes that died since the last call, for good; return whether any did.

        A process whose header could not be read yet is not judged. One of another machine counts as
        dead after the liveness timeout without data, and its torn tail is not cut: it may still
        append.
        """
        died = False
        for tail in self.reader.tails.values():
            header = tail.header
            # Dead is for good: another process may get the id, and the segments were read as final.
            if tail.segments.dead or header is None:
                continue
            if not self._is_alive(header, now_unix_ns):
                tail.segments.mark_dead(local=header.boot_id == this_host().boot_id)
                died = True
        return died

    def living(self) -> list[SegmentHeader]:
        """Return the headers of living processes, without the bridge's.

        These keep a run open and name exporters.
        """
        return self.headers(living_only=True)

    def headers(self, *, living_only: bool = False) -> list[SegmentHeader]:
        """Return the headers of all processes that still have segments, including dead ones."""
        headers: list[SegmentHeader] = []
        for tail in self.reader.tails.values():
            is_left_out = living_only and tail.segments.dead
            if tail.header is not None and tail.header.kind != KIND and not is_left_out:
                headers.append(tail.header)
        return headers

    def status_of(self, instance_id: str) -> Status:
        """Return how a process ended; a process that died without sending its end was killed.

        ``FINISHED`` for one that translation does not know, as it sent nothing or was forgotten.
        """
        process = self._process_of(instance_id)
        if process is None:
            return Status.FINISHED
        return process.status or Status.KILLED

    def is_alone(self, header: SegmentHeader) -> bool:
        """Return whether every other process that requested exporters is dead and fully read.

        Then what these requested ends at the present position; else their records may still come.
        """
        # Not the last check: a process that died since would make its successor one of several.
        self.check(time.time_ns())
        for tail in self.reader.tails.values():
            if tail.instance_id == header.instance_id:
                continue
            # Without a header it is unknown what was requested, so the process counts.
            may_request = tail.header is None or any(tail.header.exporters.values())
            is_over = tail.segments.dead and not tail.moved and not tail.behind()
            if may_request and not is_over:
                return False
        return True

    def write_end_events(self, spared_pid: int = 0) -> bool:
        """Append the end of each process that died without sending one.

        Return whether any was appended.

        A process gets this end only once its segments are fully read, because they may hold its own
        end. The run may end later: it stays open for ``end_grace_ns`` where the process may be
        restarted, and trackers get the status only then (`RunLifecycle`).

        Args:
            spared_pid: A process whose end another program appends.

        Raises:
            JournalError: The end cannot be appended now.
        """
        appended = False
        for tail in self.reader.tails.values():
            # Unread frames may hold the process's own end, which says more than its death.
            if tail.ended or not tail.used_up or self._is_left(tail, spared_pid):
                continue
            if tail.header is not None and self._is_open(tail):
                last_seen_ns = self._last_seen_ns(tail)
                self.bridge_segment.end(tail.header, Status.KILLED, last_seen_ns)
                appended = True
            # After the append: a full disk raises, and the end is tried again.
            tail.mark_ended()
        return appended

    def has_unreported_ends(self) -> bool:
        """Return whether an end must still be appended, or read.

        Segments of a newer version have none.
        """
        for tail in self.reader.tails.values():
            segments = tail.segments
            is_reported = tail.ended and tail.used_up
            if segments.dead and not segments.refused and not is_reported:
                return True
        return False

    def end_open(self, status: Status, spared_pid: int = 0) -> None:
        """Append the end of every living process that has not ended, and of *spared_pid*.

        Raises `JournalError`.

        A process that died without sending its end is left to `write_end_events`, because it was
        killed.
        """
        for tail in self.reader.tails.values():
            if tail.header is None or not self._is_open(tail):
                continue
            if not tail.segments.dead or _is_spared(tail, spared_pid):
                self.bridge_segment.end(tail.header, status, time.time_ns())

    def heartbeat(self, now_unix_ns: int) -> None:
        """Append a sign of life for each living process once a minute, for the bridge that receives these segments.

        Raises `JournalError` on a full disk; the processes behind it get theirs a minute later.
        """
        # A clock that was set back would else stop them, and the processes would count as dead.
        if 0 <= now_unix_ns - self._heartbeat_ns < HEARTBEAT_NS:
            return
        # Before the appends: on a full disk the next try comes in a minute, not at every poll.
        self._heartbeat_ns = now_unix_ns
        for header in self.living():
            if header.kind in _REPORTING:
                self.bridge_segment.alive(header, now_unix_ns)

    def _is_alive(self, header: SegmentHeader, now_unix_ns: int) -> bool:
        """Return whether the process of *header* may still append.

        Of bridges only this one: it holds the folder's lock, so that any other has ended.
        """
        if header.kind == KIND:
            return header.instance_id == self.own_id
        return alive(
            self.folder,
            header,
            now_unix_ns,
            liveness_timeout_ns=self.liveness_timeout_ns,
        )

    def _is_open(self, tail: SegmentTailer) -> bool:
        """Return whether a process that reports its end has begun and not ended, as translation knows it."""
        header = tail.header
        if header is None or header.kind not in _REPORTING:
            return False
        process = self._process_of(tail.instance_id)
        return process is not None and process.status is None

    def _is_left(self, tail: SegmentTailer, pid: int) -> bool:
        """Return whether the end of *tail* is left to the program that waits for the process *pid*.

        Not that of a program which has replaced itself (``os.execv``): its pid lives on, and what
        runs there now may wait for this end.
        """
        if not _is_spared(tail, pid):
            return False
        for successor in self.reader.tails.values():
            if _is_spared(successor, pid) and not successor.segments.dead:
                return False
        return True

    def _last_seen_ns(self, tail: SegmentTailer) -> int:
        """Return when a process last gave a sign of life; the check that noticed its death came later.

        What an earlier bridge read is known to translation alone. 0 for a process that it does not
        know. Raises as `_process_of` does.
        """
        process = self._process_of(tail.instance_id)
        if tail.last_append_ns or process is None:
            return tail.last_append_ns
        return process.seen_ns

    def _process_of(self, instance_id: str) -> Process | None:
        """Return what translation knows of a process; ``None`` when it has sent nothing.

        Raises `JournalError` when the ledger must be asked and cannot be read.
        """
        stored = self.reader.state.get(f"{PREFIX}{instance_id}")
        if stored is None:
            return None
        return unpacked(Process, stored)


def _is_spared(tail: SegmentTailer, pid: int) -> bool:
    """Return whether *tail* is the process *pid* of this machine; never for *pid* 0."""
    header = tail.header
    return (
        pid > 0
        and header is not None
        and header.pid == pid
        and header.boot_id == this_host().boot_id
    )
