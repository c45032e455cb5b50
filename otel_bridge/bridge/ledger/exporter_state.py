"""Defines the state of one exporter of a run: stored in the ledger, reported, and shown.

The delivery thread is the only writer. It replaces the whole value, so any thread may read the
newest one. `docs/architecture.md` lists who changes which part ("What an exporter's state is").

A record is *written* once the tracker's call has returned, and *durable* once the tracker's store
holds it. It is deleted when it is durable at every destination, or evicted near the limit.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from otel_bridge.exporter import ExporterSettings
from otel_bridge.journal.report import ExporterReport
from otel_bridge.records import Position, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class ExporterState(ExporterReport):
    """Adds to the reported state of one exporter, at one destination, what only its bridge needs: a plain value.

    Attributes:
        exporter: Name of the exporter.
        id: Number of the destination in the ledger; 0 for ``otlp``, which delivers segments and has
            none.
        resolved: Whether the exporter's settings could be read, so that it has a destination and
            numbers.
        settings: These settings.
        named: Whether the run has the destination now; else its records are kept until room is
            needed.
        counted: Last position that `rows` and `rollouts` count; a record that is written again is
            not counted again.
        evicted: Number of records that were evicted before they were durable here.
        opened: Whether a writer was opened at least once.
        ended: Position of the last end that was acted on, 0 without one.
        end_status: Status of that end. Without an *ended*: that of the end which the tracker's run
            had before the retry of a dead letter opened it, and gets again.
        failing_since_s: `time.monotonic` of the first failure since a record was written; ``None``
            while it works.
        damaged: Whether the delivery found the ledger damaged and waits for a new one.
        final_position: Position of the last record for it; ``None`` while the last one is unknown.
    """

    exporter: str
    id: int = 0
    resolved: bool = False
    settings: ExporterSettings | None = None
    named: bool = True
    counted: Position = 0
    evicted: int = 0
    opened: bool = False
    ended: Position = 0
    end_status: Status | None = None
    failing_since_s: float | None = None
    damaged: bool = False
    final_position: Position | None = None

    @property
    def failing(self) -> bool:
        """Return whether the exporter failed and no record has been written since."""
        return self.failing_since_s is not None

    @property
    def owes_end(self) -> bool:
        """Return whether the tracker's run must end again, since the retry of a dead letter opened it."""
        return not self.ended and self.end_status is not None

    @property
    def settled(self) -> bool:
        """Return whether the tracker's run has ended or was never opened, so that no written record is in doubt."""
        return bool(self.ended) or not self.opened

    @property
    def delivered(self) -> Position:
        """Return the position up to which no record must be written again."""
        if self.settled:
            return self.written
        return min(self.durable, self.written)

    def lacks(self, position: Position) -> int:
        """Return the number of records up to *position* that the exporter still has to write."""
        last = position
        if self.final_position is not None:
            last = min(position, self.final_position)
        return max(last - self.written, 0)

    def has_all(self, position: Position) -> bool:
        """Return whether the exporter needs none of the records up to *position*, not even to write lost ones again.

        Without further records, the end of the tracker's run settles records in doubt; otherwise a
        later record does.
        """
        return not self.lacks(position) and (
            self.settled or self.final_position is None
        )

    def is_done(self, position: Position) -> bool:
        """Return whether the exporter works and needs none of the records up to *position*."""
        return self.resolved and not self.failing and self.has_all(position)

    def reported(
        self, *, view: str, upload: str, rows_per_s: float, dead_letters: int
    ) -> ExporterReport:
        """Return the reported part, with the values that are known when the report is written.

        *dead_letters* is that of the ledger, where a command may have discarded some meanwhile.
        """
        values: dict[str, Any] = {
            field.name: getattr(self, field.name) for field in fields(ExporterReport)
        }
        values |= {
            "view": view,
            "upload": upload,
            "rows_per_s": rows_per_s,
            "dead_letters": dead_letters,
        }
        return ExporterReport(**values)
