"""The receiver's segment of one run: appended under a lock, synced in groups."""

from __future__ import annotations

import os
import threading
import time
from typing import Final

from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.frames import Signal
from otel_bridge.journal.header import SegmentHeader
from otel_bridge.journal.life import Life, start_ticks, this_host
from otel_bridge.journal.segment import SegmentWriter
from otel_bridge.translation.identity import RunIdentity
from otel_bridge_collector.answers import UnavailableError

_FRAME_BYTES: Final = 64
"""More than a frame adds to its payload."""


class RunSegment:
    """Appends requests of one run. Thread-safe.

    Args:
        folder: The run folder; made when it is missing.
        identity: The run.
        instance_id: New for each `RunSegment`.
        segment_bytes: Size at which a segment is closed.
        fsync: Wait for the disk; one sync serves all requests appended before it.

    Raises:
        JournalError: The folder cannot be used.
    """

    def __init__(
        self, folder: RunFolder, identity: RunIdentity, *, instance_id: str, segment_bytes: int, fsync: bool
    ) -> None:
        folder.create()
        host, pid = this_host(), os.getpid()
        header = SegmentHeader(
            instance_id=instance_id,
            run_id=identity.id,
            project=identity.project,
            run_name=identity.name,
            kind="receiver",
            resource=b"",
            exporters={},
            destinations={},
            host=host.name,
            boot_id=host.boot_id,
            pid=pid,
            start_ticks=start_ticks(pid),
            created_unix_ns=time.time_ns(),
        )
        self._life = Life.hold(folder, instance_id)
        self._writer = SegmentWriter(folder, header, segment_bytes=segment_bytes)
        self._fsync = fsync
        self._segment_bytes = segment_bytes
        self._lock = threading.Lock()
        self._appended = self._synced = 0
        self._open = True

    def usable(self) -> bool:
        """Say whether it is open and its file still stands in the folder."""
        with self._lock:
            return self._open and self._writer.linked()

    def append(self, signal: Signal, payload: bytes, now_unix_ns: int) -> None:
        """Append one request; it is in the kernel, and with *fsync* on the disk, when this returns.

        Raises:
            UnavailableError: The segment was closed meanwhile; the request may be sent again.
            JournalError: It could not be stored.
        """
        with self._lock:
            if not self._open:
                raise UnavailableError("the receiver closed this run's segment; send it again")
            if self._fsync and self._writer.offset + len(payload) + _FRAME_BYTES > self._segment_bytes:
                self._sync()  # the next append may begin a new segment, and a sync reaches the open one only
            self._writer.append(signal, payload, now_unix_ns, whole=True)
            self._appended += 1
            mine = self._appended
        if self._fsync:
            with self._lock:  # whoever waited here is served by the sync of the one before
                if self._open and self._synced < mine:
                    self._sync()

    def close(self) -> None:
        """Close the segment and say that nothing more is written."""
        with self._lock:
            if not self._open:
                return
            self._open = False
            try:
                if self._fsync:
                    self._writer.sync()
            finally:
                self._writer.close()
                self._life.release()

    def _sync(self) -> None:
        self._writer.sync()
        self._synced = self._appended
