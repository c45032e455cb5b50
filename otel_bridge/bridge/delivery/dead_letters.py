"""Retries dead letters at a person's request: with the exporter that refused them, one at a time.

The writer gets a dead letter as a batch of its own, between two batches of the ledger's order. The dead letter stays in
the ledger until it is written. If it is refused again, it is stored again with the new reason.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable

from otel_bridge.bridge.delivery.batch import Batch, WriterCall
from otel_bridge.bridge.delivery.context import DeliveryContext
from otel_bridge.bridge.ledger.codec import decode
from otel_bridge.bridge.ledger.queries import LedgerView
from otel_bridge.bridge.ledger.rows import Destination, StoredDeadLetter
from otel_bridge.errors import InvalidRecordError
from otel_bridge.records import End, Record, RolloutRecord, Row


class DeadLetterRetry:
    """Holds the dead letters that one exporter must retry. Only `ask` may be called by any thread.

    Args:
        context: Context of the exporter's delivery.
    """

    def __init__(self, context: DeliveryContext) -> None:
        self._ledger, self._say = context.ledger, context.say
        self._asked: deque[int] = deque()
        self._end: End | None = None
        self._owed_end: End | None = None

    @property
    def waiting(self) -> int:
        """Return how many dead letters wait for a retry, and for the end of the run that the last one reopened."""
        return len(self._asked) + (self._owed_end is not None)

    def ask(self, ids: Iterable[int]) -> None:
        """Retry these dead letters, in their order."""
        self._asked.extend(number for number in ids if number not in self._asked)

    def batch(self, view: LedgerView, at: Destination) -> Batch | None:
        """Return the next dead letter as a batch of its own; ``None`` when none waits."""
        while self._asked:
            dead_letter = self._asked[0]
            record = self._record(view, dead_letter, at)
            if record is not None:
                if at.ended and at.end_status is not None:
                    # Opening the tracker's run removes its end, so it ends again after the last dead letter.
                    self._end = End("", at.end_status, 0, at.ended)
                end = self._end if len(self._asked) == 1 else None
                return Batch(deque([WriterCall([record])]), at.written, end, dead_letter=dead_letter)
            self._asked.popleft()
        return None if self._owed_end is None else Batch(deque(), at.written, self._owed_end)

    def ended(self) -> None:
        """Note that the end of the run was written again, or that later records have cancelled it."""
        self._owed_end = None

    def done(self, at: Destination, batch: Batch) -> Destination:
        """Remove the retried dead letter of *batch* from the ledger."""
        self._ledger.remove_dead_letters(at.id, [batch.dead_letter])
        if self._asked and self._asked[0] == batch.dead_letter:
            self._owed_end = batch.end  # before the dead letter waits no longer: a bridge that sees none exits
            self._asked.popleft()
        if not self._asked:
            self._end = None
        batch.dead_letter_removed()
        rows, rollouts = isinstance(batch.tried, Row), isinstance(batch.tried, RolloutRecord)
        return dataclasses.replace(at, rows=at.rows + rows, rollouts=at.rollouts + rollouts)

    def _record(self, view: LedgerView, dead_letter: int, at: Destination) -> Record | None:
        found = view.dead_letters([dead_letter])
        if not found:
            return None  # discarded meanwhile
        why = _retry_obstacle(found[0], at)
        if not why:
            try:
                return dataclasses.replace(decode(found[0].kind, found[0].data, 0), position=at.written)
            except InvalidRecordError as exc:
                why = str(exc)
        self._say(f"{at.exporter}: dead letter {dead_letter} cannot be tried again: {why}")
        return None


def _retry_obstacle(dead_letter: StoredDeadLetter, at: Destination) -> str:
    if dead_letter.destination_id != at.id:
        return "it belongs to another destination of this exporter"
    return "" if dead_letter.data else "its content was released, there were too many"
