"""How much of a run folder's segments its bridge has not read yet. Read-only, beside a bridge at work."""

from __future__ import annotations

from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.report import Report


def unread_bytes(folder: RunFolder, report: Report | None) -> int:
    """Return the bytes behind the places that *report* names, in all segments that *folder* has now.

    A report is at most a moment old: what was read since then still counts. What a process wrote into its segment when
    it died, and cannot be read, counts until the segment is deleted.

    Args:
        folder: The run folder.
        report: Its last report; ``None``: nobody has read anything.
    """
    places = {} if report is None else report.processes
    total = 0
    for file in folder.segments():
        at = places.get(file.instance_id)
        if at is None or file.number > at.segment:
            total += file.size_bytes
        elif file.number == at.segment:
            total += max(file.size_bytes - at.offset, 0)
    return total
