"""Hold the position of one exporter in the ledger, at one destination, and its progress for the report.

For the exporter's own thread; `DeliveryPosition.progress` may be read by any. No writer here: delivery says what became
of one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections import Counter

from otel_bridge.bridge.delivery.batch import Batch, Progress
from otel_bridge.bridge.delivery.context import DeliveryContext
from otel_bridge.bridge.ledger.ledger import DeadLetter
from otel_bridge.bridge.ledger.rows import Destination
from otel_bridge.errors import RetryableError
from otel_bridge.exporter import ExporterSettings, destination_of
from otel_bridge.records import Position
from otel_bridge.text.printable import shown
from otel_bridge.text.redaction import redact_text


class DeliveryPosition:
    """An exporter's destination in the ledger and its progress for the report.

    Attributes:
        progress: How far it is; a new value with each change.
        at: Its destination, ``None`` until `resume`.
    """

    def __init__(self, context: DeliveryContext) -> None:
        self.progress = Progress(context.name)
        self.at: Destination | None = None
        self._name, self._ledger, self._say = context.name, context.ledger, context.say
        self._settings: ExporterSettings | None = None
        self._found = ""

    @property
    def now(self) -> Destination:
        """The destination; raises `RetryableError` while there is none."""
        if self.at is None:
            raise RetryableError(f"exporter {self._name} has no destination yet")
        return self.at

    @property
    def failing(self) -> bool:
        """It failed, and nothing has been written since."""
        return self.progress.failing_since_s is not None

    def resume(self, settings: ExporterSettings) -> Destination:
        """Stand where the ledger says that the destination of *settings* is; the same one after the first call."""
        if self.at is None:
            at = self._ledger.destination(self._name, destination_of(settings))
            if at.durable < at.written and not at.ended:
                # Written but not durable when the last bridge went: the writer says after its open where to go on.
                at = dataclasses.replace(at, written=at.durable)
            self.at, self._settings = at, settings
            self.show(self.progress.state)
        return self.now

    def save(self, at: Destination) -> None:
        """Stand at *at*, in the ledger too."""
        self._ledger.save(at)
        self.at = at
        self.show(self.progress.state)

    def advance(self, through: Position, batch: Batch, *, reports_durable: bool | None) -> None:
        """Note that all up to *through* is written, and count what *batch* has counted.

        Args:
            through: Position up to which it is.
            batch: Its counts are taken.
            reports_durable: What the open writer wrote is durable only when it says so; ``None``: no writer is open.
        """
        at = self.now
        in_doubt = at.durable < at.written if reports_durable is None else reports_durable
        moved = dataclasses.replace(
            at,
            written=max(through, at.written),
            durable=at.durable if in_doubt else max(through, at.written),
            counted=max(at.counted, through),
            rows=at.rows + batch.rows,
            rollouts=at.rollouts + batch.rollouts,
            left_out=dict(batch.left_out + Counter(at.left_out)) if batch.left_out else at.left_out,
        )
        if moved != at:
            self.save(moved)
        batch.counted()  # behind the save, which may fail and be made again

    def rewind(self) -> bool:
        """Move back to what is durable, so that the rest is written again; return whether that moved it."""
        at = self.at
        if at is None or at.durable >= at.written or at.ended:
            return False
        self.at = dataclasses.replace(at, written=at.durable)
        with contextlib.suppress(Exception):  # the next bridge begins there anyway
            self.save(self.at)
        return True

    def dead_letter(self, position: Position, kind: int, data: bytes, *, record_id: str, reason: str) -> None:
        """Set a record aside that is refused for good."""
        at, reason = self.now, redact_text(reason)
        self._ledger.dead_letter(DeadLetter(at.id, position, kind, record_id, reason, time.time_ns(), data))
        self.at = dataclasses.replace(at, dead_letters=at.dead_letters + 1)
        self._say(f"{self._name}: record {record_id or position} is refused for good and set aside: {reason}")

    def found(self, what: str) -> None:
        """Note, and say, what the tracker already held of the run when its writer was opened; empty: nothing new."""
        if what:
            self._found = what
            self._say(f"{self._name}: {what}")

    def backlog(self, count: int) -> None:
        """Note how much of what is written the writer has deferred."""
        if count != self.now.backlog:
            self.save(dataclasses.replace(self.now, backlog=count))

    def damaged(self, reason: str) -> None:
        """Show that the ledger was found damaged."""
        self.progress = dataclasses.replace(self.progress, damaged=True, reason=shown(reason))

    def show(self, state: str, *, reason: str = "", help_: str = "") -> None:
        """Show *state*; a failing one keeps since when and, where they are not given anew, its reason and help."""
        reason, help_ = shown(reason), shown(help_)
        at, before = self.at, self.progress
        failing = state in {"retrying", "blocked"}
        if state == before.state and failing:
            reason, help_ = reason or before.reason, help_ or before.help
        since = (before.failing_since_s or time.monotonic()) if failing else None
        if at is None or self._settings is None:
            self.progress = Progress(self._name, state, reason, help_, failing_since_s=since)
            return
        self.progress = Progress(
            self._name, state, reason, help_, url=at.url, destination=destination_of(self._settings),
            written=at.written, durable=at.durable, rows=at.rows, rollouts=at.rollouts, dead_letters=at.dead_letters,
            taken=at.taken, failing_since_s=since, resolved=True, settings=self._settings, found=self._found,
            backlog=at.backlog, settled=at.settled,
        )  # fmt: skip
