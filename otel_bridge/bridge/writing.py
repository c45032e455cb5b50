"""The calls of a window, made one by one: what of each is written, refused for good, or to be tried again.

Where a call fails, what was done of it counts and the rest stays in the window. No thread, for `Delivery` alone.
"""

from __future__ import annotations

import time

from otel_bridge.bridge import codec
from otel_bridge.bridge.calls import Call
from otel_bridge.bridge.duty import Duty
from otel_bridge.bridge.failures import Failures
from otel_bridge.bridge.standing import Standing
from otel_bridge.bridge.window import OpenWriter, Window
from otel_bridge.errors import ExporterError
from otel_bridge.exporter import put_off_of
from otel_bridge.records import Config, Position, Rollout, Row


class Writing:
    """Makes the calls of windows with an open writer.

    Args:
        standing: Moves on with what is written.
        failures: Say what becomes of a call that failed.
        duty: Told how long each call took.
    """

    def __init__(self, standing: Standing, failures: Failures, duty: Duty) -> None:
        self._standing, self._failures, self._duty = standing, failures, duty

    def write(self, opened: OpenWriter, window: Window, *, ordered: bool) -> None:
        """Make the next call of *window*.

        Raises:
            Exception: What the writer raised, when the call is to be tried again: it is the window's next one.
        """
        call = window.calls.popleft()
        error = self._made(opened, call)
        done: Call | None = call
        if error is not None:
            done, rest = call.split(error.position if isinstance(error, ExporterError) else None)
            window.calls.appendleft(rest)
        if done is not None:
            self._done(opened, window, done, ordered=ordered)
        self._standing.put_off(put_off_of(opened.writer))  # behind what was done: a ledger may refuse to note it
        if error is None:
            self._failures.wrote()
            return
        if not self._failures.is_for_good(error):
            raise error
        self._refused(opened, window, error, ordered=ordered)

    def _made(self, opened: OpenWriter, call: Call) -> Exception | None:
        first = call.records[0]
        if isinstance(first, Config) and first.position <= opened.given:  # given at open, it or a newer one
            return None
        began = time.monotonic()
        try:
            call.make(opened.writer)
        except Exception as exc:  # noqa: BLE001  # sorted by the caller
            return exc
        finally:
            self._duty.wrote(time.monotonic() - began)
        return None

    def _refused(self, opened: OpenWriter, window: Window, error: Exception, *, ordered: bool) -> None:
        """Bury the first record of the next call; where the error names none, halve the call until it does."""
        rest = window.calls[0]
        named = isinstance(error, ExporterError) and error.position is not None
        if not named and len(rest.records) > 1:
            window.calls.popleft()
            window.calls.extendleft(reversed(rest.halves()))
            return
        self._failures.before_burial(error)
        refused = rest.records[0]
        self._standing.bury(refused.position, *codec.encode(refused), record_id=refused.id, reason=str(error))
        window.calls.popleft()
        window.refused = True
        if len(rest.records) > 1:
            window.calls.appendleft(Call(rest.records[1:]))
        self._done(opened, window, None, ordered=ordered, position=refused.position)

    def _done(
        self, opened: OpenWriter, window: Window, call: Call | None, *, ordered: bool, position: Position = 0
    ) -> None:
        """Count what was written; move *written* as far as the order allows."""
        counted = self._standing.now.counted
        for record in () if call is None else call.records:
            position = record.position
            if not isinstance(record, Config):
                opened.last = position
            if position > counted:
                window.rows += isinstance(record, Row)
                window.rollouts += isinstance(record, Rollout)
        if ordered and window.calls:
            self._standing.advance(position, window, tells_safe=opened.tells_safe)
