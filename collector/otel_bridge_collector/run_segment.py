"""Writes the receiver's segment of one run: appended on the event loop, synced in groups by threads."""

from __future__ import annotations

import asyncio
import time

from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.frames import Signal
from otel_bridge.journal.header import SegmentHeader
from otel_bridge.journal.liveness import hold_life
from otel_bridge.journal.segment import SegmentWriter
from otel_bridge.translation.decode.resources import RunIdentity
from otel_bridge_collector.group_sync import GroupSync, SyncedFile


class RunSegment:
    """Appends requests of one run. For one thread, the event loop's.

    Args:
        folder: The run folder; created when it is missing.
        identity: The run.
        instance_id: Instance id, new for each `RunSegment`.
        segment_bytes: Size at which a segment is closed.
        sync: Syncs appended data to the disk; ``None`` when requests do not wait for that.

    Raises:
        FormatVersionError: A newer version wrote the folder, or it holds another run.
        JournalError: The folder cannot be used.
    """

    def __init__(
        self,
        folder: RunFolder,
        identity: RunIdentity,
        *,
        instance_id: str,
        segment_bytes: int,
        sync: GroupSync | None,
    ) -> None:
        folder.create()
        # Before the segment: a bridge counts the process of a segment without a lock as dead.
        self._liveness = hold_life(folder, instance_id)
        try:
            self._writer = SegmentWriter(
                folder.segments_dir,
                SegmentHeader.of_this_process(
                    "receiver",
                    instance_id,
                    run_id=identity.id,
                    project=identity.project,
                    run_name=identity.name,
                ),
                segment_bytes=segment_bytes,
            )
        except BaseException:
            # Else the lock would stay until this process ends, and the run would count as open.
            self._liveness.release()
            raise
        self.used_s = time.monotonic()
        self._folder = folder
        self._sync = sync
        self._file: SyncedFile | None = None
        self._file_number = -1
        self._open = True

    def usable(self) -> bool:
        """Return whether the segment is open and its file still exists in the folder.

        Somebody may delete a run folder meanwhile; what is appended to a deleted file is lost.
        """
        return self._open and self._writer.linked()

    def append(
        self, signal: Signal, payload: bytes, now_unix_ns: int
    ) -> asyncio.Future[None] | None:
        """Append one request. When this returns, the kernel has the request.

        Returns:
            A future that is done when the request is on the disk; ``None`` when requests do not
            wait for that.

        Raises:
            JournalError: The request could not be stored.
            OSError: It is stored, but no more files can be opened to sync it; it is not
                acknowledged, and comes again.
        """
        self.used_s = time.monotonic()
        # "whole": an export request with its resources, where a frame of a trainer holds one scope.
        self._writer.append(signal, payload, now_unix_ns, whole=True)
        if self._sync is None:
            return None
        if self._file is None or self._file_number != self._writer.number:
            self._next_file(self._sync)
        assert self._file is not None  # noqa: S101  # for the type checker: made just above
        return self._sync.wait(self._file)

    def close(self) -> None:
        """Close the segment and release its liveness lock.

        Data that requests wait for is still synced. May be called twice.
        """
        if not self._open:
            return
        self._open = False
        if self._file is not None and self._sync is not None:
            # Before the writer closes: the sync has a descriptor of its own, so that waiting
            # requests finish.
            self._sync.retire(self._file)
        self._writer.close()
        self._liveness.release()

    def _next_file(self, sync: GroupSync) -> None:
        """Sync the new open segment from now on.

        The previous one is closed when no request waits for it. Raises `OSError` when no more files
        can be opened; nothing of the new segment is acknowledged then.
        """
        previous_file = self._file
        self._file = (
            None  # a retired file is never waited for again, whatever fails below
        )
        if previous_file is not None:
            sync.retire(previous_file)
        folder = self._folder
        # A new file is on the disk only once the entry in its folder is; of the first file, the
        # folders too.
        folders = (
            (folder.segments_dir,)
            if previous_file
            else (folder.segments_dir, folder.path, folder.base)
        )
        self._file = SyncedFile(self._writer.fileno(), folders)
        self._file_number = self._writer.number
