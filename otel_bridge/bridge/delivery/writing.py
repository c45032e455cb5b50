"""Make the calls of a batch one by one; sort each result into written, refused for good, or to be retried.

Where a call fails, what was done of it counts and the rest stays in the batch. No thread, for `Delivery` alone.
"""

from __future__ import annotations

import time

from otel_bridge.bridge.delivery.batch import Batch, OpenWriter, WriterCall
from otel_bridge.bridge.delivery.position import DeliveryPosition
from otel_bridge.bridge.delivery.retry import RetryPolicy
from otel_bridge.bridge.delivery.throttle import Throttle
from otel_bridge.bridge.ledger import codec
from otel_bridge.errors import ExporterError
from otel_bridge.exporter import backlog_of
from otel_bridge.records import Config, Position


class BatchWriter:
    """Makes the calls of batches with an open writer.

    Args:
        position: Moves on with what is written.
        failures: Say what becomes of a call that failed.
        throttle: Notified how long each call took.
    """

    def __init__(self, position: DeliveryPosition, failures: RetryPolicy, throttle: Throttle) -> None:
        self._position, self._retry, self._throttle = position, failures, throttle

    def write(self, opened: OpenWriter, batch: Batch, *, ordered: bool) -> None:
        """Make the next call of *batch*.

        Raises:
            Exception: What the writer raised, when the call is to be tried again: it is the batch's next one.
        """
        call = batch.calls.popleft()
        error = self._made(opened, call)
        done: WriterCall | None = call
        if error is not None:
            done, rest = call.split(error.position if isinstance(error, ExporterError) else None)
            batch.calls.appendleft(rest)
        if done is not None:
            self._done(opened, batch, done, ordered=ordered)
        self._position.backlog(backlog_of(opened.writer))  # behind what was done: a ledger may refuse to note it
        if error is None:
            self._retry.wrote()
            return
        if not self._retry.is_for_good(error):
            raise error
        self._refused(opened, batch, error, ordered=ordered)

    def _made(self, opened: OpenWriter, call: WriterCall) -> Exception | None:
        first = call.records[0]
        if isinstance(first, Config) and first.position <= opened.given:  # given at open, it or a newer one
            return None
        began = time.monotonic()
        try:
            call.make(opened.writer)
        except Exception as exc:  # noqa: BLE001  # sorted by the caller
            return exc
        except BaseException as exc:  # noqa: BLE001  # SystemExit, a cancellation: the call is not done, the thread goes on
            return RuntimeError(f"the tracker raised {type(exc).__name__}: {exc}")
        finally:
            self._throttle.wrote(time.monotonic() - began)
        return None

    def _refused(self, opened: OpenWriter, batch: Batch, error: Exception, *, ordered: bool) -> None:
        """Make a dead letter of the first record of the next call; halve the call while the error names none."""
        rest = batch.calls[0]
        named = isinstance(error, ExporterError) and error.position is not None
        if not named and len(rest.records) > 1:
            batch.calls.popleft()
            batch.calls.extendleft(reversed(rest.halves()))
            return
        self._retry.before_dead_letter(error)
        refused = rest.records[0]
        self._position.dead_letter(refused.position, *codec.encode(refused), record_id=refused.id, reason=str(error))
        batch.calls.popleft()
        batch.refuse()
        if len(rest.records) > 1:
            batch.calls.appendleft(WriterCall(rest.records[1:]))
        self._done(opened, batch, None, ordered=ordered, position=refused.position)

    def _done(
        self, opened: OpenWriter, batch: Batch, call: WriterCall | None, *, ordered: bool, position: Position = 0
    ) -> None:
        """Count what was written; move *written* as far as the order allows."""
        counted, newly_left_out = self._position.now.counted, opened.newly_left_out()
        for record in () if call is None else call.records:
            position = record.position
            if not isinstance(record, Config):
                opened.wrote(position)
        if position > counted:  # a call that is made again has been counted
            written = () if call is None else call.records
            batch.count((record for record in written if record.position > counted), newly_left_out)
        if ordered and batch.calls:
            self._position.advance(position, batch, reports_durable=opened.reports_durable)
