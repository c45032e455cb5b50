"""Run folders that a launcher's children open.

The launcher has a segment in each, which keeps the run open.

A captured run ends with its own processes, as in its tracker, and so does a trial of a W&B sweep:
one command may have many of them, and each has a status of its own.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Collection
from pathlib import Path

from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otel_bridge import semconv
from otel_bridge.emit.config.child_env import launcher_mark
from otel_bridge.emit.encode.log_record import event
from otel_bridge.emit.encode.protobuf import Attribute, attributes
from otel_bridge.errors import JournalError, OtelBridgeError
from otel_bridge.journal.folder import RunFolder, run_folders
from otel_bridge.journal.frames import Signal
from otel_bridge.journal.header import SegmentHeader
from otel_bridge.journal.liveness import hold_life
from otel_bridge.journal.segment import SegmentWriter, header_in
from otel_bridge.records import Status


class LaunchedRuns:
    """Finds the run folders of the launcher's children.

    The supervisor's thread calls `folders`, the launcher's `end`.

    Args:
        base: The directory of run folders.
    """

    def __init__(self, base: Path) -> None:
        self._base = base
        # Not by their times: a clock that is set back would hide every segment of a child.
        self._earlier_segments: set[Path] = set()
        for folder in run_folders(base):
            self._earlier_segments.update(segment.path for segment in folder.segments())
        self._folders: dict[Path, RunFolder] = {}
        self._segments: list[_LauncherSegment] = []
        # The supervisor's thread joins folders while the launcher's thread ends them.
        self._lock = threading.Lock()
        self._ended: Status | None = None

    def folders(self) -> list[RunFolder]:
        """Return the folders that this launcher's children or its receiver write to, the first ones first.

        A folder that cannot be joined now, as on a full disk, is missing until a later call.
        """
        with self._lock:
            for folder in run_folders(self._base):
                if folder.path not in self._folders:
                    self._join(folder)
            return list(self._folders.values())

    def end(self, status: Status) -> None:
        """Record in every run that the command has ended with *status*, also in those found later."""
        with self._lock:
            self._ended = status
            for segment in self._segments:
                segment.end(status)

    def _join(self, folder: RunFolder) -> None:
        """Serve *folder* if a child of this command writes to it.

        Another job's folder is left to its own bridge.
        """
        header = _own_header(folder, self._earlier_segments)
        if header is None:
            return
        if not _ends_by_itself(header):
            try:
                segment = _LauncherSegment(folder, header)
            except OtelBridgeError:
                return  # the disk is full, or the folder is gone: the next call tries again
            self._segments.append(segment)
            # Found after the command's exit: its end must be recorded here as well.
            if self._ended is not None:
                segment.end(self._ended)
        self._folders[folder.path] = folder


class _LauncherSegment:
    """Writes the launcher's own segment in one run folder.

    While it lives the run does not end: a program may start its processes one after the other.

    Raises:
        OtelBridgeError: The lock or the segment cannot be made, as on a full disk.
    """

    def __init__(self, folder: RunFolder, of: SegmentHeader) -> None:
        self._instance_id = os.urandom(8).hex()
        header = SegmentHeader.of_this_process(
            "launcher",
            self._instance_id,
            run_id=of.run_id,
            project=of.project,
            run_name=of.run_name,
            generated=of.generated,
            resource=self._resource(of),
        )
        # Held before the segment exists, or a bridge could find its process dead.
        self._liveness = hold_life(folder, self._instance_id)
        try:
            self._writer = SegmentWriter(folder.segments_dir, header)
        except JournalError:
            # A lock without a segment would keep a file open for each try, four in a second.
            self._liveness.release()
            raise

    def end(self, status: Status) -> None:
        """Append the end event and release the liveness lock.

        It never raises: without the event, as on a full disk, the released lock shows that the
        launcher has ended, and the command's exit code and its delivery do not depend on it.
        """
        now = time.time_ns()
        end = event(
            semconv.EVENT_END,
            time_unix_ns=now,
            pairs={semconv.RUN_STATUS: status.value, semconv.EVENT_SEQ: 1},
        )
        with contextlib.suppress(JournalError):
            self._writer.append(Signal.LOGS, end, now)
        self._writer.close()
        self._liveness.release()

    def _resource(self, of: SegmentHeader) -> bytes:
        """Return the resource of the launcher: the run of the child, so that the bridge opens no other."""
        pairs: dict[str, Attribute] = {
            semconv.PROJECT: of.project,
            semconv.RUN_NAME: of.run_name,
            semconv.RUN_ID: of.run_id,
            semconv.INSTANCE_ID: self._instance_id,
            semconv.LAUNCHER: True,
        }
        if "project" in of.generated:
            pairs[semconv.PROJECT_GENERATED] = True
        if "run_name" in of.generated:
            pairs[semconv.RUN_NAME_GENERATED] = True
        return attributes(1, pairs.items())


def _ends_by_itself(of: SegmentHeader) -> bool:
    """Return whether the run is captured, or a trial of a W&B sweep."""
    ends = {semconv.CAPTURED, semconv.WANDB_SWEEP_ID}
    return any(
        attribute.key in ends
        for attribute in Resource.FromString(of.resource).attributes
    )


def _own_header(
    folder: RunFolder, earlier_segments: Collection[Path]
) -> SegmentHeader | None:
    """Return the header of a segment that a child or this receiver began; ``None`` without one.

    A child is known by the launcher's mark, which it inherits in its environment; a segment of this
    process's receiver by its process id, which an earlier process may have had.
    """
    mark = launcher_mark()
    for segment in folder.segments():
        # Cheaper than to read the header of every segment of an old directory.
        if segment.path in earlier_segments:
            continue
        header = header_in(segment.path)
        if header is None:
            continue
        is_of_receiver = header.kind == "receiver" and header.pid == os.getpid()
        if header.launcher == mark or is_of_receiver:
            return header
    return None
