"""Dead letters that a person wants tried again: by the exporter that refused them, one at a time.

A letter goes to the writer as a window of its own, between two windows of the ledger's order. It stays in the ledger
until it is written; refused again, it is buried again, with the new reason.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterable

from otel_bridge.bridge.calls import Call
from otel_bridge.bridge.codec import decode
from otel_bridge.bridge.ledger import Ledger
from otel_bridge.bridge.tables import Buried, Destination
from otel_bridge.bridge.view import View
from otel_bridge.bridge.window import Window
from otel_bridge.errors import InvalidRecordError
from otel_bridge.records import End, Record, Rollout, Row


class Letters:
    """What is to be tried again of one exporter. `ask` is for any thread, the rest for the exporter's own.

    Args:
        say: Takes one line for the log.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._asked: deque[int] = deque()
        self._end: End | None = None

    @property
    def waiting(self) -> int:
        """How many wait to be tried."""
        return len(self._asked)

    def ask(self, ids: Iterable[int]) -> None:
        """Try these again, in their order."""
        self._asked.extend(number for number in ids if number not in self._asked)

    def window(self, view: View, at: Destination) -> Window | None:
        """Return the next one as a window of its own; ``None``: none waits."""
        while self._asked:
            letter = self._asked[0]
            record = self._record(view, letter, at)
            if record is not None:
                if at.ended and at.end_status is not None:
                    # Opening the tracker's run takes its end back: it ends again behind the last letter.
                    self._end = End("", at.end_status, 0, at.ended)
                end = self._end if len(self._asked) == 1 else None
                return Window(deque([Call([record])]), at.written, end, letter=letter)
            self._asked.popleft()
        return None

    def done(self, ledger: Ledger, at: Destination, window: Window) -> Destination:
        """The letter of *window* was tried: it leaves the ledger."""
        ledger.exhume(at.id, [window.letter])
        if self._asked and self._asked[0] == window.letter:
            self._asked.popleft()
        if not self._asked:
            self._end = None
        window.letter = 0
        rows, rollouts = isinstance(window.tried, Row), isinstance(window.tried, Rollout)
        return dataclasses.replace(at, rows=at.rows + rows, rollouts=at.rollouts + rollouts)

    def _record(self, view: View, letter: int, at: Destination) -> Record | None:
        found = view.dead_letters([letter])
        if not found:
            return None  # discarded meanwhile
        why = _hindrance(found[0], at)
        if not why:
            try:
                return dataclasses.replace(decode(found[0].kind, found[0].data, 0), position=at.written)
            except InvalidRecordError as exc:
                why = str(exc)
        self._say(f"{at.exporter}: dead letter {letter} cannot be tried again: {why}")
        return None


def _hindrance(letter: Buried, at: Destination) -> str:
    if letter.destination_id != at.id:
        return "it belongs to another destination of this exporter"
    return "" if letter.data else "its content was let go, there were too many"
