"""Lists the segments of one process, for the reader that translates them and for ``otlp``, which forwards them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otel_bridge import semconv
from otel_bridge.journal.files import size_of_regular
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.header import SegmentHeader
from otel_bridge.journal.segment import header_in


class ProcessSegments:
    """Knows which segments of one process exist, and whether more is appended to them. One thread.

    It outlives a `SegmentTailer`, which begins again at the ledger's position after a commit that
    failed.

    Attributes:
        first_number: Lowest number of its segments.
        last_number: Highest number of its segments.
        numbers: Numbers of the segments that were listed and are not deleted.
        dead: Whether its process has ended. Nothing more will be appended, and an unfinished tail
            is a gap.
        cut: Whether a torn tail may be cut off the file, because the process was on this machine.
        refused: Whether a newer version wrote the segments, so that they stay as they are.
    """

    def __init__(self, folder: RunFolder, instance_id: str, number: int) -> None:
        self._folder = folder
        self.instance_id = instance_id
        self.first_number = number
        self.last_number = number
        self.numbers: set[int] = set()
        self.dead = False
        self.cut = False
        self.refused = False
        self._path = ""
        self._path_of = -1

    def listed(self, number: int) -> None:
        """Add a segment that exists, by its number."""
        self.numbers.add(number)
        self.last_number = max(self.last_number, number)
        # The segment was read long ago, and its bridge was killed before it deleted the segment.
        self.first_number = min(self.first_number, number)

    def deleted_before(self, number: int) -> None:
        """Mark the segments below *number* as deleted."""
        self.numbers = {existing for existing in self.numbers if existing >= number}
        self.first_number = number

    def mark_dead(self, *, local: bool) -> None:
        """Mark the process as ended; *local* means that a torn tail may be cut off its file."""
        self.dead = True
        self.cut = local

    def refuse(self) -> None:
        """Leave the segments as they are."""
        self.refused = True

    def after(self, number: int) -> int:
        """Return the number of the next segment after *number*.

        Of the last one when none follows.
        """
        # Not number + 1: the name of a file may hold a number that is a billion steps away.
        return min(
            (later for later in self.numbers if later > number),
            default=self.last_number,
        )

    def path(self, number: int) -> Path:
        """Return the path of a segment."""
        return self._folder.segment_path(self.instance_id, number)

    def replaced_header(self, number: int, unix_ns: int) -> SegmentHeader:
        """Return a header in place of the damaged one of a segment, so that its frames are delivered.

        Any other segment of the process names the same run, role and exporters. If there is none,
        the names of folder and file are all that is known.

        Args:
            number: The segment.
            unix_ns: When its first readable frame was appended.
        """
        for intact_number in sorted(self.numbers - {number}):
            header = header_in(self.path(intact_number))
            if header is not None:
                return header
        return _header_of_lost(self._folder.run_id, self.instance_id, number, unix_ns)

    def size(self, number: int) -> int | None:
        """Return the size of a segment in bytes; ``None`` when it does not exist."""
        # Called at every poll for every process, so the path is built once.
        if self._path_of != number:
            self._path = os.fspath(self.path(number))
            self._path_of = number
        return size_of_regular(self._path)


def _header_of_lost(
    run_id: str, instance_id: str, number: int, unix_ns: int
) -> SegmentHeader:
    """Return a header for a process of which only the names of its folder and file are known, and its first time.

    It names no exporter: the run's other processes decide. Without a process id the process counts
    as dead unless it holds the lock of its name.
    """
    resource = Resource()
    for name, value in ((semconv.RUN_ID, run_id), (semconv.INSTANCE_ID, instance_id)):
        resource.attributes.add(key=name).value.string_value = value
    header = SegmentHeader.of_this_process(
        "process",
        instance_id,
        run_id=run_id,
        project="",
        run_name="",
        resource=resource.SerializeToString(),
    )
    # No pid: it counts as dead unless it holds the lock of its name.
    return replace(
        header,
        pid=0,
        start_ticks=0,
        number=number,
        created_unix_ns=unix_ns,
        started_unix_ns=unix_ns,
    )
