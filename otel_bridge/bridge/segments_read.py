"""How far the segments of a run were read when its bridge let go of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from otel_bridge.journal.folder import RunFolder


@dataclass(frozen=True, slots=True)
class SegmentsRead:
    """What is left of a closed run.

    Attributes:
        known: Process to the number of its segment and the offset up to which it was read.
    """

    folder: RunFolder
    known: Mapping[str, tuple[int, int]]

    def anything_new(self) -> bool:
        """Say whether the folder holds more than was read."""
        return any(
            (file.number, file.size_bytes) > self.known.get(file.instance_id, (-1, 0))
            for file in self.folder.segments()
        )
