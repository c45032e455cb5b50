"""Holds the writer of one exporter from its open to its close.

The session gives the writer configs and records, and asks the writer what is durable.

The result of each call is one of three: written, refused for good, or to be retried. When a call fails, its written
records count and the others stay in the batch. For the exporter's own thread.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, cast

from otel_bridge.bridge.delivery.batch import Batch, OpenWriter, WriterCall, counted
from otel_bridge.bridge.delivery.context import DeliveryContext
from otel_bridge.bridge.delivery.position import DeliveryPosition
from otel_bridge.bridge.delivery.retry import RetryPolicy
from otel_bridge.bridge.ledger import codec
from otel_bridge.bridge.ledger.queries import LedgerView
from otel_bridge.bridge.ledger.rows import Destination
from otel_bridge.capabilities import incompatibility
from otel_bridge.errors import ExporterError, PermanentError
from otel_bridge.exporter import (
    Exporter,
    ExporterSettings,
    RunInfo,
    RunWriter,
    WritesSummary,
    backlog_of,
    degraded_of,
    found_of,
    tracker_run_id_of,
)
from otel_bridge.records import Alert, Config, Position, Summary
from otel_bridge.text.addresses import without_credentials

PAUSE_FACTOR: Final = 20.0
"""Ratio of a pause to the time that the writes before it took."""
LONGEST_PAUSE_S: Final = 0.5
SHORTEST_PAUSE_S: Final = 0.05
"""Shortest pause, below which there is none; this limits how often new records are read."""


class WriterSession:
    """Opens, calls, queries and closes the writer.

    Args:
        context: Context of the exporter's delivery.
        position: Position of the exporter, moved by writes and by what the tracker already holds.
        retry: Decides what follows a call that failed.
        view: Reads the ledger for the exporter's thread.

    Attributes:
        opened: The open writer; ``None`` without one.
        throttle: Counts how long the writer's calls took.
    """

    def __init__(
        self, context: DeliveryContext, position: DeliveryPosition, retry: RetryPolicy, view: LedgerView
    ) -> None:
        self._name, self._ledger, self._describe = context.name, context.ledger, context.describe
        self._say, self._view, self._position, self._retry = context.say, view, position, retry
        self.throttle = Throttle()
        self._names: tuple[str, str] | None = None
        self.opened: OpenWriter | None = None

    def open(
        self, target: tuple[Exporter, ExporterSettings], at: Destination, kinds: Sequence[int]
    ) -> OpenWriter | None:
        """Open the writer; return ``None`` if *written* moved, because the tracker holds more or less than noted."""
        exporter, settings = target
        if not self._position.failing:  # a failing exporter stays failing until it has written something
            self._position.show("writing")
        given, run = self._describe(self._view, reopened=bool(at.ended))
        self._names = run.project, run.name
        writer = self._opened(exporter, settings, run, at)
        opened = self.opened = OpenWriter(writer, given, reports_durable=False)
        try:
            held = writer.durable()
            for role, config in run.configs.items():
                self._give(f"the config of role {role!r}", partial(writer.write_config, role, config))
            for role, values in run.summaries.items() if isinstance(writer, WritesSummary) else ():
                summarise = cast("WritesSummary", writer).write_summary
                self._give(f"the summary of role {role!r}", partial(summarise, role, values))
            moved = False
            if held is not None:
                opened.begin_reporting()
            self._position.found(found_of(writer))
            at = dataclasses.replace(
                at, opened=True, ended=0, end_status=None, url=without_credentials(writer.url or "") or None,
                tracker_run_id=tracker_run_id_of(writer), degraded=self._degraded(writer, at.degraded),
            )  # fmt: skip
            if held is not None:
                start = max(min(held, self._ledger.position), self._view.oldest() - 1)
                moved = start != at.written
                at = dataclasses.replace(counted(self._view, kinds, at, start), written=start, durable=start)
            self._position.save(at)
        except BaseException:
            self.close()
            raise
        return None if moved else opened

    def _opened(self, exporter: Exporter, settings: ExporterSettings, run: RunInfo, at: Destination) -> RunWriter:
        try:
            return exporter.open(run, settings, self._ledger.memory(at.id))
        except Exception as exc:
            packages = " ".join(exporter.requires)
            install = f"pip install --upgrade {packages}" if packages else ""
            blocked = incompatibility(exc, packages or f"the exporter {self._name}", install)
            if blocked is None:
                raise
            raise blocked from exc

    def _degraded(self, writer: RunWriter, known: Sequence[str]) -> tuple[str, ...]:
        """Return the abilities that *writer* lacks, and log each sentence that is not in *known*."""
        degraded = degraded_of(writer)
        for sentence in degraded:
            if sentence not in known:
                self._say(f"{self._name}: {sentence}")
        return degraded

    def _give(self, what: str, call: Callable[[], None]) -> None:
        try:
            call()
        except PermanentError as exc:
            self._say(f"{self._name}: {what} is refused for good: {exc}")

    def write(self, opened: OpenWriter, batch: Batch, *, ordered: bool) -> None:
        """Make the next call of *batch*.

        Raises:
            Exception: The writer's exception, when the call must be retried; it stays the next call of the batch.
        """
        call = batch.calls.popleft()
        error = self._made(opened, call)
        done: WriterCall | None = call
        if error is not None:
            done, rest = call.split(error.position if isinstance(error, ExporterError) else None)
            batch.calls.appendleft(rest)
        if done is not None:
            self._done(opened, batch, done, ordered=ordered)
        self._position.backlog(backlog_of(opened.writer))  # after `_done`: the ledger may fail to store the backlog
        if error is None:
            self._retry.wrote()
            return
        if not self._retry.is_for_good(error):
            raise error
        self._refused(opened, batch, error, ordered=ordered)

    def _made(self, opened: OpenWriter, call: WriterCall) -> Exception | None:
        last = call.records[-1]
        if isinstance(last, (Config, Summary)) and last.position <= opened.given:  # it or a newer one was given at open
            return None
        began = time.monotonic()
        try:
            call.make(opened.writer)
        except Exception as exc:  # noqa: BLE001  # the caller handles it
            return exc
        except BaseException as exc:  # noqa: BLE001  # SystemExit, a cancellation: the call failed, the thread goes on
            return RuntimeError(f"the tracker raised {type(exc).__name__}: {exc}")
        finally:
            self.throttle.wrote(time.monotonic() - began)
        return None

    def _refused(self, opened: OpenWriter, batch: Batch, error: Exception, *, ordered: bool) -> None:
        """Make a dead letter of the first record of the next call; halve the call while the error names no record."""
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
        """Count the written records; move *written* as far as the order allows."""
        counted, newly_left_out = self._position.now.counted, opened.newly_left_out()
        for record in () if call is None else call.records:
            position = record.position
            if not isinstance(record, (Alert, Config, Summary)):
                opened.wrote(position)
        if position > counted:  # a repeated call was counted before
            written = () if call is None else call.records
            new = [record for record in written if record.position > counted]
            batch.count(new, opened.not_shown(new) + Counter(newly_left_out))
        if ordered and batch.calls:
            self._position.advance(position, batch, reports_durable=opened.reports_durable)

    def is_renamed(self) -> bool:
        """Return whether the project or the name of the run has changed since its writer was opened."""
        if self.opened is None:
            return False
        _, run = self._describe(self._view, reopened=False)
        return self._names != (run.project, run.name)

    def look_at_durable(self, opened: OpenWriter, at: Destination) -> None:
        """Read the durable position from the writer and store it."""
        opened.looked(time.monotonic())
        held = opened.writer.durable()
        if held is None or held >= opened.last:
            held = at.written
        if held > at.durable:
            self._position.save(dataclasses.replace(at, durable=min(held, at.written)))

    def process_backlog(self, opened: OpenWriter) -> bool:
        """Let the writer do some of its deferred work; return whether none is left."""
        done = opened.caught_up()
        self._position.backlog(backlog_of(opened.writer))
        return done

    def close(self) -> bool:
        """Close the writer, if one is open; return whether that failed."""
        opened, self.opened = self.opened, None
        if opened is not None:
            try:
                opened.writer.close()
            except Exception as exc:  # noqa: BLE001  # the writer is released in any case
                self._say(f"{self._name}: closing its writer failed: {exc}")
                return True
        return False


class Throttle:
    """Decides how long a writer pauses between two batches, so that records collect. One thread.

    A row costs a tracker less the more rows one call has. A row of ten keys takes MLflow's SQLite 9 ms alone, 2.5 ms
    among ten and 1.3 ms among a hundred. The bridge must leave as much of the machine as it can to the trainer.
    """

    def __init__(self) -> None:
        self._wrote_s = 0.0

    def wrote(self, seconds: float) -> None:
        """Add the duration of a call."""
        self._wrote_s += seconds

    def pause_s(self, *, wanted: bool) -> float:
        """Return the seconds to pause and reset the count; 0 when no pause is *wanted* or it would be too short."""
        pause_s = min(self._wrote_s * PAUSE_FACTOR, LONGEST_PAUSE_S)
        self._wrote_s = 0.0
        return pause_s if wanted and pause_s >= SHORTEST_PAUSE_S else 0.0
